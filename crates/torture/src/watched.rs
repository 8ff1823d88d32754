//! Selections that watchers follow: all ConfigMaps of the run, or those with a label.

use anyhow::{Result, ensure};
use serde_json::Value as Json;

use super::linear::Value;
use super::work::value;

/// Path of the ConfigMaps.
pub(super) const COLLECTION: &str = "/api/v1/namespaces/torture/configmaps";
/// Label that a selector matches; its value tells whether the object's value is odd.
pub(super) const PARITY: &str = "parity";

pub(super) fn parity(value: Value) -> &'static str {
    if value.is_multiple_of(2) { "even" } else { "odd" }
}

/// Selection that a watcher follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchSelection {
    /// Every ConfigMap.
    All,
    /// ConfigMaps whose value is odd.
    Odd,
}

impl WatchSelection {
    /// Returns true when an object with this value matches.
    pub(super) fn has(self, value: Value) -> bool {
        self != Self::Odd || parity(value) == "odd"
    }

    /// Returns the path of a list or watch.
    pub(super) fn query(self, options: &str) -> String {
        match self {
            Self::All => format!("{COLLECTION}?{options}"),
            Self::Odd => format!("{COLLECTION}?labelSelector={PARITY}%3Dodd&{options}"),
        }
    }

    /// Returns key and value of an object of this run.
    ///
    /// # Errors
    /// Fails if the watch should not have sent the object, or it differs from every write.
    pub(super) fn look(self, object: &Json) -> Result<Option<(String, Value)>> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        // Skips the ConfigMap that every namespace has.
        if self == Self::All && name == "kube-root-ca.crt" {
            return Ok(None);
        }
        let value = value(object)?;
        ensure!(self.has(value), "violation: filter: {name} has the value {value}");
        Ok(Some((name.to_owned(), value)))
    }
}
