//! Limits of a workspace and all workspaces below it, and of the access to it.

use portolan_store::{AccountLimit, StoredUsage};
use portolan_types::{GroupResource, LogicalClusterId, Status, StatusCause, object, quantity::Quantity};
use serde_json::Value;

use super::{Directory, LogicalCluster};

/// Annotation of a Workspace with the limit of objects that it and all below it may store.
pub(crate) const MAX_OBJECTS_ANNOTATION: &str = "core.kcp.io/max-total-objects";
/// Annotation with the limit of their bytes, a quantity such as `512Mi`.
pub(crate) const MAX_BYTES_ANNOTATION: &str = "core.kcp.io/max-total-bytes";

/// Annotation that closes a workspace to all requests, if it is `true`.
pub(crate) const INACTIVE_ANNOTATION: &str = "core.kcp.io/inactive";
/// Annotation with the groups of which a user has to be a member to enter: alternatives separated by `,`, each of
/// groups separated by `;`. New workspaces below inherit it.
pub(crate) const REQUIRED_GROUPS_ANNOTATION: &str = "authorization.kcp.io/required-groups";
/// Annotations of a Workspace that limit it.
pub(crate) const LIMIT_ANNOTATIONS: [&str; 4] =
    [MAX_OBJECTS_ANNOTATION, MAX_BYTES_ANNOTATION, INACTIVE_ANNOTATION, REQUIRED_GROUPS_ANNOTATION];
/// Prefixes of the paths that an inactive logical cluster answers.
const ALWAYS_ACTIVE: [&str; 2] = ["/openapi", "/apis/core.kcp.io/v1alpha1/logicalclusters"];
/// Longest list of required groups, in bytes.
const MAX_REQUIRED_GROUPS: usize = 4096;

/// Limits of one workspace; the server's apply where it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceLimits {
    /// Limit of objects.
    pub objects: Option<u64>,
    /// Limit of bytes.
    pub bytes: Option<u64>,
    /// True if it answers no requests.
    pub inactive: bool,
    /// Groups that it requires.
    pub required_groups: Option<String>,
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
            inactive: object::annotation(workspace, INACTIVE_ANNOTATION) == Some("true"),
            required_groups: required_groups(workspace)?,
        })
    }

    /// Returns the limits of a new workspace below one with such limits: the required groups are inherited unless it
    /// has its own.
    pub(crate) fn below(self, above: &LogicalCluster) -> Self {
        let inherited = || above.required_groups().map(str::to_owned);
        Self { required_groups: self.required_groups.or_else(inherited), ..self }
    }

    /// Returns the annotations that show the limits.
    pub(crate) fn annotations(&self) -> impl Iterator<Item = (&'static str, String)> {
        let number = |limit: Option<u64>| limit.map(|limit| limit.to_string());
        let all = [
            (MAX_OBJECTS_ANNOTATION, number(self.objects)),
            (MAX_BYTES_ANNOTATION, number(self.bytes)),
            (INACTIVE_ANNOTATION, self.inactive.then(|| "true".to_owned())),
            (REQUIRED_GROUPS_ANNOTATION, self.required_groups.clone()),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?)))
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the effective limits; `most` is the server's default.
    fn within(&self, most: StoredUsage) -> StoredUsage {
        StoredUsage { objects: self.objects.unwrap_or(most.objects), bytes: self.bytes.unwrap_or(most.bytes) }
    }
}

fn required_groups(workspace: &Value) -> Result<Option<String>, StatusCause> {
    let Some(text) = object::annotation(workspace, REQUIRED_GROUPS_ANNOTATION) else { return Ok(None) };
    let names_groups = text.split([',', ';']).all(|group| !group.trim().is_empty());
    if names_groups && text.len() <= MAX_REQUIRED_GROUPS {
        return Ok(Some(text.to_owned()));
    }
    let why = format!("must be groups separated by , or ;, in at most {MAX_REQUIRED_GROUPS} bytes");
    Err(StatusCause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {text:.80?}: {why}"),
        field: format!("metadata.annotations[{REQUIRED_GROUPS_ANNOTATION}]"),
    })
}

fn bytes(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<Quantity>().ok()?.units()).ok()
}

impl LogicalCluster {
    /// Returns the account that limits it, unless it is root; `most` is the server's default.
    pub(crate) fn account(&self, most: StoredUsage) -> Option<AccountLimit> {
        let parent = Some(self.parent?);
        let most = self.limits.as_ref().map_or(most, |limits| limits.within(most));
        Some(AccountLimit { cluster: self.id, parent, most })
    }

    /// Returns true if it answers no requests.
    pub(crate) fn is_inactive(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.inactive)
    }

    /// Checks that it answers requests for a path in it. As in kcp, an inactive one answers those for its own
    /// LogicalCluster and for OpenAPI.
    ///
    /// # Errors
    /// 403 while it is inactive.
    pub(crate) fn check_active(&self, path: &str) -> Result<(), Status> {
        if !self.is_inactive() || ALWAYS_ACTIVE.iter().any(|prefix| path.starts_with(prefix)) {
            return Ok(());
        }
        let resource = GroupResource::new("core.kcp.io", "logicalclusters");
        Err(Status::forbidden(&resource, &self.id.to_string(), "logical cluster is marked inactive"))
    }

    /// Returns the groups that it requires of users, in the form of the annotation.
    pub(crate) fn required_groups(&self) -> Option<&str> {
        self.limits.as_ref()?.required_groups.as_deref()
    }
}

impl Directory {
    /// Returns the accounts of a logical cluster and its ancestors, except root, which has none.
    pub(crate) fn accounts(&self, cluster: LogicalClusterId, most: StoredUsage) -> Vec<AccountLimit> {
        let index = self.index.read();
        let (mut accounts, mut next) = (Vec::new(), Some(cluster));
        while let Some(account) = next.and_then(|id| index.by_id(id)?.account(most)) {
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
            (REQUIRED_GROUPS_ANNOTATION, ""),
            (REQUIRED_GROUPS_ANNOTATION, "a,;b"),
        ] {
            let refused = of(json!({key: text})).unwrap_err();
            assert_eq!(refused.field, format!("metadata.annotations[{key}]"), "{text}");
        }
        let all =
            json!({MAX_OBJECTS_ANNOTATION: "7", INACTIVE_ANNOTATION: "true", REQUIRED_GROUPS_ANNOTATION: "a;b,c"});
        let shown: serde_json::Map<_, _> =
            of(all.clone()).unwrap().annotations().map(|(key, value)| (key.to_owned(), value.into())).collect();
        assert_eq!(Value::Object(shown), all);
        assert!(of(json!({INACTIVE_ANNOTATION: "false"})).unwrap().is_none());
    }
}
