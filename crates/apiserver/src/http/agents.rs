//! Routes of agents: certificates and tunnels. The pipeline admits only agents to them.

use http::Response;
use http_body_util::BodyExt as _;
use portolan_types::{ObjectKey, Reason, Status, agent::AgentId};
use serde::{Deserialize, Serialize};

use crate::{
    ApiServer, Body, BodyError, authn::AgentAccess, encode, errors::status_for, hooks::AgentConnection,
    pipeline::StreamedBody, pki::AgentCertificateRequest, reach::physical_clusters, request::RequestContext,
};

use super::{
    connection::ConnectionCertificate,
    routed::{AuthorizedCall, RoutedResponse},
};

/// Request for a certificate.
#[derive(Deserialize)]
struct CertificateRequest {
    /// Certificate signing request, PEM.
    request: String,
}

/// Issued certificate, PEM.
#[derive(Serialize)]
struct IssuedCertificate<'a> {
    certificate: &'a str,
    authority: &'a str,
}

/// `/portolan/v1/agent/certificate`.
pub(super) async fn certificate(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    RoutedResponse::from(certify(&api, &call).await)
}

/// `/portolan.tunnel.v1.Tunnel/Connect`.
pub(super) async fn tunnel(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    RoutedResponse::from(connect(&api, &call).await)
}

/// Issues a certificate for a bootstrap token, or renews the one of the connection.
///
/// # Errors
/// 400 and 403 for requests that are not the agent's; 401 for a spent token; 403 for a physical cluster that is gone.
async fn certify(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    let (agent, by_token) = match call.identity.agent_access() {
        AgentAccess::Certified(agent) => (agent, false),
        AgentAccess::Bootstrapping(agent) => (agent, true),
        AgentAccess::NoAgent | AgentAccess::Invalid => return Err(Status::unauthorized()),
    };
    let asked: CertificateRequest = serde_json::from_slice(&call.body)
        .map_err(|error| Status::bad_request(format!("the body is not {{\"request\": \"<PEM>\"}}: {error}")))?;
    let request = AgentCertificateRequest::parse(&asked.request, &agent)?;
    check_registered(api, &agent).await?;
    if by_token {
        api.bootstrap_tokens.spend(&agent, request.public_key()).await?;
    }
    let certificate = api.pki.certify_agent(request, &agent, api.seams())?;
    tracing::info!(workspace = %agent.workspace, cluster = %agent.name, by_token, "issued the certificate of an agent");
    let issued = IssuedCertificate { certificate: &certificate, authority: &api.pki.ca };
    Ok(encode::json(201, &serde_json::to_value(issued).map_err(Status::internal)?))
}

/// Passes the connection of an agent to the gateway.
///
/// # Errors
/// 403 for a physical cluster that is gone, and the refusals of the gateway.
async fn connect(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    let AgentAccess::Certified(agent) = call.identity.agent_access() else { return Err(Status::unauthorized()) };
    check_registered(api, &agent).await?;
    let gateway = api.config.hooks.agents.as_ref();
    let unserved = || Status::new(Reason::ServiceUnavailable, "this server does not accept connections of agents");
    let gateway = gateway.ok_or_else(unserved)?;
    let (body, end) = {
        let mut extensions = call.extensions.lock();
        (extensions.remove::<StreamedBody>().and_then(|body| body.take()), extensions.remove::<ConnectionCertificate>())
    };
    let body = body.ok_or_else(|| Status::internal("the body of the request is gone"))?;
    let valid_for = end.map(|certificate| certificate.end.duration_since(api.seams().clock.now()));
    let valid_for = valid_for.map(|rest| rest.try_into().unwrap_or_default());
    gateway.connect(AgentConnection { agent, valid_for, body: body.map_err(BodyError::from).boxed_unsync() })
}

/// Checks that the physical cluster of the credential is still registered: one that was registered again has another
/// uid.
async fn check_registered(api: &ApiServer, agent: &AgentId) -> Result<(), Status> {
    let key = ObjectKey::cluster_scoped(agent.workspace, physical_clusters(), agent.name.clone());
    let found = api.storage.store.get(&key).await.map_err(|error| status_for(&error))?;
    if found.is_some_and(|found| found.record.header.uid == *agent.uid) {
        return Ok(());
    }
    let why = format!(
        "the physical cluster {} of this credential is not registered any more; create a token for the present one: portolan token create --cluster {}",
        agent.name, agent.name
    );
    Err(Status::new(Reason::Forbidden, why))
}
