//! Routes of the OpenID provider that service account tokens come from: its keys and its discovery document.

use http::{HeaderValue, Response, header::CACHE_CONTROL};
use portolan_types::Status;
use serde_json::json;

use crate::{ApiServer, Body, encode, request::RequestContext};

use super::routed::{AuthorizedCall, RoutedResponse};

/// `/openid/v1/jwks`.
pub(super) async fn jwks(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    RoutedResponse::from(key_set(&api, &call))
}

/// `/.well-known/openid-configuration`.
pub(super) async fn configuration(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    RoutedResponse::from(discovery(&api, &call))
}

/// Returns the public keys of service account tokens.
///
/// # Errors
/// 406 when the client does not accept a JWK set.
fn key_set(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    const KEY_SET: &str = "application/jwk-set+json";
    encode::route(&call.headers, &[KEY_SET])?;
    Ok(cached(encode::finish(200, KEY_SET, encode::full(api.tokens.jwks().to_string()))))
}

/// Permits caching for an hour, because keys change rarely.
fn cached(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    response
}

/// Returns the OpenID discovery document of the issuer.
///
/// # Errors
/// 406 when the client does not accept JSON.
fn discovery(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    encode::route(&call.headers, &["application/json"])?;
    Ok(cached(encode::json(
        200,
        &json!({
            "issuer": api.tokens.issuer(),
            "jwks_uri": format!("{}/openid/v1/jwks", api.url()),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }),
    )))
}
