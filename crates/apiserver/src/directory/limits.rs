//! Limits of a workspace, with all workspaces below it.

use portolan_store::{Account, Usage};
use portolan_types::{LogicalClusterId, StatusCause, object, quantity::Quantity};
use serde_json::Value;

use super::{Directory, LogicalCluster};

/// The annotation of a Workspace with the most objects that it may store, with all below it.
pub(crate) const MAX_OBJECTS: &str = "core.kcp.io/max-total-objects";
/// The annotation with the most bytes of them, a quantity such as `512Mi`.
pub(crate) const MAX_BYTES: &str = "core.kcp.io/max-total-bytes";

/// Limits of a workspace's own; the server's count where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceLimits {
    /// Most objects.
    pub objects: Option<u64>,
    /// Most bytes.
    pub bytes: Option<u64>,
}

impl WorkspaceLimits {
    /// The limits in the annotations of a Workspace.
    ///
    /// # Errors
    /// The cause that an annotation cannot be read.
    pub(crate) fn of(workspace: &Value) -> Result<Self, StatusCause> {
        let of = |key, read: fn(&str) -> Option<u64>, what| {
            let Some(text) = object::annotation(workspace, key) else { return Ok(None) };
            read(text).map(Some).ok_or_else(|| StatusCause {
                reason: "FieldValueInvalid".into(),
                message: format!("Invalid value: {text:?}: must be {what}"),
                field: format!("metadata.annotations[{key}]"),
            })
        };
        Ok(Self {
            objects: of(MAX_OBJECTS, |text| text.parse().ok(), "a number, 0 or more")?,
            bytes: of(MAX_BYTES, bytes, "a quantity of bytes, such as 512Mi")?,
        })
    }

    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Returns the limits in effect, where the server allows `most`.
    fn within(self, most: Usage) -> Usage {
        Usage { objects: self.objects.unwrap_or(most.objects), bytes: self.bytes.unwrap_or(most.bytes) }
    }
}

fn bytes(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<Quantity>().ok()?.units()).ok()
}

impl LogicalCluster {
    /// The account that limits it, unless it is root, where the server allows `most`.
    pub(crate) fn account(&self, most: Usage) -> Option<Account> {
        let parent = Some(self.parent?);
        let limits = self.limits.as_deref().copied().unwrap_or_default();
        Some(Account { cluster: self.id, parent, most: limits.within(most) })
    }
}

impl Directory {
    /// The accounts of a logical cluster and its ancestors up to root, which has none.
    pub(crate) fn accounts(&self, cluster: LogicalClusterId, most: Usage) -> Vec<Account> {
        let known = self.known.read();
        let (mut accounts, mut next) = (Vec::new(), Some(cluster));
        while let Some(account) = next.and_then(|id| known.by_id.get(&id)?.account(most)) {
            next = account.parent;
            accounts.push(account);
        }
        accounts
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_are_read_and_held_against_the_servers_limits() {
        let of = |annotations: Value| WorkspaceLimits::of(&json!({"metadata": {"annotations": annotations}}));
        let most = Usage { objects: 10, bytes: 100 };
        for (annotations, objects, bytes) in [
            (json!({}), 10, 100),
            (json!({MAX_OBJECTS: "0"}), 0, 100),
            (json!({MAX_OBJECTS: "50", MAX_BYTES: "2Ki"}), 50, 2048),
        ] {
            assert_eq!(of(annotations.clone()).unwrap().within(most), Usage { objects, bytes }, "{annotations}");
        }
        for (key, text) in [(MAX_OBJECTS, "-1"), (MAX_OBJECTS, "1k"), (MAX_BYTES, "much"), (MAX_BYTES, "-1Mi")] {
            let refused = of(json!({key: text})).unwrap_err();
            assert_eq!(refused.field, format!("metadata.annotations[{key}]"), "{text}");
        }
    }
}
