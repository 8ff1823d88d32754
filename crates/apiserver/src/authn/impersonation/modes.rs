//! Who may be impersonated: by the narrow modes of constrained impersonation (KEP-5284), of which each is for one sort of users
//! and for one verb of what is asked, or by the old verb `impersonate`, which is for all.

use portolan_machinery::rbac::{MASTERS, User};
use portolan_types::{LogicalClusterId, Status, labels, names::check_dns_label, quoted::go_quoted};

use crate::{attributes::Attributes, authz::Authorizer};

use super::{
    super::{AUTHENTICATED, Identity, UNAUTHENTICATED},
    Impersonation,
};

/// Keys that authenticators give a meaning.
const RESERVED_EXTRA: [&str; 3] = ["kubernetes.io/", "kcp.io/", "portolan.dev/"];
/// Where the token of a service account says on which node its pod runs.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// From so many groups or attributes on is asked first whether all may be impersonated at once.
const MANY: usize = 4;
/// The group of nodes. Who acts as a node has it unasked, so no shared binding may name it.
const NODES: &str = "system:nodes";

/// A mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// A service account acts as the node that its pod runs on.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    /// Whoever is neither node nor service account.
    UserInfo,
    /// Anybody, whatever is asked.
    Legacy,
}

/// In the order in which they are tried.
const MODES: [Mode; 5] =
    [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Legacy];

impl Mode {
    /// Its name in verbs; the old one has none.
    fn name(self) -> Option<&'static str> {
        match self {
            Self::AssociatedNode => Some("associated-node"),
            Self::ArbitraryNode => Some("arbitrary-node"),
            Self::ServiceAccount => Some("serviceaccount"),
            Self::UserInfo => Some("user-info"),
            Self::Legacy => None,
        }
    }

    /// Whether it is for such a user. Of nodes and accounts only the name may be said.
    fn is_for(self, wanted: &User, asker: &User) -> bool {
        let name_alone = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let (node, account) = (node_of(&wanted.name), account_of(&wanted.name));
        match self {
            Self::AssociatedNode => name_alone && node.is_some() && node == own_node(asker),
            Self::ArbitraryNode => name_alone && node.is_some(),
            Self::ServiceAccount => name_alone && account.is_some(),
            Self::UserInfo => node.is_none() && account.is_none(),
            Self::Legacy => true,
        }
    }

    /// The verb `impersonate` of this mode, on a resource.
    fn asks(self, group: &str, resource: &str, subresource: &str, name: &str) -> Attributes {
        Attributes {
            verb: self.name().map_or_else(|| "impersonate".into(), |mode| format!("impersonate:{mode}")),
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            name: name.into(),
            ..Attributes::default()
        }
    }

    /// The group of users, groups and accounts.
    fn group(self) -> &'static str {
        if self == Self::Legacy { "" } else { AUTHENTICATION }
    }
}

const AUTHENTICATION: &str = "authentication.k8s.io";

/// The identity that `asker` may act as in `cluster`, for a request with these attributes.
///
/// # Errors
/// 403 of the first mode for such a user, when none allows it. Whatever rules say, only members of `system:masters` may ask for what
/// [`is_reserved`]: users under `system:` but for accounts, and for nodes in the modes for these; groups under `system:` but for those
/// of accounts.
pub(crate) async fn authorize(
    authorizer: &dyn Authorizer,
    (cluster, asker): (LogicalClusterId, &User),
    Impersonation { user: wanted }: Impersonation,
    request: &Attributes,
) -> Result<Identity, Status> {
    let mut refused = None;
    for mode in MODES.into_iter().filter(|mode| mode.is_for(&wanted, asker)) {
        let question = Question { authorizer, cluster, asker, mode };
        match question.ask(&wanted, request).await {
            Ok(()) => {
                let account = account_of(&wanted.name);
                let home = (account.is_some() || !asker.is_in(MASTERS)).then_some(cluster);
                let user = User { groups: groups_of(mode, &wanted), ..wanted };
                return Ok(Identity { home, impersonated: true, ..Identity::global(user) });
            }
            Err(why) => {
                refused.get_or_insert(why);
            }
        }
    }
    Err(refused.expect("the last mode is for all users"))
}

/// Whether somebody may impersonate in a mode.
struct Question<'a> {
    authorizer: &'a dyn Authorizer,
    cluster: LogicalClusterId,
    asker: &'a User,
    mode: Mode,
}

impl Question<'_> {
    async fn ask(&self, wanted: &User, request: &Attributes) -> Result<(), Status> {
        if let Some(mode) = self.mode.name() {
            let verb = format!("impersonate-on:{mode}:{}", request.verb);
            self.allowed(&Attributes { verb, ..request.clone() }).await?;
        }
        self.may_be(&self.named(&wanted.name)).await?;
        if !wanted.uid.is_empty() {
            self.may_be(&self.mode.asks(AUTHENTICATION, "uids", "", &wanted.uid)).await?;
        }
        self.groups(wanted).await?;
        self.extra(wanted).await
    }

    /// What is asked of a name.
    fn named(&self, name: &str) -> Attributes {
        let (mode, group) = (self.mode, self.mode.group());
        let node = node_of(name).filter(|_| mode != Mode::Legacy);
        match (node, account_of(name)) {
            // It is the same right on every node.
            (Some(_), _) if mode == Mode::AssociatedNode => mode.asks(group, "nodes", "", "*"),
            (Some(node), _) => mode.asks(group, "nodes", "", node),
            (None, Some((namespace, name))) => {
                Attributes { namespace: namespace.into(), ..mode.asks(group, "serviceaccounts", "", name) }
            }
            (None, None) => mode.asks(group, "users", "", name),
        }
    }

    async fn groups(&self, wanted: &User) -> Result<(), Status> {
        let asks = |name: &str| self.mode.asks(self.mode.group(), "groups", "", name);
        if self.mode != Mode::Legacy {
            if wanted.groups.iter().any(String::is_empty) {
                return Err(self.denied(&asks(""), "impersonating the empty string group is not allowed"));
            }
            if wanted.is_in(MASTERS) {
                return Err(self.denied(&asks(MASTERS), "impersonating the system:masters group is not allowed"));
            }
        }
        let each: Vec<Attributes> = wanted.groups.iter().map(|group| asks(group)).collect();
        self.may_be_all(&each, &asks("*")).await
    }

    async fn extra(&self, wanted: &User) -> Result<(), Status> {
        let asks = |key: &str, value: &str| self.mode.asks(AUTHENTICATION, "userextras", key, value);
        if self.mode != Mode::Legacy
            && let Some(why) = wanted.extra.iter().find_map(|(key, values)| extra_fault(key, values))
        {
            return Err(self.denied(&asks("", ""), &why));
        }
        let each: Vec<Attributes> =
            wanted.extra.iter().flat_map(|(key, values)| values.iter().map(move |value| asks(key, value))).collect();
        self.may_be_all(&each, &asks("*", "*")).await
    }

    /// Asks about all at once where they are many, and then about each. What is reserved is asked for by itself.
    async fn may_be_all(&self, each: &[Attributes], all: &Attributes) -> Result<(), Status> {
        let at_once = self.mode != Mode::Legacy && each.len() >= MANY && !each.iter().any(|one| self.escapes(one));
        if at_once && self.allowed(all).await.is_ok() {
            return Ok(());
        }
        for one in each {
            self.may_be(one).await?;
        }
        Ok(())
    }

    async fn may_be(&self, check: &Attributes) -> Result<(), Status> {
        self.allowed(check).await?;
        if self.escapes(check) { Err(self.denied(check, "")) } else { Ok(()) }
    }

    async fn allowed(&self, check: &Attributes) -> Result<(), Status> {
        let verdict = self.authorizer.authorize(self.cluster, self.asker, check).await?;
        if verdict.is_allowed() { Ok(()) } else { Err(self.denied(check, "")) }
    }

    fn denied(&self, check: &Attributes, why: &str) -> Status {
        check.denial(self.asker, why)
    }

    /// Whether it would lead out of what a logical cluster can grant.
    fn escapes(&self, check: &Attributes) -> bool {
        !self.asker.is_in(MASTERS) && is_reserved(check)
    }
}

/// What no rule of a logical cluster can grant. The groups that a node or an account has unasked are none of it.
fn is_reserved(check: &Attributes) -> bool {
    match check.resource.as_str() {
        "groups" => check.name.starts_with("system:") && !check.name.starts_with("system:serviceaccounts"),
        "users" => check.name.starts_with("system:"),
        "userextras" => RESERVED_EXTRA.iter().any(|reserved| check.subresource.contains(reserved)),
        _ => false,
    }
}

/// What the narrow modes do not take as an attribute.
fn extra_fault(key: &str, values: &[String]) -> Option<String> {
    let invalid = |part: &str, why: &str| {
        Some(format!(
            "impersonating an invalid key in extra is not allowed: extra.key: Invalid value: {}: {why}",
            go_quoted(part)
        ))
    };
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".into());
    }
    let Some((host, path)) = key.split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty()) else {
        return invalid(key, "must be a domain-prefixed path (such as \"acme.io/foo\")");
    };
    if !labels::is_subdomain(host) {
        return invalid(host, labels::SUBDOMAIN_RULE);
    }
    if !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte)) {
        return invalid(path, "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')");
    }
    if key != key.to_lowercase() {
        return Some(format!("impersonating a non-lowercase key in extra is not allowed: {}", go_quoted(key)));
    }
    if values.is_empty() {
        return Some("impersonating empty values in extra is not allowed".into());
    }
    let has_empty = values.iter().any(String::is_empty);
    has_empty.then(|| "impersonating the empty string value in extra is not allowed".into())
}

/// The node whose user has this name.
fn node_of(name: &str) -> Option<&str> {
    name.strip_prefix("system:node:").filter(|node| labels::is_subdomain(node))
}

/// Namespace and name of the service account whose user has this name.
fn account_of(name: &str) -> Option<(&str, &str)> {
    let (namespace, name) = name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (check_dns_label(namespace).is_ok() && labels::is_subdomain(name)).then_some((namespace, name))
}

/// The node that the pod of a service account runs on.
fn own_node(asker: &User) -> Option<&str> {
    account_of(&asker.name)?;
    match asker.extra.get(NODE_NAME).map(Vec::as_slice) {
        Some([node]) => Some(node),
        _ => None,
    }
}

/// The groups of whoever is impersonated. Those of nodes and accounts are known.
fn groups_of(mode: Mode, wanted: &User) -> Vec<String> {
    let mut groups = wanted.groups.clone();
    if matches!(mode, Mode::AssociatedNode | Mode::ArbitraryNode) {
        groups = vec![NODES.into()];
    }
    if let (Some((namespace, _)), true) = (account_of(&wanted.name), groups.is_empty()) {
        groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
    }
    let group = match wanted.name.as_str() {
        "system:anonymous" => UNAUTHENTICATED,
        // Whoever is given that group is not authenticated.
        _ if groups.iter().any(|group| group == UNAUTHENTICATED) => return groups,
        _ => AUTHENTICATED,
    };
    if !groups.iter().any(|own| own == group) {
        groups.push(group.into());
    }
    groups
}

#[cfg(test)]
mod tests {
    use portolan_machinery::rbac::bootstrap;

    use super::*;

    fn user(name: &str, groups: &[&str]) -> User {
        User { name: name.into(), groups: groups.iter().map(|group| (*group).to_owned()).collect(), ..User::default() }
    }

    #[test]
    fn everybody_is_authenticated_or_not() {
        let (yes, no) = ("system:authenticated", "system:unauthenticated");
        let account = "system:serviceaccount:ns:a";
        for (mode, name, groups, expected) in [
            (Mode::UserInfo, "ann", vec![], vec![yes]),
            (Mode::UserInfo, "ann", vec!["a"], vec!["a", yes]),
            (Mode::Legacy, "ann", vec![yes], vec![yes]),
            (Mode::Legacy, "ann", vec![no], vec![no]),
            (Mode::UserInfo, "system:anonymous", vec![], vec![no]),
            (Mode::UserInfo, "system:anonymous", vec![yes], vec![yes, no]),
            (Mode::ServiceAccount, account, vec![], vec!["system:serviceaccounts", "system:serviceaccounts:ns", yes]),
            (Mode::Legacy, account, vec!["a"], vec!["a", yes]),
            (Mode::ArbitraryNode, "system:node:n", vec![], vec![NODES, yes]),
            (Mode::Legacy, "system:node:n", vec![], vec![yes]),
        ] {
            assert_eq!(groups_of(mode, &user(name, &groups)), expected, "{mode:?} {name} {groups:?}");
        }
    }

    #[test]
    fn whoever_acts_as_a_node_gets_nothing_by_a_shared_binding_for_nodes() {
        let bindings = &bootstrap().cluster_role_bindings;
        let subjects = bindings.iter().flat_map(|binding| binding["subjects"].as_array().into_iter().flatten());
        let names: Vec<&str> = subjects.map(|subject| subject["name"].as_str().unwrap()).collect();
        assert!(names.contains(&AUTHENTICATED), "{names:?}");
        assert!(!names.iter().any(|name| *name == NODES || node_of(name).is_some()), "{names:?}");
    }

    #[test]
    fn each_mode_is_for_one_sort_of_users() {
        let (node, account) = ("system:node:n", "system:serviceaccount:ns:a");
        let agent = User { extra: [(NODE_NAME.to_owned(), vec!["n".to_owned()])].into(), ..user(account, &[]) };
        for (wanted, asker, expected) in [
            (user("ann", &["a"]), user("eve", &[]), vec![Mode::UserInfo, Mode::Legacy]),
            (user(account, &[]), user("eve", &[]), vec![Mode::ServiceAccount, Mode::Legacy]),
            (user(account, &["a"]), user("eve", &[]), vec![Mode::Legacy]),
            (user("system:serviceaccount:ns:a:b", &[]), user("eve", &[]), vec![Mode::UserInfo, Mode::Legacy]),
            (user(node, &[]), user("eve", &[]), vec![Mode::ArbitraryNode, Mode::Legacy]),
            (user(node, &["a"]), user("eve", &[]), vec![Mode::Legacy]),
            (user("system:node:N!", &[]), user("eve", &[]), vec![Mode::UserInfo, Mode::Legacy]),
            (user(node, &[]), agent.clone(), vec![Mode::AssociatedNode, Mode::ArbitraryNode, Mode::Legacy]),
            (user("system:node:other", &[]), agent, vec![Mode::ArbitraryNode, Mode::Legacy]),
        ] {
            let modes: Vec<Mode> = MODES.into_iter().filter(|mode| mode.is_for(&wanted, &asker)).collect();
            assert_eq!(modes, expected, "{wanted:?} by {}", asker.name);
        }
    }

    #[test]
    fn attributes_have_keys_with_domains_and_values() {
        let fault = |key: &str, values: &[&str]| {
            let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
            extra_fault(key, &values)
        };
        assert_eq!(fault("example.com/a", &["x"]), None);
        for (key, values, expected) in [
            ("", vec!["x"], "impersonating the empty string key in extra is not allowed"),
            (
                "a",
                vec!["x"],
                "extra.key: Invalid value: \"a\": must be a domain-prefixed path (such as \"acme.io/foo\")",
            ),
            ("a_b/c", vec!["x"], "extra.key: Invalid value: \"a_b\": a lowercase RFC 1123 subdomain must consist of"),
            ("a.b/c d", vec!["x"], "extra.key: Invalid value: \"c d\": Invalid path"),
            ("a.b/C", vec!["x"], "impersonating a non-lowercase key in extra is not allowed: \"a.b/C\""),
            ("a.b/c", vec![], "impersonating empty values in extra is not allowed"),
            ("a.b/c", vec!["x", ""], "impersonating the empty string value in extra is not allowed"),
        ] {
            let found = fault(key, &values).unwrap();
            assert!(found.contains(expected), "{key}: {found}");
        }
    }
}
