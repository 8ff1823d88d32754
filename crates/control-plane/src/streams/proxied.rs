//! Requests that are passed on whole: to the API server of a physical cluster, by the account for users, or to a port
//! of a pod or service, by the syncer's.

use std::{collections::HashSet, sync::Arc};

use http::{HeaderMap, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use portolan_apiserver::{
    Body, User,
    directory::LogicalCluster,
    hooks::{ProxyEndpoint, ProxyRequest, ProxyTarget, StreamPermit, UserToken},
};
use portolan_store::RangeScope;
use portolan_syncer::streams::{self, DownstreamPod, ProxiedAnswer, ProxiedRequest, StreamError, asks_for_upgrade};
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, Status, Uid, object,
    placement::{CopyPhase, GROUP, MemberAccess, MemberUser, PhysicalClusterSpec, PlacedCopy, PlacementRecord},
};
use serde::Deserialize as _;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{PodStreamRoutes, check_origin, responses, until};
use crate::physical_clusters::{ClusterClient, ClusterClientError};

/// Label of an EndpointSlice that names its Service.
const SERVICE: &str = "kubernetes.io/service-name";
/// Status for an answer of 401: the credential that was refused is not the client's, which must not sign out.
const NETWORK_AUTHENTICATION_REQUIRED: u16 = 511;

/// Connected target of a proxied request.
struct ConnectedTarget {
    /// Name of the physical cluster.
    cluster: String,
    client: ClusterClient,
    /// Path and query downstream.
    path: String,
    /// User to act as on the physical cluster.
    acting: Option<MemberUser>,
    /// Own token of the user, which is forwarded.
    token: Option<UserToken>,
    /// Path on this server that a redirect to `path` stands for; `None` refuses redirects.
    shown_at: Option<RedirectBase>,
}

/// Prefixes of one place, downstream and upstream.
struct RedirectBase {
    downstream: String,
    upstream: String,
}

/// User of a proxied request.
struct ProxyUser<'a> {
    user: &'a User,
    /// Own token of the user.
    token: Option<UserToken>,
}

/// Returns true if the token of a user may be forwarded: with the consent of the physical cluster, which only the
/// administrator of the server can have registered.
fn may_forward(home: &LogicalCluster, access: &MemberAccess, token: &UserToken) -> bool {
    home.id == LogicalClusterId::ROOT && access.forwards(&token.audiences)
}

impl PodStreamRoutes {
    /// Passes a request on and returns the cleaned answer.
    pub(super) async fn proxy(&self, request: ProxyRequest) -> Result<Response<Body>, Status> {
        let ProxyRequest { cluster, target, user, token, request, permit } = request;
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let target = match target {
            ProxyTarget::PhysicalCluster(physical) => {
                let user = ProxyUser { user: &user, token };
                self.member(&cluster, &physical, user, path).await?
            }
            ProxyTarget::Workload { object, endpoint } => self.workload(&cluster, &object, &endpoint, path).await?,
        };
        let (mut parts, body) = request.into_parts();
        let upgrade = upgrade(&mut parts)?;
        let asked = ProxiedRequest {
            method: parts.method,
            path: &target.path,
            headers: &parts.headers,
            body,
            acting: target.acting.as_ref(),
            token: target.token.as_ref().map(|token| &*token.token),
        };
        let end = target.client.end.clone();
        let answered = end.run_until_cancelled(streams::proxy(&target.client.client, asked)).await;
        let answered = answered.ok_or_else(|| responses::no_client(&target.cluster, &ClusterClientError::Unknown))?;
        let answered = answered.map_err(|error| not_proxied(&target.cluster, error))?;
        self.answer(answered, target, upgrade, permit, end)
    }

    fn answer(
        &self,
        answered: ProxiedAnswer,
        target: ConnectedTarget,
        upgrade: Option<OnUpgrade>,
        permit: StreamPermit,
        end: CancellationToken,
    ) -> Result<Response<Body>, Status> {
        match (answered, upgrade) {
            (ProxiedAnswer::Response(response), _) => {
                let (mut parts, body) = response.into_parts();
                check_credential(&target, parts.status)?;
                check_redirect(&target, parts.status, &mut parts.headers)?;
                Ok(Response::from_parts(parts, until(body, end)))
            }
            (ProxiedAnswer::Upgraded(headers, downstream), Some(upstream)) => {
                self.splice(upstream, downstream, permit, end);
                let mut response = responses::empty(StatusCode::SWITCHING_PROTOCOLS);
                *response.headers_mut() = headers;
                Ok(response)
            }
            (ProxiedAnswer::Upgraded(..), None) => Err(Status::internal("the client asked for no upgrade")),
        }
    }

    /// Connects to the API server of a physical cluster, as the user that the requesting one is mapped to, or with the
    /// user's own token.
    async fn member(
        &self,
        home: &LogicalCluster,
        physical: &Value,
        asking: ProxyUser<'_>,
        path: &str,
    ) -> Result<ConnectedTarget, Status> {
        let name = object::name(physical);
        let resource = GroupResource::new(GROUP, "physicalclusters");
        let uid = object::uid(physical).ok_or_else(|| Status::internal("a physical cluster without a uid"))?;
        let spec = PhysicalClusterSpec::deserialize(&physical["spec"]).map_err(Status::internal)?;
        let Some(access) = &spec.access else {
            return Err(responses::unavailable(format!("physical cluster {name:?} has no spec.access: {JOIN}")));
        };
        let user = asking.user;
        let token = asking.token.filter(|token| may_forward(home, access, token));
        let acting = match &token {
            Some(_) => None,
            None => Some(access.user_of(&user.name, &user.groups).ok_or_else(|| {
                let why = format!("User {:?} is mapped to no user or group of the physical cluster", user.name);
                Status::forbidden(&resource, name, why)
            })?),
        };
        let key = ObjectKey::cluster_scoped(home.id, resource, name.parse().map_err(Status::internal)?);
        let client = match &token {
            Some(_) => self.clients.bare_client(&key, &uid, spec).await,
            None => self.clients.users_client(&key, &uid, spec).await,
        };
        let client = client.map_err(|error| {
            tracing::info!(cluster = name, %error, "a physical cluster cannot be reached for a user");
            match error {
                // The administrator of the registration gets the cause: the request is by rights on it.
                ClusterClientError::Unusable(why) => {
                    responses::unavailable(format!("physical cluster {name:?}: {why}"))
                }
                error => responses::no_client(name, &error),
            }
        })?;
        Ok(ConnectedTarget { cluster: name.to_owned(), client, path: path.to_owned(), acting, token, shown_at: None })
    }

    /// Connects to a port of a pod or service, on a physical cluster that runs it.
    async fn workload(
        &self,
        cluster: &Arc<LogicalCluster>,
        found: &Value,
        endpoint: &ProxyEndpoint,
        path: &str,
    ) -> Result<ConnectedTarget, Status> {
        let resource = if found["kind"] == "Service" { "services" } else { "pods" };
        let copy = self.serving_copy(cluster, found, resource).await?;
        let nowhere = || {
            let why =
                format!("no endpoints available for {} {:?}", resource.trim_end_matches('s'), object::name(found));
            responses::unavailable(why)
        };
        let copy = copy.ok_or_else(nowhere)?;
        let client = self.client(cluster, &copy).await?;
        let downstream = self.downstream_object(cluster, found, resource, (&copy, &client))?.ok_or_else(nowhere)?;
        let segment = endpoint.segment_of(downstream.name());
        let located = streams::port_path(&client.client, &downstream, resource, &segment);
        let located = client.end.run_until_cancelled(located).await;
        let located = located.ok_or_else(|| responses::no_client(&copy.name, &ClusterClientError::Unknown))?;
        let base = located.map_err(|error| match error {
            StreamError::NoSuchPod => Status::not_found(&GroupResource::new("", resource), object::name(found)),
            error => not_proxied(&copy.name, error),
        })?;
        let own = endpoint.segment_of(object::name(found));
        let namespace = object::namespace(found);
        let upstream = format!("/clusters/{}/api/v1/namespaces/{namespace}/{resource}/{own}/proxy", cluster.path);
        Ok(ConnectedTarget {
            cluster: copy.name.clone(),
            path: format!("{base}{path}"),
            client,
            acting: None,
            token: None,
            shown_at: Some(RedirectBase { downstream: base, upstream }),
        })
    }

    /// Returns the copy that requests are sent to: of a service, one with ready endpoints where there is one.
    async fn serving_copy(
        &self,
        cluster: &LogicalCluster,
        found: &Value,
        resource: &str,
    ) -> Result<Option<PlacedCopy>, Status> {
        let Some(copy) = DownstreamPod::placed(found) else { return Ok(None) };
        let all = PlacementRecord::of(found).map(|record| record.clusters).unwrap_or_default();
        if resource != "services" || all.len() < 2 {
            return Ok(Some(copy));
        }
        let namespace = object::namespace(found).parse().map_err(Status::internal)?;
        let ready = self.clusters_with_endpoints(cluster.id, namespace, object::name(found)).await?;
        let serves = |copy: &&PlacedCopy| ready.contains(&copy.uid) && copy.phase != CopyPhase::Leaving;
        Ok(Some(all.iter().find(serves).cloned().unwrap_or(copy)))
    }

    /// Returns the physical clusters with a ready endpoint of a service, by the projected EndpointSlices.
    async fn clusters_with_endpoints(
        &self,
        cluster: LogicalClusterId,
        namespace: NamespaceName,
        service: &str,
    ) -> Result<HashSet<Uid>, Status> {
        let slices = GroupResource::new("discovery.k8s.io", "endpointslices");
        let mut pages = self.clients.plane().slices(RangeScope::Namespace(cluster, slices, namespace));
        let mut ready = HashSet::new();
        while let Some(page) = pages.next().await.map_err(Status::internal)? {
            for slice in page.found.iter().map(|found| &found.object) {
                let endpoints = slice["endpoints"].as_array().into_iter().flatten();
                let is_ready = |endpoint: &Value| endpoint["conditions"]["ready"] != false;
                if object::label(slice, SERVICE) == Some(service) && endpoints.into_iter().any(is_ready) {
                    ready.extend(DownstreamPod::placed(slice).map(|copy| copy.uid));
                }
            }
        }
        Ok(ready)
    }
}

/// Hint for a physical cluster without access.
const JOIN: &str = "requests of users are passed to it once it is joined with --access";

/// Refuses an answer of 401 to the credential of the proxy. A port of a pod may ask for its own.
fn check_credential(target: &ConnectedTarget, code: StatusCode) -> Result<(), Status> {
    if code != StatusCode::UNAUTHORIZED || target.shown_at.is_some() {
        return Ok(());
    }
    let message = format!("physical cluster {:?} refuses the credential of the proxy", target.cluster);
    Err(Status::foreign(NETWORK_AUTHENTICATION_REQUIRED, "NetworkAuthenticationRequired", message, None))
}

/// Maps a redirect within the target to its place on this server.
///
/// # Errors
/// 502 for a redirect to anywhere else.
fn check_redirect(target: &ConnectedTarget, code: StatusCode, headers: &mut HeaderMap) -> Result<(), Status> {
    let Some(location) = headers.remove(header::LOCATION).filter(|_| code.is_redirection()) else { return Ok(()) };
    let mapped = location.to_str().ok().zip(target.shown_at.as_ref()).and_then(|(text, base)| base.map(text));
    let refused = || {
        let message = format!("physical cluster {:?} answered with a redirect, which is not followed", target.cluster);
        Status::foreign(502, "BadGateway", message, None)
    };
    let mapped = mapped.ok_or_else(refused)?;
    headers.insert(header::LOCATION, mapped.parse().map_err(|_| refused())?);
    Ok(())
}

impl RedirectBase {
    /// Returns the upstream path of a redirect; `None` if it leaves the target.
    fn map(&self, location: &str) -> Option<String> {
        // The API server downstream has rewritten redirects of the application to its own paths.
        let rest = location.strip_prefix(&self.downstream).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if let Some(rest) = rest {
            return is_plain(rest).then(|| format!("{}{rest}", self.upstream));
        }
        let is_relative = !location.starts_with('/') && !location.contains(':');
        (is_relative && is_plain(location)).then(|| location.to_owned())
    }
}

fn is_plain(path: &str) -> bool {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    !path.starts_with("//") && !path.contains('\\') && path.split('/').all(|segment| segment != "..")
}

/// Takes the client's end of an upgrade out of a request.
fn upgrade(parts: &mut http::request::Parts) -> Result<Option<OnUpgrade>, Status> {
    if !asks_for_upgrade(&parts.headers) {
        return Ok(None);
    }
    check_origin(&parts.headers)?;
    let upgrade = parts.extensions.remove::<OnUpgrade>();
    upgrade.map(Some).ok_or_else(|| Status::bad_request("this connection cannot change its protocol"))
}

fn not_proxied(cluster: &str, error: StreamError) -> Status {
    tracing::info!(cluster, %error, "a request was not passed on");
    match error {
        StreamError::Denied(_) => {
            responses::unavailable(format!("physical cluster {cluster:?} does not allow its connection to do this"))
        }
        error => responses::unreachable(cluster, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_within_their_target() {
        let base = RedirectBase { downstream: "/api/v1/namespaces/d/services/web/proxy".into(), upstream: "/u".into() };
        for (location, expected) in [
            ("/api/v1/namespaces/d/services/web/proxy/login?a=b", Some("/u/login?a=b")),
            ("/api/v1/namespaces/d/services/web/proxy", Some("/u")),
            ("login/", Some("login/")),
            ("/api/v1/namespaces/d/services/web/proxy2/x", None),
            ("/api/v1/namespaces/d/services/web/proxy/../../other", None),
            ("/api/v1/secrets", None),
            ("../../secrets", None),
            ("https://evil.example", None),
            ("//evil.example", None),
            ("/\\evil.example", None),
            ("javascript:alert(1)", None),
        ] {
            assert_eq!(base.map(location).as_deref(), expected, "{location}");
        }
    }
}
