//! Routes of the web console for sign-in at an issuer (OpenID Connect).

use http::{
    HeaderValue, Response, StatusCode,
    header::{HOST, LOCATION, SET_COOKIE},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use portolan_types::Status;

use crate::{
    ApiServer, Body,
    authn::{
        console::{SessionCredential, sign_in_cookie, take_sign_in},
        jwt::SIGN_IN_SECONDS,
    },
    encode,
    request::RequestContext,
};

use super::{
    console::{private, with_session},
    routed::{AuthorizedCall, RoutedResponse},
};

/// Path at which the issuer sends the browser back.
const CALLBACK: &str = "/ui/oidc/callback";
/// Longest fragment of a page, code, and reason of an issuer, in bytes.
const MAX_PAGE: usize = 1024;
const MAX_CODE: usize = 2048;
const MAX_REASON: usize = 300;

/// `/ui/oidc/start?issuer=…&to=…`: sends the browser to the issuer.
pub(super) async fn start(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    RoutedResponse::from(leave(&api, &call).await)
}

/// `/ui/oidc/callback?code=…&state=…`: starts the session of the user whom the issuer sends back.
pub(super) async fn callback(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    let ended = enter(&api, &call).await;
    RoutedResponse::from(ended.or_else(|why| see_other(&failure_page(why.message()))))
}

async fn leave(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    let page = call.query.text("to");
    let page = if page.starts_with("#/") && page.len() <= MAX_PAGE { page.to_owned() } else { "#".to_owned() };
    let authenticator = &api.access.authenticator;
    let redirect = format!("https://{}{CALLBACK}", host(api, call));
    let (url, pending) = authenticator.issuers().start_sign_in(call.query.text("issuer"), redirect, page).await?;
    let mut response = see_other(&url)?;
    let cookie = sign_in_cookie(&authenticator.console().seal_sign_in(&pending)?, SIGN_IN_SECONDS)?;
    response.headers_mut().append(SET_COOKIE, cookie);
    Ok(response)
}

/// Returns the host that the browser has named.
fn host(api: &ApiServer, call: &RequestContext) -> String {
    let named = call.uri.authority().map(ToString::to_string);
    let named = named.or_else(|| call.headers.get(HOST)?.to_str().ok().map(str::to_owned));
    named.unwrap_or_else(|| api.address().to_string())
}

/// Ends a sign-in.
///
/// # Errors
/// 401 for a code, state or token that is not that of the browser's sign-in; the issuer's own refusal.
async fn enter(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    let authenticator = &api.access.authenticator;
    let console = authenticator.console();
    let refusal = call.query.text("error");
    if !refusal.is_empty() {
        let why = format!("the issuer refused: {refusal} {}", call.query.text("error_description"));
        return Err(Status::bad_request(why.chars().take(MAX_REASON).collect::<String>()));
    }
    let pending = take_sign_in(&call.headers).and_then(|sealed| console.open_sign_in(&sealed));
    let expired = || Status::bad_request("the sign-in is older than ten minutes, or was begun in another browser");
    let pending = pending.ok_or_else(expired)?;
    let code = call.query.text("code");
    if call.query.text("state") != pending.state || code.is_empty() || code.len() > MAX_CODE {
        return Err(expired());
    }
    let refused = |_| Status::bad_request("the issuer's token was refused; the server's log says why at level debug");
    let token = authenticator.issuers().finish_sign_in(&pending, code).await.map_err(refused)?;
    let session = console.start(SessionCredential::Token(token))?;
    authenticator.identity_of(&session.credential).await.map_err(refused)?;
    let mut response = with_session(api, &session, see_other(&format!("/ui{}", pending.page))?)?;
    response.headers_mut().append(SET_COOKIE, sign_in_cookie("", 0)?);
    Ok(response)
}

fn failure_page(why: &str) -> String {
    format!("/ui#/root/objects?sign-in-failed={}", utf8_percent_encode(why, NON_ALPHANUMERIC))
}

fn see_other(url: &str) -> Result<Response<Body>, Status> {
    let mut response = Response::new(encode::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(LOCATION, HeaderValue::from_str(url).map_err(Status::internal)?);
    Ok(private(response))
}
