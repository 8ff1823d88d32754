//! What watchers follow: all ConfigMaps of the run, or those with a label.

use anyhow::{Result, ensure};
use serde_json::Value as Json;

use super::linear::Value;
use super::work::value;

/// Where the ConfigMaps are.
pub(super) const COLLECTION: &str = "/api/v1/namespaces/torture/configmaps";
/// The label by which they are chosen, and what it says of a value.
pub(super) const PARITY: &str = "parity";

pub(super) fn parity(value: Value) -> &'static str {
    if value.is_multiple_of(2) { "even" } else { "odd" }
}

/// What is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// Every ConfigMap.
    All,
    /// ConfigMaps whose value is odd.
    Odd,
}

impl Watched {
    /// Whether an object with this value is among them.
    pub(super) fn has(self, value: Value) -> bool {
        self != Self::Odd || parity(value) == "odd"
    }

    /// The path of a list or watch.
    pub(super) fn query(self, options: &str) -> String {
        match self {
            Self::All => format!("{COLLECTION}?{options}"),
            Self::Odd => format!("{COLLECTION}?labelSelector={PARITY}%3Dodd&{options}"),
        }
    }

    /// Key and value of an object, if it is one of the run's.
    ///
    /// # Errors
    /// When it should not have been sent, or is not what was written.
    pub(super) fn look(self, object: &Json) -> Result<Option<(String, Value)>> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        // The namespace has an object of its own.
        if self == Self::All && name == "kube-root-ca.crt" {
            return Ok(None);
        }
        let value = value(object)?;
        ensure!(self.has(value), "violation: filter: {name} has the value {value}");
        Ok(Some((name.to_owned(), value)))
    }
}
