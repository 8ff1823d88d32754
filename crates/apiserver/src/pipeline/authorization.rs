//! Stages between the request line and the body: authenticate, resolve the logical cluster, authorize.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, request::Parts};
use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, Status, duration};
use tokio::time::Instant;

use crate::{
    User,
    authn::{AccessContext, AskingUser, Identity, Impersonation, Peer, authorize_impersonation},
    authz::AuthorizationDecision,
    directory::{Directory, LogicalCluster},
    hooks::{InlineBudget, annotations::AuditAnnotations, warnings::Warnings},
    kinds::DefinitionCatalog,
    limits::{FlowKey, Limits, MemoryCharge},
    metrics::{AuthenticatedUser, RequestLabels},
    permission_policy::PolicySources,
    request::{RequestContext, method_not_allowed},
    routing::{
        attributes::Attributes,
        path::RequestedCluster,
        routes::{self, RouteEndpoint, RoutePolicy},
    },
    views::ApiView,
};

use super::{
    agents, all_clusters, console, flattened, head::RequestHead, lifecycle, missing_workspace,
    proxied_paths::PathRewriter, view,
};

const ALWAYS_ALLOWED: [&str; 3] = ["/healthz", "/readyz", "/livez"];

/// Context of the authorization of a request.
#[derive(Clone, Copy)]
pub(super) struct AuthorizationContext<'a> {
    pub(super) access: &'a AccessContext,
    /// Kinds, whose resources have precedence over aliases of paths.
    pub(super) kinds: &'a DefinitionCatalog,
}

/// Authorized request without its body.
pub(super) struct AuthorizedRequest {
    pub(super) head: RequestHead,
    pub(super) endpoint: RouteEndpoint,
    pub(super) identity: Identity,
    pub(super) cluster: Arc<LogicalCluster>,
    /// View that the request goes through.
    pub(super) view: Option<Arc<ApiView>>,
    /// Logical cluster that the request is charged to.
    pub(super) charged: Arc<LogicalCluster>,
}

/// Parts of a request that are known once its body is read.
pub(super) struct ReceivedRequest {
    pub(super) parts: Parts,
    pub(super) body: Bytes,
    pub(super) deadline: Instant,
    pub(super) charge: MemoryCharge,
    pub(super) labels: RequestLabels,
}

/// Authenticates the client.
pub(super) async fn authenticate(
    access: &AccessContext,
    peer: &Peer,
    headers: &mut HeaderMap,
    named: &RequestedCluster,
) -> Result<Identity, Status> {
    let started = Instant::now();
    let found = access.authenticator.authenticate(peer, headers, named).await;
    // Only service accounts belong to a single logical cluster.
    let user = found
        .as_ref()
        .map(|identity| AuthenticatedUser { name: &identity.user.name, is_service_account: identity.home.is_some() });
    access.metrics.access.authenticated(user, started.elapsed());
    found
}

/// Resolves the logical cluster and the impersonated user, and authorizes the request.
pub(super) async fn authorize_request(
    context: AuthorizationContext<'_>,
    head: RequestHead,
    identity: Identity,
    headers: &mut HeaderMap,
) -> Result<AuthorizedRequest, Status> {
    let access = context.access;
    if let Some(agents) = agents::AgentRequest::of(&head, &identity) {
        return agents.authorize(&access.directory, head, identity, headers);
    }
    if let Some(console) = console::ConsoleRequest::of(&head) {
        return console.authorize(&access.directory, head, identity, headers);
    }
    if identity.is_anonymous() && !access.authenticator.allows_anonymous(&head.path) {
        return Err(Status::unauthorized());
    }
    if let Some(export) = head.view.clone().filter(|_| head.is_flattened) {
        return Box::pin(flattened::authorize(context, export, head, (identity, headers))).await;
    }
    if let Some(step) = head.step.clone() {
        return Box::pin(lifecycle::authorize(context, *step, head, (identity, headers))).await;
    }
    if let Some(export) = head.view.clone() {
        return Box::pin(view::authorize(access, export, head, (identity, headers))).await;
    }
    let exchanges = is_exchange(&head.attributes);
    let rewriter = if exchanges { None } else { PathRewriter::of(context, &head, &identity) };
    let (head, mounted) = match rewriter {
        Some(rewriter) => Box::pin(rewriter.rewrite(head)).await?,
        None => (head, None),
    };
    let server_wide = exchanges || head.route.is_some_and(|route| route.policy == RoutePolicy::Server);
    if head.named == RequestedCluster::All && !server_wide {
        return Box::pin(all_clusters::authorize(access, head, identity, headers)).await;
    }
    let named =
        if server_wide { &RequestedCluster::Path(portolan_types::LogicalClusterPath::root()) } else { &head.named };
    let cluster = access.directory.resolve(named, identity.home);
    // An identity of one logical cluster is unknown in the others and does not learn which of them exist.
    let foreign =
        identity.home.filter(|_| !server_wide).is_some_and(|home| cluster.as_ref().is_none_or(|c| c.id != home));
    if foreign {
        return Err(Status::unauthorized());
    }
    let Some(cluster) = cluster else { return Box::pin(authorize_missing(access, head, identity, headers)).await };
    // The bindings of root decide on server-wide paths. A user of another logical cluster with the same name is a
    // different user there.
    let identity = if identity.home.is_some_and(|home| home != cluster.id) { Identity::anonymous() } else { identity };
    let identity = match Impersonation::take(headers)? {
        Some(wanted) => {
            let asker = AskingUser { cluster: cluster.id, user: &identity.user };
            let acting =
                Box::pin(authorize_impersonation(&*access.rbac, asker, wanted.clone(), &head.attributes)).await?;
            acting.impersonated_by(identity, wanted)
        }
        None => identity,
    };
    let started = Instant::now();
    let deciding = if server_wide { LogicalClusterId::ROOT } else { cluster.id };
    let verdict = if is_always_allowed(&head) {
        AuthorizationDecision::Allowed(String::new())
    } else {
        access.rbac.authorize_identity(deciding, &identity, &head.attributes).await?
    };
    access.metrics.access.authorized(verdict.is_allowed(), started.elapsed());
    let reason = match verdict {
        AuthorizationDecision::Allowed(reason) => reason,
        AuthorizationDecision::Denied(why) => {
            return Err(match mounted {
                Some(mounted) => mounted.refusal(access, &identity, &head.attributes).await?,
                None => head.attributes.denial(&identity.user, &why),
            });
        }
    };
    if !server_wide {
        cluster.check_active(&head.path)?;
    }
    if PolicySources::may_bound(&identity.user, &head.attributes) {
        let policies = PolicySources { store: &access.store, rbac: &access.rbac, kinds: context.kinds };
        Box::pin(policies.check(cluster.id, identity.requester(), &head.attributes)).await?;
    }
    let head = RequestHead { reason, ..head };
    let route = head.route.ok_or_else(|| routes::not_found_at(&head.path))?;
    let (is_get, get_only) = (head.method == Method::GET, is_get_only(&head.path));
    let fits = match route.policy {
        RoutePolicy::Resource => true,
        // kube-apiserver's own handlers of discovery, OpenAPI and health ignore the method.
        RoutePolicy::Path => is_get || !get_only,
        // Decided above.
        RoutePolicy::Agent | RoutePolicy::Console => true,
        RoutePolicy::Server => is_get || head.is_health() || head.method == Method::HEAD && !get_only,
    };
    if !fits {
        return Err(method_not_allowed());
    }
    Ok(AuthorizedRequest { endpoint: route.endpoint, head, identity, view: None, charged: cluster.clone(), cluster })
}

/// Returns true for paths that kube-apiserver's router serves by GET only: the version, the resources of a version, and
/// the token keys. The lists of groups have handlers of their own, which take any method.
fn is_get_only(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    path == "/version"
        || path == "/api"
        || path == "/openid/v1/jwks"
        || path == "/.well-known/openid-configuration"
        || path.starts_with("/api/")
        || path.matches('/').count() == 3 && path.starts_with("/apis/")
}

/// Returns true for the exchange of a token for a certificate. The certificate is valid in every logical cluster, so
/// the server answers it under each path, also of a mount or of none, and clients without credentials learn nothing.
fn is_exchange(attributes: &Attributes) -> bool {
    attributes.resource == "tokencredentialrequests"
        && attributes.group == "login.concierge.pinniped.dev"
        && attributes.verb == "create"
        && attributes.subresource.is_empty()
}

/// Returns true for paths that need no authorization, and so no read of RBAC from the store: the default of
/// kube-apiserver's `--authorization-always-allow-paths`.
fn is_always_allowed(head: &RequestHead) -> bool {
    head.is_health() && ALWAYS_ALLOWED.contains(&head.path.as_str())
}

/// Authorizes a request to a missing workspace, see [`missing_workspace`].
async fn authorize_missing(
    access: &AccessContext,
    head: RequestHead,
    identity: Identity,
    headers: &mut HeaderMap,
) -> Result<AuthorizedRequest, Status> {
    let cluster = missing_workspace::stand_in(access, &head, &identity, headers).await?;
    let charged = missing_workspace::charged(&access.directory, &cluster, &head.named);
    let route = head.route.ok_or_else(|| routes::not_found_at(&head.path))?;
    Ok(AuthorizedRequest { endpoint: route.endpoint, head, identity, view: None, cluster, charged })
}

impl AuthorizedRequest {
    pub(super) fn verb(&self) -> &str {
        &self.head.attributes.verb
    }

    /// Returns true for a request through a flattened view, whose body can contain names of the view.
    pub(super) fn is_flattened(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.flattened.is_some())
    }

    pub(super) fn is_watch(&self) -> bool {
        self.head.attributes.verb == "watch"
    }

    pub(super) fn is_write(&self) -> bool {
        !matches!(self.head.attributes.verb.as_str(), "get" | "list" | "watch" | "head")
    }

    pub(super) fn user(&self) -> &User {
        &self.identity.user
    }

    pub(super) fn is_long_running(&self) -> bool {
        self.head.attributes.is_long_running()
    }

    pub(super) fn is_health(&self) -> bool {
        self.head.is_health()
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.endpoint == RouteEndpoint::AgentTunnel
    }

    pub(super) fn is_backup(&self) -> bool {
        self.endpoint == RouteEndpoint::Snapshot
    }

    /// Returns the timeout of the request: as requested, up to the limit of the server.
    ///
    /// # Errors
    /// 400 when it is not a duration.
    pub(super) fn time_limit(&self, limits: &Limits) -> Result<Duration, Status> {
        let bound = if self.is_write() { limits.write_timeout } else { limits.read_timeout };
        let text = self.head.query.text("timeout");
        if text.is_empty() || self.is_long_running() {
            return Ok(bound);
        }
        let asked = go_duration(text).map_err(|why| {
            Status::bad_request(format!("invalid timeout specified in the request URL - time: {why}"))
        })?;
        Ok(if asked.is_zero() { bound } else { asked.min(bound) })
    }

    pub(super) fn head(&self) -> &RequestHead {
        &self.head
    }

    /// Returns the flow that the request is queued and charged under.
    pub(super) fn flow_key(&self, directory: &Directory) -> FlowKey<'_> {
        FlowKey { tenant: directory.tenant(&self.charged), cluster: self.charged.id, user: self.user() }
    }

    pub(super) fn into_call(self, received: ReceivedRequest) -> RequestContext {
        let ReceivedRequest { parts, body, deadline, charge, labels } = received;
        let RequestHead { path, query, method, captures, attributes, lifecycle, spans_all, .. } = self.head;
        RequestContext {
            method,
            endpoint: self.endpoint,
            captures,
            path,
            query,
            headers: parts.headers,
            extensions: Mutex::new(parts.extensions),
            uri: parts.uri,
            body,
            deadline,
            charge,
            identity: self.identity,
            cluster: self.cluster,
            view: self.view,
            lifecycle,
            spans_all,
            attributes,
            labels,
            warnings: Warnings::default(),
            notes: AuditAnnotations::default(),
            inline_budget: InlineBudget::default(),
        }
    }
}

/// Parses a Go duration such as `30s` or `1m30s`; negative ones are zero.
///
/// # Errors
/// Go's message for any other text.
fn go_duration(text: &str) -> Result<Duration, String> {
    let nanos = duration::parse(text)?;
    Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_go_durations() {
        for (text, expected) in [
            ("30s", Ok(30_000)),
            ("1m30s", Ok(90_000)),
            ("1.5h", Ok(5_400_000)),
            ("250ms", Ok(250)),
            ("0s", Ok(0)),
            ("0", Ok(0)),
            ("-5s", Ok(0)),
            ("+1s", Ok(1000)),
            (".5s", Ok(500)),
            ("", Err("invalid duration \"\"")),
            ("30", Err("missing unit in duration \"30\"")),
            ("5d", Err("unknown unit \"d\" in duration \"5d\"")),
            ("x", Err("invalid duration \"x\"")),
            ("1s-2s", Err("unknown unit \"s-\" in duration \"1s-2s\"")),
            ("5000000000000000h5000000000000000h", Err("invalid duration \"5000000000000000h5000000000000000h\"")),
        ] {
            let found = go_duration(text).map(|d| d.as_millis());
            assert_eq!(found, expected.map_err(str::to_owned), "{text}");
        }
    }
}
