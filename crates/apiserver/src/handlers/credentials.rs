//! `TokenCredentialRequest`: exchanges a token for a client certificate of a few minutes, as Pinniped's Concierge does.
//! Clients without credentials may use it, because the token authenticates them.

use std::time::Duration;

use portolan_strategy::rbac::User;
use portolan_types::{Status, object};
use serde_json::{Value, json};

use crate::{
    ApiServer,
    authn::{AUTHENTICATED, Identity},
    authz::SCOPES,
    pki::CertificateUser,
    request::RequestContext,
};

/// Lifetime of a certificate, as in Pinniped.
const LIFETIME: Duration = Duration::from_secs(5 * 60);

/// Answers a request.
///
/// # Errors
/// 403 for a token that is refused, and for an identity that a certificate cannot express.
pub(super) async fn answer(api: &ApiServer, call: &RequestContext, mut object: Value) -> Result<Value, Status> {
    let refused = || call.attributes.denial(&call.identity.user, "");
    let token = object.pointer("/spec/token").and_then(Value::as_str).unwrap_or_default();
    let found = api.access.authenticator.token(token, &[]).await;
    let (identity, _) = found.map_err(|_| refused())?;
    if !fits_certificate(&identity) {
        return Err(refused());
    }
    let groups: Vec<String> = identity.user.groups.iter().filter(|group| *group != AUTHENTICATED).cloned().collect();
    let user = CertificateUser { name: &identity.user.name, groups: &groups, lifetime: LIFETIME };
    let issued = api.pki.user(&user, api.seams()).map_err(Status::internal)?;
    let until = api.seams().clock.now() + LIFETIME;
    object["status"] = json!({"credential": {
        "expirationTimestamp": until.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "clientCertificateData": issued.certificate,
        "clientKeyData": issued.key,
    }});
    // The answer repeats no secret of the question.
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("token");
    }
    object::metadata_mut(&mut object);
    Ok(object)
}

/// Returns true if a certificate, which is valid in every logical cluster, means the same user with the same rights:
/// not for one of a single logical cluster, one with scopes, or a component of the system.
fn fits_certificate(identity: &Identity) -> bool {
    let User { name, groups, extra, .. } = &identity.user;
    let is_system = |text: &String| text.starts_with("system:") && text != AUTHENTICATED;
    identity.home.is_none() && !extra.contains_key(SCOPES) && !is_system(name) && !groups.iter().any(is_system)
}
