//! The names of a custom resource, and which of them others in its group have taken.

use std::{collections::HashSet, sync::Arc};

use serde_json::{Map, Value};

/// Names in the form of `spec.names` and `status.acceptedNames`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Names {
    /// The plural, as in URLs.
    pub plural: Arc<str>,
    /// The singular.
    pub singular: Arc<str>,
    /// The kind.
    pub kind: Arc<str>,
    /// The kind of lists.
    pub list_kind: Arc<str>,
    /// Short names.
    pub short_names: Vec<Arc<str>>,
    /// Categories.
    pub categories: Vec<Arc<str>>,
}

impl Names {
    /// Reads the names; a missing one is empty.
    pub fn of(value: &Value) -> Self {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().into();
        let list = |key: &str| {
            let items = value.get(key).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).map(Arc::from).collect()
        };
        Self {
            plural: text("plural"),
            singular: text("singular"),
            kind: text("kind"),
            list_kind: text("listKind"),
            short_names: list("shortNames"),
            categories: list("categories"),
        }
    }

    /// Returns the names as an object of the API.
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        let mut text = |key: &str, value: &Arc<str>, always: bool| {
            if always || !value.is_empty() {
                out.insert(key.to_owned(), (**value).into());
            }
        };
        text("plural", &self.plural, true);
        text("singular", &self.singular, false);
        text("kind", &self.kind, true);
        text("listKind", &self.list_kind, false);
        for (key, list) in [("shortNames", &self.short_names), ("categories", &self.categories)] {
            if !list.is_empty() {
                out.insert(key.to_owned(), list.iter().map(|own| Value::from(&**own)).collect());
            }
        }
        Value::Object(out)
    }

    /// Returns the `claimed` names that can be accepted, and the reason and message for the last one that cannot.
    pub(super) fn accepted(&self, claimed: &Names, taken: &TakenNames) -> (Names, Option<(&'static str, String)>) {
        let mut accepted = self.clone();
        let mut conflict = None;
        let resources = [
            ("PluralConflict", &claimed.plural, &mut accepted.plural),
            ("SingularConflict", &claimed.singular, &mut accepted.singular),
        ];
        for (reason, wanted, own) in resources {
            settle(reason, wanted, own, &taken.resources, &mut conflict);
        }
        if claimed.short_names != accepted.short_names {
            let fresh = claimed.short_names.iter().filter(|name| !accepted.short_names.contains(name));
            let used: Vec<String> =
                fresh.filter(|name| taken.resources.contains(*name)).map(|name| in_use(name)).collect();
            match used.as_slice() {
                [] => accepted.short_names.clone_from(&claimed.short_names),
                [one] => conflict = Some(("ShortNamesConflict", one.clone())),
                more => conflict = Some(("ShortNamesConflict", format!("[{}]", more.join(", ")))),
            }
        }
        let kinds = [
            ("KindConflict", &claimed.kind, &mut accepted.kind),
            ("ListKindConflict", &claimed.list_kind, &mut accepted.list_kind),
        ];
        for (reason, wanted, own) in kinds {
            settle(reason, wanted, own, &taken.kinds, &mut conflict);
        }
        accepted.categories.clone_from(&claimed.categories);
        (accepted, conflict)
    }
}

fn settle(
    reason: &'static str,
    wanted: &Arc<str>,
    own: &mut Arc<str>,
    taken: &HashSet<Arc<str>>,
    conflict: &mut Option<(&'static str, String)>,
) {
    if wanted != own && taken.contains(wanted) {
        *conflict = Some((reason, in_use(wanted)))
    } else {
        own.clone_from(wanted)
    }
}

fn in_use(name: &str) -> String {
    format!("{name:?} is already in use")
}

/// The names that definitions of one group have been given.
#[derive(Debug, Default)]
pub struct TakenNames {
    resources: HashSet<Arc<str>>,
    kinds: HashSet<Arc<str>>,
}

impl TakenNames {
    /// Adds the accepted names of a definition.
    pub fn add(&mut self, names: &Names) {
        self.resources.extend([names.plural.clone(), names.singular.clone()]);
        self.resources.extend(names.short_names.iter().cloned());
        self.kinds.extend([names.kind.clone(), names.list_kind.clone()]);
    }
}
