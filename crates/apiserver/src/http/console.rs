//! Routes of the web console: its files, sign-in and sign-out, one-time links; and `/ui/api/…`, which is Kubernetes'
//! API for the session in the request's cookies.

use std::io::Read as _;

use flate2::read::GzDecoder;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{
        CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, ETAG, IF_NONE_MATCH, REFERRER_POLICY, SET_COOKIE,
        VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
    },
};
use portolan_types::{Reason, Status};
use serde::Deserialize;
use serde_json::json;

use crate::{
    ApiServer, Body,
    authn::{
        Peer,
        console::{
            ConsoleSession, LINK_SECONDS, MAX_LINK_SECONDS, SessionCredential, check_origin, expired_cookies,
            session_cookies,
        },
    },
    encode,
    hooks::ConsoleFile,
    pipeline::RequestBody,
    request::RequestContext,
};

use super::{
    connection::ConnectionCertificate,
    routed::{AuthorizedCall, RoutedResponse},
};

/// First segment of the console's paths.
pub(super) const SEGMENT: &str = "ui";
/// Prefix of paths of Kubernetes' API with a session.
const API: &str = "/ui/api/";
/// Page of `/ui` itself.
const INDEX: &str = "index.html";
/// Policy of the pages: everything is a file of this server, and nothing is inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Largest file after its decompression, in bytes.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// Sign-in: exactly one of the fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SignIn {
    /// Bearer token.
    token: Option<String>,
    /// Code of a one-time link.
    code: Option<String>,
}

/// Request for a one-time link.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkRequest {
    /// Life of the code.
    seconds: Option<i64>,
}

impl LinkRequest {
    /// Returns the life of the code of a request body, which may be empty.
    ///
    /// # Errors
    /// 400 for another body, and for a life that is too long.
    fn seconds(body: &[u8]) -> Result<i64, Status> {
        let asked = if body.is_empty() { Ok(Self::default()) } else { serde_json::from_slice(body) };
        let asked: Self =
            asked.map_err(|error| Status::bad_request(format!("the body is not {{\"seconds\": 60}}: {error}")))?;
        let seconds = asked.seconds.unwrap_or(LINK_SECONDS);
        if !(1..=MAX_LINK_SECONDS).contains(&seconds) {
            return Err(Status::bad_request(format!("seconds: a link is good for 1 to {MAX_LINK_SECONDS}")));
        }
        Ok(seconds)
    }
}

/// Rewrites a request below `/ui/api/` to a request to the Kubernetes API, which only the session authenticates.
/// Returns any other request unchanged.
pub(super) fn forwarded(peer: Peer, mut request: Request<RequestBody>) -> (Peer, Request<RequestBody>) {
    let Some(inner) = inner_uri(request.uri()) else { return (peer, request) };
    *request.uri_mut() = inner;
    (Peer::Console, request)
}

/// Returns true for the paths of the console's own routes.
pub(super) fn is_own(path: &str) -> bool {
    path.strip_prefix("/ui").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn inner_uri(uri: &Uri) -> Option<Uri> {
    let rest = uri.path().strip_prefix(API)?;
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("/{rest}{query}").parse().ok()
}

/// `/ui` and its files.
pub(super) async fn page(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    let path = Some(call.captures.rest.as_str()).filter(|path| !path.is_empty()).unwrap_or(INDEX);
    let file = api.config.hooks.console.iter().find(|file| file.path == path);
    RoutedResponse::from(file.ok_or_else(Status::no_such_page).and_then(|file| answer(file, &call.headers)))
}

/// `/ui/settings`: ways to sign in, and the version.
pub(super) async fn settings(AuthorizedCall { api, .. }: AuthorizedCall) -> RoutedResponse {
    let version = format!("portolan {}", env!("CARGO_PKG_VERSION"));
    let issuers = api.access.authenticator.issuers().sign_in_issuers();
    let settings = json!({"version": version, "name": api.config.name, "issuers": issuers});
    RoutedResponse::from(Ok(private(encode::json(200, &settings))))
}

/// `/ui/session`: sign-in by POST, sign-out by DELETE.
pub(super) async fn session(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    let signed_out = call.method == Method::DELETE;
    RoutedResponse::from(if signed_out { sign_out(&call) } else { sign_in(&api, &call).await })
}

/// `/ui/link`: a one-time code for a session of the caller.
pub(super) async fn link(AuthorizedCall { api, call }: AuthorizedCall) -> RoutedResponse {
    RoutedResponse::from(issue(&api, &call).await)
}

/// Answers with a file, compressed unless the client cannot decompress it.
fn answer(file: &ConsoleFile, headers: &HeaderMap) -> Result<Response<Body>, Status> {
    let known = headers.get_all(IF_NONE_MATCH).iter().any(|tag| tag == file.etag);
    let mut response = if known {
        let mut unchanged = Response::new(encode::empty());
        *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
        unchanged
    } else if encode::wants_gzip(headers) {
        let mut compressed = encode::finish(200, file.media_type, encode::full(file.gzip));
        compressed.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        compressed
    } else {
        let mut plain = Vec::new();
        GzDecoder::new(file.gzip).take(MAX_FILE).read_to_end(&mut plain).map_err(Status::internal)?;
        encode::finish(200, file.media_type, encode::full(plain))
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (CACHE_CONTROL, "no-cache"),
        (VARY, "Accept-Encoding"),
        (ETAG, file.etag),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// Verifies a token or uses a one-time code, and sets the cookies of the session.
///
/// # Errors
/// 403 for requests of other pages, 400 for other bodies, 401 for wrong credentials.
async fn sign_in(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    check_origin(&call.headers)?;
    let asked: SignIn = serde_json::from_slice(&call.body)
        .map_err(|error| Status::bad_request(format!("the body is neither {{\"token\"}} nor {{\"code\"}}: {error}")))?;
    let authenticator = &api.access.authenticator;
    let console = authenticator.console();
    let session = match (asked.token, asked.code) {
        (Some(token), None) => console.start(SessionCredential::Token(token.trim().to_owned()))?,
        (None, Some(code)) => console.use_link(&code).await?,
        _ => return Err(Status::bad_request("the body has either a token or a code")),
    };
    let identity = authenticator.identity_of(&session.credential).await?;
    let workspace = identity.home.and_then(|home| api.directory().by_id(home));
    let answer = json!({
        "user": identity.user.name,
        "groups": identity.user.groups,
        "workspace": workspace.map(|workspace| workspace.path.to_string()),
        "until": portolan_types::seams::seconds_text(session.until),
    });
    with_session(api, &session, encode::json(201, &answer))
}

pub(super) fn with_session(
    api: &ApiServer,
    session: &ConsoleSession,
    mut response: Response<Body>,
) -> Result<Response<Body>, Status> {
    let console = api.access.authenticator.console();
    let seconds = session.until.duration_since(api.seams().clock.now()).as_secs();
    for cookie in session_cookies(&console.seal(session)?, seconds)? {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(private(response))
}

/// Removes the cookies.
///
/// # Errors
/// 403 for requests of other pages.
fn sign_out(call: &RequestContext) -> Result<Response<Body>, Status> {
    check_origin(&call.headers)?;
    let mut response = encode::json(200, &json!({"signedOut": true}));
    for cookie in expired_cookies()? {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(private(response))
}

/// Issues a one-time code for the credential of the request.
///
/// # Errors
/// 404 without a console, 400 for another body, a failure of the store.
async fn issue(api: &ApiServer, call: &RequestContext) -> Result<Response<Body>, Status> {
    if api.config.hooks.console.is_empty() {
        return Err(Status::new(Reason::NotFound, "this server has no console"));
    }
    let seconds = LinkRequest::seconds(&call.body)?;
    let certificate = call.extensions.lock().remove::<ConnectionCertificate>();
    let credential = call.identity.session_credential(certificate.map(|found| (found.id, found.end)));
    let console = api.access.authenticator.console();
    let code = console.issue_link(&console.start(credential)?, seconds).await?;
    Ok(private(encode::json(201, &json!({"code": code, "seconds": seconds, "user": call.identity.user.name}))))
}

/// Forbids all caches to keep a response.
pub(super) fn private(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_the_api_of_the_console_lose_their_prefix() {
        for (uri, expected) in [
            ("/ui/api/clusters/root:shop/api/v1/pods?watch=true", Some("/clusters/root:shop/api/v1/pods?watch=true")),
            ("/ui/api/version", Some("/version")),
            ("/ui/api/", Some("/")),
            ("/ui/api", None),
            ("/ui/apis/apps", None),
            ("/clusters/root/ui/api/version", None),
            ("/api/v1", None),
        ] {
            let inner = inner_uri(&uri.parse().unwrap());
            assert_eq!(inner.map(|uri| uri.to_string()).as_deref(), expected, "{uri}");
        }
    }

    #[test]
    fn the_consoles_own_paths_are_those_below_ui() {
        for (path, expected) in [("/ui", true), ("/ui/session", true), ("/uix", false), ("/api/ui", false)] {
            assert_eq!(is_own(path), expected, "{path}");
        }
    }
}
