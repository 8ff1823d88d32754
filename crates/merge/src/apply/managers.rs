//! `metadata.managedFields`: who owns which fields.

use std::{collections::BTreeMap, fmt};

use portolan_types::{
    object::{self, Object},
    quoted::go_quoted,
};
use serde_json::{Value, json};

use super::{set::FieldSet, versions::Differences};

/// Most entries of managers that update; the oldest are thrown together.
const MAX_UPDATERS: usize = 10;
/// The manager of those.
const ANCIENT: &str = "ancient-changes";
/// Manager of the existing fields when an object without managedFields is applied to.
pub(super) const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Identity of an entry. Two writes with equal ids share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ManagerId {
    pub(super) manager: String,
    pub(super) applied: bool,
    /// Empty for entries of apply: a manager has a single one, whatever version it applies.
    api_version: String,
    subresource: String,
}

impl ManagerId {
    pub(super) fn applier(manager: &str, subresource: &str) -> Self {
        Self::new(manager, true, String::new(), subresource)
    }

    pub(super) fn updater(manager: &str, api_version: &str, subresource: &str) -> Self {
        Self::new(manager, false, api_version.into(), subresource)
    }

    fn new(manager: &str, applied: bool, api_version: String, subresource: &str) -> Self {
        let manager = if manager.is_empty() { "unknown" } else { manager };
        Self { manager: manager.into(), applied, api_version, subresource: subresource.into() }
    }

    /// Returns the same manager in another version.
    pub(super) fn in_version(&self, api_version: &str) -> Self {
        let api_version = if self.applied { String::new() } else { api_version.to_owned() };
        Self { api_version, ..self.clone() }
    }

    /// Returns the form in which kube-apiserver sorts managers: a JSON object.
    pub(super) fn identifier(&self) -> String {
        let part = |name: &str, value: &str| match value {
            "" => String::new(),
            value => format!(",\"{name}\":{}", Value::from(value)),
        };
        format!(
            "{{\"manager\":{},\"operation\":\"{}\"{}{}}}",
            Value::from(&*self.manager),
            if self.applied { "Apply" } else { "Update" },
            part("apiVersion", &self.api_version),
            part("subresource", &self.subresource)
        )
    }
}

impl fmt::Display for ManagerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&go_quoted(&self.manager))?;
        if !self.subresource.is_empty() {
            write!(f, " with subresource {}", go_quoted(&self.subresource))?;
        }
        if !self.applied {
            write!(f, " using {}", self.api_version)?;
        }
        Ok(())
    }
}

/// Fields that a manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) api_version: String,
    /// RFC 3339, of the last write that changed something.
    pub(super) time: Option<String>,
    pub(super) fields: FieldSet,
}

/// All entries of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Managers(BTreeMap<ManagerId, Entry>);

/// `managedFields` that cannot be read; such are dropped.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidEntry {
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    #[error("apiVersion must not be empty")]
    ApiVersion,
    #[error("invalid fieldsType in managed fields entry")]
    FieldsType,
    #[error("fieldsV1 is malformed")]
    Fields,
}

impl Managers {
    /// Reads `metadata.managedFields`.
    pub(super) fn decode(entries: Option<&Value>) -> Result<Self, InvalidEntry> {
        let entries = entries.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        entries.iter().map(decode_entry).collect::<Result<_, _>>().map(Self)
    }

    /// Reads the entries of an object; returns none if they are malformed.
    pub(super) fn of(object: &Value) -> Self {
        Self::decode(managed_fields(object)).unwrap_or_default()
    }

    /// Returns the form on the wire; see [`encode`].
    pub(super) fn encode(&self) -> Option<Value> {
        encode(self.0.iter())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, id: &ManagerId) -> Option<&Entry> {
        self.0.get(id)
    }

    pub(super) fn put(&mut self, id: ManagerId, entry: Entry) {
        self.0.insert(id, entry);
    }

    /// Takes an entry out.
    pub(super) fn take(&mut self, id: &ManagerId) -> Option<Entry> {
        self.0.remove(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ManagerId, &Entry)> {
        self.0.iter()
    }

    /// Returns all entries except that of `id`.
    pub(super) fn others<'a>(&'a self, id: &'a ManagerId) -> impl Iterator<Item = (&'a ManagerId, &'a Entry)> {
        self.0.iter().filter(move |(other, _)| *other != id)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.0.values()
    }

    /// Returns the entries of a version.
    pub(super) fn of_version<'a>(&'a mut self, version: &'a str) -> impl Iterator<Item = &'a mut Entry> {
        self.0.values_mut().filter(move |entry| entry.api_version == version)
    }

    /// Takes the changed fields from everybody but `keeper`. Entries of versions that are not served are removed.
    pub(super) fn take_away(&mut self, changed: &Differences, keeper: Option<&ManagerId>) {
        self.0.retain(|id, entry| {
            if Some(id) == keeper {
                return true;
            }
            let Some(difference) = changed.of(entry) else { return false };
            for lost in [&difference.added, &difference.modified, &difference.removed] {
                if !lost.is_empty() {
                    entry.fields = entry.fields.difference(lost);
                }
            }
            true
        });
    }

    /// Removes the fields that no manager may own from all managers.
    pub(super) fn disown(&mut self, fields: &FieldSet) {
        self.0.values_mut().for_each(|entry| entry.fields = entry.fields.difference(fields));
    }

    /// Entries without fields go.
    pub(super) fn sweep(&mut self) {
        self.0.retain(|_, entry| !entry.fields.is_empty());
    }

    /// Adds `fields` to those of a manager.
    pub(super) fn give(&mut self, id: ManagerId, api_version: &str, fields: FieldSet, time: Option<String>) {
        let before = self.0.remove(&id).map(|entry| entry.fields).unwrap_or_default();
        let fields = before.union(fields);
        self.0.insert(id, Entry { api_version: api_version.into(), time, fields });
    }

    /// Throws the oldest updates of a version together until not more than ten are left.
    pub(super) fn cap(&mut self) {
        let mut updaters: Vec<ManagerId> = self.0.keys().filter(|id| !id.applied).cloned().collect();
        let Some(mut excess) = updaters.len().checked_sub(MAX_UPDATERS).filter(|excess| *excess > 0) else { return };
        updaters.sort_by_cached_key(|id| (self.0.get(id).and_then(|entry| entry.time.clone()), id.identifier()));
        let mut first_of_version: BTreeMap<String, ManagerId> = BTreeMap::new();
        for id in updaters {
            if excess == 0 {
                return;
            }
            match first_of_version.get(&id.api_version) {
                None => drop(first_of_version.insert(id.api_version.clone(), id)),
                Some(first) => {
                    let bucket = ManagerId::updater(ANCIENT, &id.api_version, "");
                    self.throw_together(first, &id, bucket);
                    excess -= 1;
                }
            }
        }
    }

    fn throw_together(&mut self, first: &ManagerId, next: &ManagerId, bucket: ManagerId) {
        if !self.0.contains_key(&bucket)
            && let Some(entry) = self.0.remove(first)
        {
            self.0.insert(bucket.clone(), entry);
        }
        let Some(next) = self.0.remove(next) else { return };
        if let Some(entry) = self.0.get_mut(&bucket) {
            entry.fields = std::mem::take(&mut entry.fields).union(next.fields);
            entry.time = next.time;
        }
    }
}

impl IntoIterator for Managers {
    type Item = (ManagerId, Entry);
    type IntoIter = std::collections::btree_map::IntoIter<ManagerId, Entry>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Returns the form of entries on the wire, sorted; `None` without any. Two may be of one manager, after a write
/// through a scale.
pub(super) fn encode<'a>(entries: impl Iterator<Item = (&'a ManagerId, &'a Entry)>) -> Option<Value> {
    let mut sorted: Vec<_> = entries.collect();
    sorted.sort_by_key(|(id, entry)| {
        (!id.applied, entry.time.clone(), &id.manager, entry.api_version.clone(), &id.subresource)
    });
    let entries: Vec<Value> = sorted.into_iter().map(|(id, entry)| encode_entry(id, entry)).collect();
    (!entries.is_empty()).then_some(Value::Array(entries))
}

fn decode_entry(value: &Value) -> Result<(ManagerId, Entry), InvalidEntry> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let applied = match text("operation") {
        "Apply" => true,
        "Update" => false,
        _ => return Err(InvalidEntry::Operation),
    };
    let api_version = text("apiVersion");
    if api_version.is_empty() {
        return Err(InvalidEntry::ApiVersion);
    }
    if text("fieldsType") != "FieldsV1" {
        return Err(InvalidEntry::FieldsType);
    }
    let fields = match value.get("fieldsV1") {
        None | Some(Value::Null) => FieldSet::default(),
        Some(fields) => FieldSet::parse(fields).ok_or(InvalidEntry::Fields)?,
    };
    let id = if applied {
        ManagerId::applier(text("manager"), text("subresource"))
    } else {
        ManagerId::updater(text("manager"), api_version, text("subresource"))
    };
    let time = value.get("time").and_then(Value::as_str).map(str::to_owned);
    Ok((id, Entry { api_version: api_version.into(), time, fields }))
}

fn encode_entry(id: &ManagerId, entry: &Entry) -> Value {
    encode_fields(id, &entry.api_version, entry.time.as_deref(), entry.fields.to_fields())
}

/// Returns an entry whose fields are in wire form already.
pub(super) fn encode_fields(id: &ManagerId, api_version: &str, time: Option<&str>, fields: Value) -> Value {
    let mut value = json!({
        "manager": id.manager,
        "operation": if id.applied { "Apply" } else { "Update" },
        "apiVersion": api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    });
    if let Some(time) = time {
        value["time"] = time.into();
    }
    if !id.subresource.is_empty() {
        value["subresource"] = id.subresource.as_str().into();
    }
    value
}

/// Returns `metadata.managedFields` unparsed.
pub(super) fn managed_fields(object: &Value) -> Option<&Value> {
    object::metadata(object).get("managedFields")
}

/// Puts `metadata.managedFields`, or takes them off.
pub(super) fn set_managed_fields(object: &mut Value, fields: Option<Value>) {
    let metadata: &mut Object = object::metadata_mut(object);
    match fields {
        Some(fields) => drop(metadata.insert("managedFields".into(), fields)),
        None => drop(metadata.remove("managedFields")),
    }
}

/// Returns true if a client resets all owners: by an empty list, or one empty entry.
pub(super) fn is_reset(fields: &Value) -> bool {
    match fields.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([entry]) => entry.as_object().is_some_and(Object::is_empty),
        _ => false,
    }
}

/// Returns true if two lists of entries are equal except for times.
pub(super) fn equal_but_times(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_array(), b.as_array()) else { return a == b };
    let same = |(a, b): (&Value, &Value)| {
        let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return a == b };
        but(a, &["time"]).eq(but(b, &["time"]))
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

/// Returns the entries of an object without some of them.
pub(super) fn but<'a>(object: &'a Object, left_out: &'a [&str]) -> impl Iterator<Item = (&'a String, &'a Value)> {
    object.iter().filter(move |(name, _)| !left_out.contains(&name.as_str()))
}
