//! Authorization of impersonation: the modes of constrained impersonation (KEP-5284), each for one type of user and
//! one verb of the request, and the legacy verb `impersonate` for all.

#[cfg(test)]
mod tests;

use portolan_strategy::rbac::{MASTERS, User};
use portolan_types::{LogicalClusterId, Status, labels, names::check_dns_label, quoted::go_quoted};

use crate::{authz::Authorizer, routing::attributes::Attributes};

use super::{
    super::{AUTHENTICATED, Identity, UNAUTHENTICATED},
    Impersonation,
};

/// Prefixes of extra keys that authenticators give a meaning.
const RESERVED_EXTRA: [&str; 3] = ["kubernetes.io/", "kcp.io/", "portolan.dev/"];
/// Extra key with the node of a service account's pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// Number of groups or extra values from which on permission for all of them is checked first.
const MANY: usize = 4;
/// Group of nodes. Impersonating a node implies it, so no shared binding may name it.
const NODES: &str = "system:nodes";

/// Impersonation mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImpersonationMode {
    /// A service account impersonates the node of its pod.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    /// Users that are neither nodes nor service accounts.
    UserInfo,
    /// Any user, by the legacy verb.
    Legacy,
}

/// Modes in the order in which they are tried.
const MODES: [ImpersonationMode; 5] = [
    ImpersonationMode::AssociatedNode,
    ImpersonationMode::ArbitraryNode,
    ImpersonationMode::ServiceAccount,
    ImpersonationMode::UserInfo,
    ImpersonationMode::Legacy,
];

impl ImpersonationMode {
    /// Returns the name in verbs; `None` for the legacy mode.
    fn name(self) -> Option<&'static str> {
        match self {
            Self::AssociatedNode => Some("associated-node"),
            Self::ArbitraryNode => Some("arbitrary-node"),
            Self::ServiceAccount => Some("serviceaccount"),
            Self::UserInfo => Some("user-info"),
            Self::Legacy => None,
        }
    }

    /// Returns true if the mode covers such a user. For nodes and accounts, only the name may be set.
    fn covers(self, wanted: &User, asker: &User) -> bool {
        let name_alone = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let (node, account) = (node_of(&wanted.name), account_of(&wanted.name));
        match self {
            Self::AssociatedNode => name_alone && node.is_some() && node == node_of_account(asker),
            Self::ArbitraryNode => name_alone && node.is_some(),
            Self::ServiceAccount => name_alone && account.is_some(),
            Self::UserInfo => node.is_none() && account.is_none(),
            Self::Legacy => true,
        }
    }

    /// Returns the attributes of the mode's `impersonate` verb on a resource.
    fn attributes_of(self, group: &str, resource: &str, subresource: &str, name: &str) -> Attributes {
        Attributes {
            verb: self.name().map_or_else(|| "impersonate".into(), |mode| format!("impersonate:{mode}")),
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            name: name.into(),
            ..Attributes::default()
        }
    }

    /// Returns the API group of users, groups and accounts.
    fn group(self) -> &'static str {
        if self == Self::Legacy { "" } else { AUTHENTICATION }
    }
}

const AUTHENTICATION: &str = "authentication.k8s.io";

/// User that wants to act as another one in a logical cluster.
#[derive(Clone, Copy)]
pub(crate) struct AskingUser<'a> {
    pub(crate) cluster: LogicalClusterId,
    pub(crate) user: &'a User,
}

/// Authorizes a user to act as the wanted identity for a request with these attributes.
///
/// # Errors
/// 403 of the first mode that covers the user, if no mode allows it. Reserved identities ([`is_reserved`]) are open to
/// members of `system:masters` only, whatever the rules say: users under `system:` except accounts, and except nodes in
/// their modes; groups under `system:` except the groups of ServiceAccounts.
pub(crate) async fn authorize(
    authorizer: &dyn Authorizer,
    asking: AskingUser<'_>,
    Impersonation { user: wanted }: Impersonation,
    request: &Attributes,
) -> Result<Identity, Status> {
    let (AskingUser { cluster, user: asker }, mut refused) = (asking, None);
    for mode in MODES.into_iter().filter(|mode| mode.covers(&wanted, asker)) {
        let check = ImpersonationCheck { authorizer, cluster, asker, mode };
        match check.ask(&wanted, request).await {
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

/// Check of impersonation in one mode.
struct ImpersonationCheck<'a> {
    authorizer: &'a dyn Authorizer,
    cluster: LogicalClusterId,
    asker: &'a User,
    mode: ImpersonationMode,
}

impl ImpersonationCheck<'_> {
    async fn ask(&self, wanted: &User, request: &Attributes) -> Result<(), Status> {
        if let Some(mode) = self.mode.name() {
            let verb = format!("impersonate-on:{mode}:{}", request.verb);
            self.allowed(&Attributes { verb, ..request.clone() }).await?;
        }
        self.may_be(&self.attributes_for_user(&wanted.name)).await?;
        if !wanted.uid.is_empty() {
            self.may_be(&self.mode.attributes_of(AUTHENTICATION, "uids", "", &wanted.uid)).await?;
        }
        self.groups(wanted).await?;
        self.extra(wanted).await
    }

    /// Returns the attributes for a user name.
    fn attributes_for_user(&self, name: &str) -> Attributes {
        let (mode, group) = (self.mode, self.mode.group());
        let node = node_of(name).filter(|_| mode != ImpersonationMode::Legacy);
        match (node, account_of(name)) {
            // One right covers all nodes.
            (Some(_), _) if mode == ImpersonationMode::AssociatedNode => mode.attributes_of(group, "nodes", "", "*"),
            (Some(node), _) => mode.attributes_of(group, "nodes", "", node),
            (None, Some((namespace, name))) => {
                Attributes { namespace: namespace.into(), ..mode.attributes_of(group, "serviceaccounts", "", name) }
            }
            (None, None) => mode.attributes_of(group, "users", "", name),
        }
    }

    async fn groups(&self, wanted: &User) -> Result<(), Status> {
        let attributes_of = |name: &str| self.mode.attributes_of(self.mode.group(), "groups", "", name);
        if self.mode != ImpersonationMode::Legacy {
            if wanted.groups.iter().any(String::is_empty) {
                return Err(self.denied(&attributes_of(""), "impersonating the empty string group is not allowed"));
            }
            if wanted.is_in(MASTERS) {
                return Err(
                    self.denied(&attributes_of(MASTERS), "impersonating the system:masters group is not allowed")
                );
            }
        }
        let each: Vec<Attributes> = wanted.groups.iter().map(|group| attributes_of(group)).collect();
        self.may_be_all(&each, &attributes_of("*")).await
    }

    async fn extra(&self, wanted: &User) -> Result<(), Status> {
        let attributes_of = |key: &str, value: &str| self.mode.attributes_of(AUTHENTICATION, "userextras", key, value);
        if self.mode != ImpersonationMode::Legacy
            && let Some(why) = wanted.extra.iter().find_map(|(key, values)| extra_fault(key, values))
        {
            return Err(self.denied(&attributes_of("", ""), &why));
        }
        let each: Vec<Attributes> = wanted
            .extra
            .iter()
            .flat_map(|(key, values)| values.iter().map(move |value| attributes_of(key, value)))
            .collect();
        self.may_be_all(&each, &attributes_of("*", "*")).await
    }

    /// Checks many attributes at once, then each. Reserved ones are checked separately.
    async fn may_be_all(&self, each: &[Attributes], all: &Attributes) -> Result<(), Status> {
        let at_once =
            self.mode != ImpersonationMode::Legacy && each.len() >= MANY && !each.iter().any(|one| self.escapes(one));
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

    /// Returns true for an identity that a logical cluster cannot grant.
    fn escapes(&self, check: &Attributes) -> bool {
        !self.asker.is_in(MASTERS) && is_reserved(check)
    }
}

/// Returns true for identities that rules of a logical cluster cannot grant. Groups implied by a node or an account
/// are exempt.
fn is_reserved(check: &Attributes) -> bool {
    match check.resource.as_str() {
        "groups" => check.name.starts_with("system:") && !check.name.starts_with("system:serviceaccounts"),
        "users" => check.name.starts_with("system:"),
        "userextras" => RESERVED_EXTRA.iter().any(|reserved| check.subresource.contains(reserved)),
        _ => false,
    }
}

/// Returns the reason why the constrained modes refuse an extra key or value.
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

/// Returns the node of a user name.
fn node_of(name: &str) -> Option<&str> {
    name.strip_prefix("system:node:").filter(|node| labels::is_subdomain(node))
}

/// Returns namespace and name of the service account of a user name.
fn account_of(name: &str) -> Option<(&str, &str)> {
    let (namespace, name) = name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (check_dns_label(namespace).is_ok() && labels::is_subdomain(name)).then_some((namespace, name))
}

/// Returns the node of a service account's pod.
fn node_of_account(asker: &User) -> Option<&str> {
    account_of(&asker.name)?;
    match asker.extra.get(NODE_NAME).map(Vec::as_slice) {
        Some([node]) => Some(node),
        _ => None,
    }
}

/// Returns the groups of the impersonated user. Those of nodes and accounts are implied.
fn groups_of(mode: ImpersonationMode, wanted: &User) -> Vec<String> {
    let mut groups = wanted.groups.clone();
    if matches!(mode, ImpersonationMode::AssociatedNode | ImpersonationMode::ArbitraryNode) {
        groups = vec![NODES.into()];
    }
    if let (Some((namespace, _)), true) = (account_of(&wanted.name), groups.is_empty()) {
        groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
    }
    let group = match wanted.name.as_str() {
        "system:anonymous" => UNAUTHENTICATED,
        // A user in the group of unauthenticated users is not added to that of authenticated ones.
        _ if groups.iter().any(|group| group == UNAUTHENTICATED) => return groups,
        _ => AUTHENTICATED,
    };
    if !groups.iter().any(|own| own == group) {
        groups.push(group.into());
    }
    groups
}
