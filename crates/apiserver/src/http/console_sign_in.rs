//! Routes of the web console for sign-in at an issuer (OpenID Connect).

use http::{
    HeaderValue, Response, StatusCode,
    header::{HOST, LOCATION, SET_COOKIE},
};
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
/// Longest fragment of a page and code of an issuer, in bytes.
const MAX_PAGE: usize = 1024;
const MAX_CODE: usize = 2048;

/// Failure of a sign-in. The page has a text for each: one of the URL could be anybody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignInFailure {
    /// The issuer refused it.
    Refused,
    /// The state or the code does not belong to the browser's sign-in, or is too old.
    Expired,
    /// The token of the issuer was refused.
    Token,
}

impl SignInFailure {
    fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::Token => "token",
        }
    }

    /// Returns the page that shows it.
    fn page(self) -> String {
        format!("/ui#/root/objects?sign-in-failed={}", self.name())
    }
}

/// `/ui/oidc/start?issuer=…&to=…`: sends the browser to the issuer.
pub(super) async fn start(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    RoutedResponse::from(leave(&api, &call).await)
}

/// `/ui/oidc/callback?code=…&state=…`: starts the session of the user that the issuer redirects back.
pub(super) async fn callback(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    let ended = enter(&api, &call).await;
    RoutedResponse::from(ended.or_else(|failure| see_other(&failure.page())))
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
    named.unwrap_or_else(|| api.config.public_authority())
}

/// Ends a sign-in.
///
/// # Errors
/// A code, state or token that does not belong to the browser's sign-in; the issuer's own refusal.
async fn enter(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, SignInFailure> {
    let authenticator = &api.access.authenticator;
    let console = authenticator.console();
    let refusal = call.query.text("error");
    if !refusal.is_empty() {
        tracing::debug!(refusal, description = call.query.text("error_description"), "an issuer refused a sign-in");
        return Err(SignInFailure::Refused);
    }
    let pending = take_sign_in(&call.headers).and_then(|sealed| console.open_sign_in(&sealed));
    let pending = pending.ok_or(SignInFailure::Expired)?;
    let code = call.query.text("code");
    if call.query.text("state") != pending.state || code.is_empty() || code.len() > MAX_CODE {
        return Err(SignInFailure::Expired);
    }
    let refused = |error: Status| {
        tracing::debug!(%error, "the token of an issuer was refused");
        SignInFailure::Token
    };
    let token = authenticator.issuers().finish_sign_in(&pending, code).await.map_err(refused)?;
    let session = console.start(SessionCredential::Token(token)).map_err(refused)?;
    authenticator.identity_of(&session.credential).await.map_err(refused)?;
    let entered = || -> Result<_, Status> {
        let mut response = with_session(api, &session, see_other(&format!("/ui{}", pending.page))?)?;
        response.headers_mut().append(SET_COOKIE, sign_in_cookie("", 0)?);
        Ok(response)
    };
    entered().map_err(refused)
}

fn see_other(url: &str) -> Result<Response<Body>, Status> {
    let mut response = Response::new(encode::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(LOCATION, HeaderValue::from_str(url).map_err(Status::internal)?);
    Ok(private(response))
}
