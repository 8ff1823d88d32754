//! Tokens of pods on physical clusters.

use std::sync::Arc;

use portolan_apiserver::authn::{CopyClaim, ServiceAccountTokens, TokenBinding, TokenRequest};
use portolan_types::{
    GroupResource, ObjectKey, Seams, Uid, object,
    upstream::{PodToken, PodTokenRequest, UpstreamError},
};

use super::{StoreUpstream, failed, is_placed, store_failed};

/// Issuer of tokens for pods: they are for this control plane only.
pub(crate) struct PodTokenIssuer {
    /// Issuer of service account tokens.
    pub(crate) tokens: Arc<ServiceAccountTokens>,
    /// Certificate authority of the API server, PEM.
    pub(crate) authority: String,
}

/// Issues a token for the pods of a copy.
pub(super) async fn issue(
    upstream: &StoreUpstream,
    request: PodTokenRequest<'_>,
) -> Result<Option<PodToken>, UpstreamError> {
    let Some(issuer) = &upstream.tokens else { return Ok(None) };
    let stored = upstream.plane.store().get(request.key).await.map_err(store_failed)?;
    let is_same = |uid: &str| uid == request.uid.as_str();
    if !stored.is_some_and(|stored| is_placed(&stored, request.physical) && is_same(&stored.record.header.uid)) {
        return Ok(None);
    }
    let Some(account) = account(upstream, &request).await? else { return Ok(None) };
    let claim = CopyClaim {
        resource: request.key.resource.to_string(),
        name: request.key.name.to_string(),
        uid: request.uid.to_string(),
        physical: request.physical.to_string(),
    };
    let asked = TokenRequest {
        cluster: request.key.cluster,
        namespace: request.key.namespace().map(ToString::to_string).unwrap_or_default(),
        name: request.account.to_owned(),
        uid: account.to_string(),
        audiences: vec![issuer.tokens.issuer().to_owned()],
        seconds: request.seconds,
        bound: Some(TokenBinding::Copy(claim)),
    };
    let issued = issuer.tokens.issue(&asked).map_err(|error| failed(&error))?;
    let renew_at = renewal(upstream.plane.seams(), issued.expires, request.seconds);
    Ok(Some(PodToken { token: issued.token, authority: issuer.authority.clone(), renew_at }))
}

/// Returns the time at which a token is renewed: after 70 to 80 % of its life, so that tokens issued at the same time
/// are not renewed at the same time.
fn renewal(seams: &Seams, expires: i64, seconds: i64) -> i64 {
    let mut byte = [0; 1];
    seams.entropy.fill(&mut byte);
    let earlier = seconds * i64::from(byte[0]) / (10 * 255);
    expires - seconds / 5 - earlier
}

/// Returns the uid of the ServiceAccount, if it gives its pods a token.
async fn account(upstream: &StoreUpstream, request: &PodTokenRequest<'_>) -> Result<Option<Uid>, UpstreamError> {
    let Ok(name) = request.account.parse() else { return Ok(None) };
    let key = ObjectKey { resource: GroupResource::new("", "serviceaccounts"), name, ..request.key.clone() };
    let Some((account, _)) = upstream.read(&key).await? else { return Ok(None) };
    let gives = request.is_asked || account["automountServiceAccountToken"] != false;
    Ok(object::uid(&account).filter(|_| gives && !object::is_deleting(&account)))
}
