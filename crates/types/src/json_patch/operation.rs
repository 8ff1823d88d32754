//! Operation of a JSON patch, with kube-apiserver's error texts.

use serde_json::Value;

use super::{PatchBudget, PatchFailure, depth, json_len, unfit};
use crate::object::Object;

const MISSING: &str = "missing value";

/// Operation as received.
pub(super) struct PatchOperation<'a> {
    name: &'a str,
    path: Result<&'a str, String>,
    from: Result<&'a str, String>,
    value: &'a Value,
}

impl<'a> PatchOperation<'a> {
    /// Reads the operation from an object or null.
    pub(super) fn of(operation: &'a Value) -> Self {
        let text = |key: &str, absent: &str| match operation.get(key) {
            None | Some(Value::Null) => Err(format!("{absent}: {MISSING}")),
            Some(Value::String(text)) => Ok(text.as_str()),
            Some(other) => Err(unfit(other, "string")),
        };
        Self {
            name: operation.get("op").and_then(Value::as_str).unwrap_or("unknown"),
            path: text("path", "operation missing path field"),
            from: text("from", "operation, missing from field"),
            value: operation.get("value").unwrap_or(&Value::Null),
        }
    }

    /// Returns the depth that it may reach in a document of depth `deepest`.
    pub(super) fn reach(&self, deepest: usize) -> usize {
        let levels = |path: &Result<&str, _>| path.as_ref().map_or(0, |path| path.matches('/').count());
        match self.name {
            "add" | "replace" => levels(&self.path) + depth(self.value),
            "copy" | "move" => levels(&self.path) + deepest.saturating_sub(levels(&self.from)),
            _ => 0,
        }
    }

    /// Applies the operation; `budget` counts for the whole patch.
    ///
    /// # Errors
    /// Fails if it cannot be applied. A `move` may have removed its source then.
    pub(super) fn apply(&self, doc: &mut Value, budget: &mut PatchBudget) -> Result<(), PatchFailure> {
        let done = match self.name {
            "add" => self.add(doc, budget),
            "remove" => self.remove(doc, budget),
            "replace" => self.replace(doc),
            "move" => self.move_value(doc, budget),
            "copy" => self.copy(doc, budget),
            "test" => return self.test(doc),
            other => Err(format!("Unexpected kind: {other}")),
        };
        done.map_err(|why| if budget.is_exceeded { PatchFailure::Budget(why) } else { PatchFailure::Operation(why) })
    }

    fn add(&self, doc: &mut Value, budget: &mut PatchBudget) -> Result<(), String> {
        let path = self.path_or(MISSING)?;
        let place = PatchTarget::find(doc, path).ok_or_else(|| missing_path("add", &format!("\"{path}\"")))?;
        place.add(self.value.clone(), budget).map_err(|why| format!("error in add for path: '{path}': {why}"))
    }

    fn remove(&self, doc: &mut Value, budget: &mut PatchBudget) -> Result<(), String> {
        let path = self.path_or(MISSING)?;
        let place = PatchTarget::find(doc, path).ok_or_else(|| missing_path("remove", &format!("\"{path}\"")))?;
        place.remove(budget).map(drop).map_err(|why| format!("error in remove for path: '{path}': {why}"))
    }

    fn replace(&self, doc: &mut Value) -> Result<(), String> {
        let path = self.path()?;
        if path.is_empty() {
            if !self.value.is_object() && !self.value.is_array() {
                return Err("replace operation value must be object or array: %!w(<nil>)".to_owned());
            }
            *doc = self.value.clone();
            return Ok(());
        }
        let place = PatchTarget::find(doc, path).ok_or_else(|| missing_path("replace", path))?;
        let replaced = place.replace(self.value.clone());
        replaced.map_err(|_| format!("replace operation does not apply: doc is missing key: {path}: {MISSING}"))
    }

    fn move_value(&self, doc: &mut Value, budget: &mut PatchBudget) -> Result<(), String> {
        let from = self.from()?;
        let place = self.origin(doc, from)?;
        let key = place.key().to_owned();
        let moved = place.remove(budget).map_err(|why| format!("error in move for path: '{key}': {why}"))?;
        let path = self.path()?;
        let place = self.destination(doc, path)?;
        place.add(moved, budget).map_err(|why| format!("error in move for path: '{path}': {why}"))
    }

    fn copy(&self, doc: &mut Value, budget: &mut PatchBudget) -> Result<(), String> {
        let from = self.from()?;
        let place = self.origin(doc, from)?;
        let original = place.get().map_err(|why| format!("error in copy for from: '{from}': {why}"))?;
        // The copy is counted before it is made.
        budget.take_copied(json_len(original))?;
        let copy = original.clone();
        let place = self.destination(doc, self.path_or(MISSING)?)?;
        place.add(copy, budget).map_err(|why| format!("error while adding value during copy: {why}"))
    }

    fn test(&self, doc: &mut Value) -> Result<(), PatchFailure> {
        let path = self.path().map_err(PatchFailure::Operation)?;
        let missing =
            || PatchFailure::Operation(format!("test operation does not apply: is missing path: {path}: {MISSING}"));
        let place = if path.is_empty() { None } else { Some(PatchTarget::find(doc, path).ok_or_else(missing)?) };
        let found = match &place {
            None => &*doc,
            Some(place) => place
                .get()
                .map_err(|why| PatchFailure::Operation(format!("error in test for path: '{path}': {why}")))?,
        };
        if found == self.value {
            Ok(())
        } else {
            Err(PatchFailure::Test(format!("testing value {path} failed: test failed")))
        }
    }

    fn path(&self) -> Result<&'a str, String> {
        self.path.clone().map_err(|why| format!("{} operation failed to decode path: {why}", self.name))
    }

    /// Returns the path, with `why` as the error text for any fault, as kube-apiserver has it for some operations.
    fn path_or(&self, why: &str) -> Result<&'a str, String> {
        self.path.clone().map_err(|_| format!("{} operation failed to decode path: {why}", self.name))
    }

    fn from(&self) -> Result<&'a str, String> {
        self.from.clone().map_err(|why| format!("{} operation failed to decode from: {why}", self.name))
    }

    fn origin<'d>(&self, doc: &'d mut Value, from: &str) -> Result<PatchTarget<'d>, String> {
        let missing = || format!("{} operation does not apply: doc is missing from path: {from}: {MISSING}", self.name);
        PatchTarget::find(doc, from).ok_or_else(missing)
    }

    fn destination<'d>(&self, doc: &'d mut Value, path: &str) -> Result<PatchTarget<'d>, String> {
        let missing =
            || format!("{} operation does not apply: doc is missing destination path: {path}: {MISSING}", self.name);
        PatchTarget::find(doc, path).ok_or_else(missing)
    }
}

fn missing_path(name: &str, shown: &str) -> String {
    format!("{name} operation does not apply: doc is missing path: {shown}: {MISSING}")
}

/// Target of a path: an entry of an existing object or list. The entry itself need not exist.
enum PatchTarget<'d> {
    Field(&'d mut Object, String),
    Element(&'d mut Vec<Value>, String),
}

impl<'d> PatchTarget<'d> {
    fn find(doc: &'d mut Value, path: &str) -> Option<Self> {
        // Text before the first slash is ignored.
        let (_, path) = path.split_once('/')?;
        let mut keys = path.split('/').map(|key| key.replace("~1", "/").replace("~0", "~"));
        let last = keys.next_back()?;
        let mut at = doc;
        for key in keys {
            at = match at {
                Value::Object(fields) => fields.get_mut(&key)?,
                Value::Array(list) => {
                    let at = present(&key, list.len()).ok()?;
                    list.get_mut(at)?
                }
                _ => return None,
            };
        }
        match at {
            Value::Object(fields) => Some(Self::Field(fields, last)),
            Value::Array(list) => Some(Self::Element(list, last)),
            _ => None,
        }
    }

    fn key(&self) -> &str {
        match self {
            Self::Field(_, key) | Self::Element(_, key) => key,
        }
    }

    /// Returns the value; `null` if an object has none.
    fn get(&self) -> Result<&Value, String> {
        match self {
            Self::Field(fields, key) => Ok(fields.get(key).unwrap_or(&Value::Null)),
            Self::Element(list, key) => Ok(&list[present(key, list.len())?]),
        }
    }

    fn add(self, value: Value, budget: &mut PatchBudget) -> Result<(), String> {
        match self {
            Self::Field(fields, key) => drop(fields.insert(key, value)),
            Self::Element(list, key) if key == "-" => list.push(value),
            Self::Element(list, key) => {
                let at = number(&key).map_err(|why| format!("value was not a proper array index: '{key}': {why}"))?;
                // Negative indices count from after the last element.
                let at = list_position(at, list.len() + 1)?;
                budget.take_moved(list.len() - at)?;
                list.insert(at, value);
            }
        }
        Ok(())
    }

    fn replace(self, value: Value) -> Result<(), String> {
        match self {
            Self::Field(fields, key) => drop(fields.insert(key, value)),
            Self::Element(list, key) => {
                let at = present(&key, list.len())?;
                list[at] = value;
            }
        }
        Ok(())
    }

    fn remove(self, budget: &mut PatchBudget) -> Result<Value, String> {
        match self {
            Self::Field(fields, key) => {
                fields.remove(&key).ok_or_else(|| format!("Unable to remove nonexistent key: {key}: {MISSING}"))
            }
            Self::Element(list, key) => {
                let at = present(&key, list.len())?;
                budget.take_moved(list.len() - at)?;
                Ok(list.remove(at))
            }
        }
    }
}

/// Returns the index of an existing element.
fn present(key: &str, length: usize) -> Result<usize, String> {
    list_position(number(key)?, length)
}

/// Returns the position of an index in a list of this length; negative ones count from the end.
fn list_position(index: i64, length: usize) -> Result<usize, String> {
    let at = match usize::try_from(index) {
        Ok(at) => Some(at),
        Err(_) => usize::try_from(index.unsigned_abs()).ok().and_then(|back| length.checked_sub(back)),
    };
    let invalid = || format!("Unable to access invalid index: {index}: invalid index referenced");
    at.filter(|at| *at < length).ok_or_else(invalid)
}

/// Parses an index as Go does.
fn number(key: &str) -> Result<i64, String> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    key.parse().map_err(|error: std::num::ParseIntError| {
        let why = match error.kind() {
            PosOverflow | NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.Atoi: parsing {key:?}: {why}")
    })
}
