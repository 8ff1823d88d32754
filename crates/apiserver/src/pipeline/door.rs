//! The stages before a body is looked at: what the URL says, who asks, in which logical cluster, and whether they may.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, request::Parts};
use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, Status, duration};
use tokio::time::Instant;

use crate::{
    ApiServer, User,
    admission::Brief,
    attributes::Attributes,
    authn::{Identity, Impersonation, Peer, authorize_impersonation},
    authz::Verdict,
    call::{Call, method_not_allowed},
    directory::LogicalCluster,
    limits::{Charge, Whose},
    metrics::Labels,
    notes::Notes,
    options::selected_name,
    path::{MAX_TARGET, Named, Target},
    query::Query,
    routes::{self, Captures, Endpoint, Policy, Route},
    warnings::Warnings,
};

use super::missing;

const ALWAYS_ALLOWED: [&str; 3] = ["/healthz", "/readyz", "/livez"];

/// What the URL says.
pub(super) struct Entry {
    pub(super) named: Named,
    pub(super) path: String,
    pub(super) query: Query,
    pub(super) method: Method,
    /// `None` for unknown paths: they are authorized like any other path before they are not found.
    pub(super) route: Option<&'static Route>,
    pub(super) captures: Captures,
    pub(super) attributes: Arc<Attributes>,
}

/// An authorized request without its body.
pub(super) struct Admitted {
    entry: Entry,
    endpoint: Endpoint,
    identity: Identity,
    pub(super) cluster: Arc<LogicalCluster>,
    /// Logical cluster that has the request in its share.
    charged: Arc<LogicalCluster>,
}

/// Takes the URL apart.
pub(super) fn read(parts: &Parts) -> Result<Entry, Status> {
    let text = parts.uri.path_and_query().map_or("", |p| p.as_str());
    if text.len() > MAX_TARGET {
        return Err(Status::bad_request(format!("the request URL is longer than {MAX_TARGET} bytes")));
    }
    let mut target = Target::parse(parts.uri.path())?;
    let mut query = Query::parse(parts.uri.query())?;
    let path = target.rest();
    let watched = match parts.method == Method::GET {
        true => watch_by_path(&mut target.segments, &mut query),
        false => None,
    };
    let (route, captures) = routes::find(&target.segments).unzip();
    let mut captures = captures.unwrap_or_default();
    captures.watched = watched;
    let attributes = Arc::new(attributes(&parts.method, route, &captures, &path, &query));
    Ok(Entry { named: target.cluster, path, query, method: parts.method.clone(), route, captures, attributes })
}

/// Watches by the old paths, `/api/v1/watch/namespaces/a/pods/p`, are what they would be by parameters. The name of the one
/// object that is watched like that.
fn watch_by_path(segments: &mut Vec<String>, query: &mut Query) -> Option<String> {
    let at = if segments.first().is_some_and(|first| first == "api") { 2 } else { 3 };
    if segments.get(at).is_none_or(|word| word != "watch") {
        return None;
    }
    let mut plain = segments.clone();
    plain.remove(at);
    let name = match routes::find(&plain).map(|(route, _)| route.endpoint) {
        Some(Endpoint::Collection) => None,
        Some(Endpoint::Object) => plain.pop(),
        _ => return None,
    };
    if let Some(name) = name.as_ref().filter(|_| query.text("fieldSelector").is_empty()) {
        query.put("fieldSelector", format!("metadata.name={name}"));
    }
    query.put("watch", "true".into());
    *segments = plain;
    name
}

fn attributes(method: &Method, route: Option<&Route>, captures: &Captures, path: &str, query: &Query) -> Attributes {
    let Some(route) = route.filter(|route| route.policy == Policy::Resource) else {
        return Attributes::of_path(&method.as_str().to_lowercase(), path);
    };
    let verb = verb(method, route.endpoint, query);
    let mut name = captures.name.clone();
    if matches!(verb, "list" | "watch") {
        name = captures.watched.clone().or_else(|| selected_name(query)).unwrap_or_default();
    }
    Attributes {
        verb: verb.into(),
        group: captures.group.clone(),
        version: captures.version.clone(),
        resource: captures.resource.clone(),
        subresource: captures.subresource.clone(),
        namespace: captures.namespace.clone(),
        name,
        path: path.into(),
        is_path: false,
    }
}

fn verb(method: &Method, endpoint: Endpoint, query: &Query) -> &'static str {
    let collection = endpoint == Endpoint::Collection;
    match (method.as_str(), collection) {
        ("GET" | "HEAD", true) if query.flag("watch") => "watch",
        ("GET" | "HEAD", true) => "list",
        ("GET" | "HEAD", false) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "deletecollection",
        ("DELETE", false) => "delete",
        _ => "",
    }
}

/// Who asks.
pub(super) async fn authenticate(api: &ApiServer, peer: &Peer, headers: &mut HeaderMap) -> Result<Identity, Status> {
    let started = Instant::now();
    let found = api.authenticator.authenticate(peer, headers).await;
    api.metrics.access.authenticated(&found, started.elapsed());
    found
}

/// Resolves the logical cluster, the impersonated user, and decides.
pub(super) async fn admit(
    api: &ApiServer,
    entry: Entry,
    identity: Identity,
    headers: &mut HeaderMap,
) -> Result<Admitted, Status> {
    let server_wide = entry.route.is_some_and(|route| route.policy == Policy::Server);
    if entry.named == Named::Every && !server_wide {
        return Err(everywhere(&entry, &identity));
    }
    let named = if server_wide { &Named::Path(portolan_types::LogicalClusterPath::root()) } else { &entry.named };
    let cluster = api.directory.resolve(named, identity.home);
    // An identity of one logical cluster is nobody in the others; which of them exist is not told.
    let foreign =
        identity.home.filter(|_| !server_wide).is_some_and(|home| cluster.as_ref().is_none_or(|c| c.id != home));
    if foreign {
        return Err(Status::unauthorized());
    }
    let Some(cluster) = cluster else { return Box::pin(admit_nowhere(api, entry, identity, headers)).await };
    // Server-wide paths are decided by root's bindings, which must not take a namesake from elsewhere for their own.
    let identity = match identity.home.is_some_and(|home| home != cluster.id) {
        true => Identity::anonymous(),
        false => identity,
    };
    let identity = match Impersonation::take(headers)? {
        Some(wanted) => {
            let asker = (cluster.id, &identity.user);
            let acting =
                Box::pin(authorize_impersonation(&*api.rbac, asker, wanted.clone(), &entry.attributes)).await?;
            acting.taken_on(identity, wanted)
        }
        None => identity,
    };
    let started = Instant::now();
    let deciding = if server_wide { LogicalClusterId::ROOT } else { cluster.id };
    let verdict = match is_always_allowed(&entry) {
        true => Verdict::Allowed(String::new()),
        false => api.rbac.authorize_identity(deciding, &identity, &entry.attributes).await?,
    };
    api.metrics.access.authorized(verdict.is_allowed(), started.elapsed());
    if let Verdict::Denied(why) = verdict {
        return Err(entry.attributes.denial(&identity.user, &why));
    }
    let route = entry.route.ok_or_else(|| routes::nothing_at(&entry.path))?;
    let (is_get, for_get_alone) = (entry.method == Method::GET, is_for_get_alone(&entry.path));
    let fits = match route.policy {
        Policy::Resource => true,
        // Upstream's own handlers of discovery, OpenAPI and health do not look at the method.
        Policy::Path => is_get || !for_get_alone,
        Policy::Server => is_get || entry.is_health() || entry.method == Method::HEAD && !for_get_alone,
    };
    if !fits {
        return Err(method_not_allowed());
    }
    Ok(Admitted { endpoint: route.endpoint, entry, identity, charged: cluster.clone(), cluster })
}

/// Documents that upstream's router serves, by GET and no other method: the version, what versions have, and the keys of tokens; but
/// not the list of groups, nor of a group, which handlers of their own answer.
fn is_for_get_alone(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    path == "/version"
        || path == "/api"
        || path == "/openid/v1/jwks"
        || path == "/.well-known/openid-configuration"
        || path.starts_with("/api/")
        || path.matches('/').count() == 3 && path.starts_with("/apis/")
}

/// Whether everybody may ask, without a look at RBAC, which lies in the store: kube-apiserver's
/// `--authorization-always-allow-paths`, as it is when nothing else is said.
fn is_always_allowed(entry: &Entry) -> bool {
    entry.is_health() && ALWAYS_ALLOWED.contains(&entry.path.as_str())
}

/// Lets in what asks for discovery alone, see [`missing`].
async fn admit_nowhere(
    api: &ApiServer,
    entry: Entry,
    identity: Identity,
    headers: &mut HeaderMap,
) -> Result<Admitted, Status> {
    let cluster = missing::stand_in(api, &entry, &identity, headers).await?;
    let charged = missing::charged(api, &cluster, &entry.named);
    let route = entry.route.ok_or_else(|| routes::nothing_at(&entry.path))?;
    Ok(Admitted { endpoint: route.endpoint, entry, identity, cluster, charged })
}

/// Requests to all logical clusters at once: only reads could be meant, and nobody from outside may.
fn everywhere(entry: &Entry, identity: &Identity) -> Status {
    match entry.attributes.verb.as_str() {
        "list" | "watch" => entry.attributes.denial(&identity.user, ""),
        _ if entry.attributes.is_resource() => method_not_allowed(),
        _ => entry.attributes.denial(&identity.user, ""),
    }
}

impl Entry {
    /// Health is asked for when all else is full, or stands still.
    pub(super) fn is_health(&self) -> bool {
        let endpoint = self.route.map(|route| route.endpoint);
        matches!(endpoint, Some(Endpoint::Livez | Endpoint::Readyz | Endpoint::Healthz))
    }
}

impl Admitted {
    pub(super) fn verb(&self) -> &str {
        &self.entry.attributes.verb
    }

    pub(super) fn is_watch(&self) -> bool {
        self.entry.attributes.verb == "watch"
    }

    pub(super) fn is_write(&self) -> bool {
        !matches!(self.entry.attributes.verb.as_str(), "get" | "list" | "watch" | "head")
    }

    pub(super) fn user(&self) -> &User {
        &self.identity.user
    }

    pub(super) fn is_long_running(&self) -> bool {
        is_long_running(&self.entry.attributes)
    }

    pub(super) fn is_health(&self) -> bool {
        self.entry.is_health()
    }

    pub(super) fn is_backup(&self) -> bool {
        self.endpoint == Endpoint::Snapshot
    }

    /// How long the request may take: as asked, within the server's bound.
    ///
    /// # Errors
    /// 400 when it asks for no time.
    pub(super) fn time_limit(&self, api: &ApiServer) -> Result<Duration, Status> {
        let limits = &api.config.limits;
        let bound = if self.is_write() { limits.write_timeout } else { limits.read_timeout };
        let text = self.entry.query.text("timeout");
        if text.is_empty() || self.is_long_running() {
            return Ok(bound);
        }
        let asked = go_duration(text).map_err(|why| {
            Status::bad_request(format!("invalid timeout specified in the request URL - time: {why}"))
        })?;
        Ok(if asked.is_zero() { bound } else { asked.min(bound) })
    }

    pub(super) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Whose seats it takes.
    pub(super) fn whose(&self, api: &ApiServer) -> Whose<'_> {
        Whose { tenant: api.directory.tenant(&self.charged), cluster: self.charged.id, user: self.user() }
    }

    pub(super) fn into_call(
        self,
        (parts, body): (Parts, Bytes),
        deadline: Instant,
        charge: Charge,
        labels: Labels,
    ) -> Call {
        let Entry { path, query, method, captures, attributes, .. } = self.entry;
        Call {
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
            attributes,
            labels,
            warnings: Warnings::default(),
            notes: Notes::default(),
            brief: Brief::default(),
        }
    }
}

/// Watches, streams and snapshots are not held to the time of a request.
pub(crate) fn is_long_running(attributes: &Attributes) -> bool {
    let streams = ["log", "exec", "attach", "portforward", "proxy"];
    attributes.verb == "watch"
        || attributes.path == "/snapshot"
        || (attributes.is_resource() && streams.contains(&attributes.subresource.as_str()))
}

/// `30s`, `1m30s`, `1h`, as Go writes durations; nothing for those below zero.
///
/// # Errors
/// What Go says of other texts.
fn go_duration(text: &str) -> Result<Duration, String> {
    let nanos = duration::parse(text)?;
    Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_paths_of_watches_are_watches_with_parameters() {
        for (path, expected, selector) in [
            ("/api/v1/watch/namespaces/a/pods", "/api/v1/namespaces/a/pods", ""),
            ("/api/v1/watch/namespaces/a/pods/p", "/api/v1/namespaces/a/pods", "metadata.name=p"),
            ("/api/v1/watch/namespaces", "/api/v1/namespaces", ""),
            ("/apis/apps/v1/watch/deployments", "/apis/apps/v1/deployments", ""),
        ] {
            let (mut target, mut query) = (Target::parse(path).unwrap(), Query::default());
            let watched = watch_by_path(&mut target.segments, &mut query);
            assert_eq!((target.rest().as_str(), query.text("fieldSelector")), (expected, selector), "{path}");
            assert_eq!(watched.is_some(), !selector.is_empty(), "{path}");
            assert!(query.flag("watch"), "{path}");
        }
        for path in
            ["/api/v1/namespaces/watch", "/api/v1/watch", "/apis/apps/v1/watch/namespaces/a/deployments/d/scale"]
        {
            let (mut target, mut query) = (Target::parse(path).unwrap(), Query::default());
            assert_eq!(watch_by_path(&mut target.segments, &mut query), None);
            assert_eq!((target.rest().as_str(), query.flag("watch")), (path, false));
        }
    }

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
