//! Limits of a workspace and all workspaces below it.

use portolan_store::{AccountLimit, StoredUsage};
use portolan_types::{LogicalClusterId, StatusCause, object, quantity::Quantity};
use serde_json::Value;

use super::{Directory, LogicalCluster};

/// Annotation of a Workspace with the limit of objects that it and all below it may store.
pub(crate) const MAX_OBJECTS_ANNOTATION: &str = "core.kcp.io/max-total-objects";
/// Annotation with the limit of their bytes, a quantity such as `512Mi`.
pub(crate) const MAX_BYTES_ANNOTATION: &str = "core.kcp.io/max-total-bytes";

/// Limits of one workspace; the server's apply where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceLimits {
    /// Limit of objects.
    pub objects: Option<u64>,
    /// Limit of bytes.
    pub bytes: Option<u64>,
}

impl WorkspaceLimits {
    /// Parses the annotations of a Workspace.
    ///
    /// # Errors
    /// The cause, for an annotation that cannot be parsed.
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
            objects: of(MAX_OBJECTS_ANNOTATION, |text| text.parse().ok(), "a number, 0 or more")?,
            bytes: of(MAX_BYTES_ANNOTATION, bytes, "a quantity of bytes, such as 512Mi")?,
        })
    }

    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Returns the effective limits; `most` is the server's default.
    fn within(self, most: StoredUsage) -> StoredUsage {
        StoredUsage { objects: self.objects.unwrap_or(most.objects), bytes: self.bytes.unwrap_or(most.bytes) }
    }
}

fn bytes(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<Quantity>().ok()?.units()).ok()
}

impl LogicalCluster {
    /// Returns the account that limits it, unless it is root; `most` is the server's default.
    pub(crate) fn account(&self, most: StoredUsage) -> Option<AccountLimit> {
        let parent = Some(self.parent?);
        let limits = self.limits.as_deref().copied().unwrap_or_default();
        Some(AccountLimit { cluster: self.id, parent, most: limits.within(most) })
    }
}

impl Directory {
    /// Returns the accounts of a logical cluster and its ancestors, except root, which has none.
    pub(crate) fn accounts(&self, cluster: LogicalClusterId, most: StoredUsage) -> Vec<AccountLimit> {
        let index = self.index.read();
        let (mut accounts, mut next) = (Vec::new(), Some(cluster));
        while let Some(account) = next.and_then(|id| index.by_id.get(&id)?.account(most)) {
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
    fn annotations_are_parsed_and_combined_with_the_servers_limits() {
        let of = |annotations: Value| WorkspaceLimits::of(&json!({"metadata": {"annotations": annotations}}));
        let most = StoredUsage { objects: 10, bytes: 100 };
        for (annotations, objects, bytes) in [
            (json!({}), 10, 100),
            (json!({MAX_OBJECTS_ANNOTATION: "0"}), 0, 100),
            (json!({MAX_OBJECTS_ANNOTATION: "50", MAX_BYTES_ANNOTATION: "2Ki"}), 50, 2048),
        ] {
            assert_eq!(of(annotations.clone()).unwrap().within(most), StoredUsage { objects, bytes }, "{annotations}");
        }
        for (key, text) in [
            (MAX_OBJECTS_ANNOTATION, "-1"),
            (MAX_OBJECTS_ANNOTATION, "1k"),
            (MAX_BYTES_ANNOTATION, "much"),
            (MAX_BYTES_ANNOTATION, "-1Mi"),
        ] {
            let refused = of(json!({key: text})).unwrap_err();
            assert_eq!(refused.field, format!("metadata.annotations[{key}]"), "{text}");
        }
    }
}
