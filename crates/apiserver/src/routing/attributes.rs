//! Attributes of a request for authorization.

use portolan_strategy::rbac::{Action, User};
use portolan_types::{GroupResource, Reason, Status, agent::TUNNEL_PATH, quoted::go_quoted};

/// Attributes of a request: the input of authorization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for paths the HTTP method.
    pub verb: String,
    /// API group, empty for core.
    pub group: String,
    /// Version of the group.
    pub version: String,
    /// Plural resource name; empty for a path, or for an access review without a resource.
    pub resource: String,
    /// Subresource, empty for none.
    pub subresource: String,
    /// Namespace, empty at cluster scope.
    pub namespace: String,
    /// Object name, empty when the request has none.
    pub name: String,
    /// Path within the logical cluster, for a request that is not about a resource.
    pub path: String,
    /// True for a path, false for a resource.
    pub is_path: bool,
}

impl Attributes {
    /// Returns the attributes of a verb on a path.
    pub fn of_path(verb: &str, path: &str) -> Self {
        Self { verb: verb.into(), path: path.into(), is_path: true, ..Self::default() }
    }

    /// Returns true for a resource, false for a path.
    pub fn is_resource(&self) -> bool {
        !self.is_path
    }

    /// Returns true for watches, streams and snapshots, which have no request timeout.
    pub(crate) fn is_long_running(&self) -> bool {
        let streams = ["log", "exec", "attach", "portforward", "proxy"];
        self.verb == "watch"
            || self.path == "/snapshot"
            || self.path == TUNNEL_PATH
            || (self.is_resource() && streams.contains(&self.subresource.as_str()))
    }

    /// Returns the action that RBAC rules are matched with.
    pub fn action(&self) -> Action<'_> {
        if self.is_resource() {
            Action::Resource {
                verb: &self.verb,
                group: &self.group,
                resource: &self.resource,
                subresource: &self.subresource,
                name: &self.name,
                namespace: &self.namespace,
            }
        } else {
            Action::Path { verb: &self.verb, path: &self.path }
        }
    }

    /// Returns the 403 in kube-apiserver's words; `why` is added unless it is empty.
    pub fn denial(&self, user: &User, why: &str) -> Status {
        let because = if why.is_empty() { String::new() } else { format!(": {why}") };
        if !self.is_resource() {
            let sentence = escape_markup(&format!(
                "User {} cannot {} path {}",
                go_quoted(&user.name),
                self.verb,
                go_quoted(&self.path)
            ));
            let message = format!("forbidden: {sentence}{because}");
            return Status::new(Reason::Forbidden, message).about(&GroupResource::new("", ""), "");
        }
        let resource = match self.subresource.as_str() {
            "" => self.resource.clone(),
            subresource => format!("{}/{subresource}", self.resource),
        };
        let place = match self.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {}", go_quoted(namespace)),
        };
        let sentence = escape_markup(&format!(
            "User {} cannot {} resource {} in API group {} {place}",
            go_quoted(&user.name),
            self.verb,
            go_quoted(&resource),
            go_quoted(&self.group)
        ));
        let sentence = format!("{sentence}{because}");
        let about = GroupResource::new(self.group.as_str(), self.resource.as_str());
        Status::forbidden(&about, &self.name, sentence)
    }
}

/// Escapes characters that a browser could interpret as markup.
fn escape_markup(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_read_as_kubernetes_users_know_them() {
        let user = User { name: "ann".into(), ..User::default() };
        let pods = Attributes {
            verb: "get".into(),
            resource: "pods".into(),
            subresource: "log".into(),
            namespace: "shop".into(),
            name: "p".into(),
            ..Attributes::default()
        };
        let nodes = Attributes { verb: "list".into(), resource: "nodes".into(), ..Attributes::default() };
        for (attributes, expected) in [
            (
                pods,
                r#"pods "p" is forbidden: User "ann" cannot get resource "pods/log" in API group "" in the namespace "shop""#,
            ),
            (
                nodes,
                r#"nodes is forbidden: User "ann" cannot list resource "nodes" in API group "" at the cluster scope"#,
            ),
            (Attributes::of_path("get", "/metrics"), r#"forbidden: User "ann" cannot get path "/metrics""#),
            (Attributes::of_path("get", "/<b>&"), r#"forbidden: User "ann" cannot get path "/&lt;b&gt;&amp;""#),
        ] {
            assert_eq!(attributes.denial(&user, "").message(), expected);
        }
        let why = Attributes::of_path("get", "/<b>").denial(&user, "no <a>");
        assert_eq!(why.message(), r#"forbidden: User "ann" cannot get path "/&lt;b&gt;": no <a>"#);
    }
}
