//! Requests of users that are passed on whole: to the API server of a physical cluster, or to a port of a pod or
//! service in it. Credentials of the client stay upstream, and the answer is not trusted.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode,
    header::{self, SEC_WEBSOCKET_PROTOCOL},
};
use hyper::upgrade::OnUpgrade;
use kube::{Client, client::Body};
use portolan_types::placement::MemberUser;

use super::{DownstreamPod, StreamError, asks_for_upgrade, headers, locate_at};
use crate::client::{encode, error_chain};

/// Headers of one connection (RFC 9110, section 7.6.1), and those that the connection downstream sets itself.
const OF_CONNECTION: [HeaderName; 9] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::HOST,
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];
/// Credentials of the client, and its origin, which names the upstream server.
const OF_CLIENT: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::PROXY_AUTHORIZATION,
    header::ORIGIN,
    header::REFERER,
    header::FORWARDED,
];
/// Prefixes of headers that name a user or a client.
const CLIENT_PREFIXES: [&str; 5] = ["impersonate-", "x-remote-", "x-forwarded-", "x-portolan-", "x-kubesphere-"];
/// Prefix of the protocol by which browsers send a token.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";
/// Headers of an answer that would act on the origin of the upstream server.
const OF_ORIGIN: [HeaderName; 9] = [
    header::SET_COOKIE,
    header::WWW_AUTHENTICATE,
    header::PROXY_AUTHENTICATE,
    header::STRICT_TRANSPORT_SECURITY,
    header::ALT_SVC,
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("service-worker-allowed"),
    header::REFRESH,
    header::LINK,
];
/// Prefix of headers that allow pages of other origins to read an answer.
const CORS: &str = "access-control-";

/// Request that is passed on.
#[derive(Debug)]
pub struct ProxiedRequest<'a> {
    /// Method.
    pub method: Method,
    /// Path and query downstream.
    pub path: &'a str,
    /// Headers as the client sent them.
    pub headers: &'a HeaderMap,
    /// Body.
    pub body: bytes::Bytes,
    /// User to act as; `None` for the identity of the connection.
    pub acting: Option<&'a MemberUser>,
    /// Own token of the user, for a connection without an identity.
    pub token: Option<&'a str>,
}

/// Answer to a request that was passed on, without the headers that its sender must not set.
#[derive(Debug)]
pub enum ProxiedAnswer {
    /// Answer with a body.
    Response(http::Response<Body>),
    /// Connection that changed its protocol, and the headers that name it.
    Upgraded(HeaderMap, OnUpgrade),
}

/// Passes a request on. Redirects are returned, and not followed.
///
/// # Errors
/// [`StreamError`] without an answer.
pub async fn proxy(client: &Client, asked: ProxiedRequest<'_>) -> Result<ProxiedAnswer, StreamError> {
    let (is_upgrade, headers) = (asks_for_upgrade(asked.headers), asked.headers);
    let request = downstream(asked)?;
    let sent = tokio::time::timeout(super::ANSWER, client.send(request)).await;
    let sent = sent.map_err(|_| StreamError::Unreachable("it does not answer in time".into()))?;
    let mut response = sent.map_err(|error| StreamError::Unreachable(error_chain(&error)))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let known = headers::upstream(headers, response.headers()).filter(|_| is_upgrade);
        let known =
            known.ok_or_else(|| StreamError::Garbled("it changed to a protocol that was not requested".into()))?;
        return Ok(ProxiedAnswer::Upgraded(known, hyper::upgrade::on(&mut response)));
    }
    if response.status().is_informational() {
        return Err(StreamError::Garbled(format!("it answered {}", response.status())));
    }
    clean_answer(response.headers_mut());
    Ok(ProxiedAnswer::Response(response))
}

/// Returns the path of a port of `copy` downstream, after checking that the object there is that copy.
///
/// # Errors
/// [`StreamError`].
pub async fn port_path(
    client: &Client,
    copy: &DownstreamPod,
    resource: &str,
    segment: &str,
) -> Result<String, StreamError> {
    let objects = format!("/api/v1/namespaces/{}/{resource}", encode(copy.namespace()));
    locate_at(client, copy, &format!("{objects}/{}", encode(copy.name()))).await?;
    Ok(format!("{objects}/{segment}/proxy"))
}

fn downstream(asked: ProxiedRequest<'_>) -> Result<Request<Body>, StreamError> {
    let garbled = |error: &dyn std::fmt::Display| StreamError::Garbled(error.to_string());
    let request = Request::builder().method(asked.method).uri(asked.path).body(Body::from(asked.body.to_vec()));
    let mut request = request.map_err(|error| garbled(&error))?;
    let headers = request.headers_mut();
    *headers = cleaned(asked.headers);
    if let Some(user) = asked.acting {
        let value = |text: &str| HeaderValue::from_str(text).map_err(|error| garbled(&error));
        headers.insert(HeaderName::from_static("impersonate-user"), value(&user.name)?);
        for group in &user.groups {
            headers.append(HeaderName::from_static("impersonate-group"), value(group)?);
        }
    }
    if let Some(token) = asked.token {
        let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(|error| garbled(&error))?;
        bearer.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, bearer);
    }
    Ok(request)
}

/// Returns the headers of a client that are passed on.
fn cleaned(asked: &HeaderMap) -> HeaderMap {
    let named = options_of_connection(asked);
    let is_kept = |name: &HeaderName| {
        let text = name.as_str();
        !OF_CONNECTION.contains(name)
            && !OF_CLIENT.contains(name)
            && !CLIENT_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
            && !text.starts_with("sec-websocket-")
            && !named.iter().any(|word| word == text)
    };
    let kept = asked.iter().filter(|(name, _)| is_kept(name));
    let mut headers: HeaderMap = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    if asks_for_upgrade(asked) {
        headers::upgrade_into(asked, &mut headers);
        if let Some(protocols) = protocols(asked) {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, protocols);
        }
    }
    headers
}

/// Returns the headers that `Connection` declares as its own.
fn options_of_connection(asked: &HeaderMap) -> Vec<String> {
    let values = asked.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|word| word.trim().to_ascii_lowercase()).collect()
}

/// Returns the protocols of a WebSocket without the one that carries a token.
fn protocols(asked: &HeaderMap) -> Option<HeaderValue> {
    let values = asked.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let words = values.flat_map(|value| value.split(',')).map(str::trim);
    let kept: Vec<&str> = words.filter(|word| !word.starts_with(TOKEN_PROTOCOL)).collect();
    HeaderValue::from_str(&kept.join(", ")).ok().filter(|value| !value.is_empty())
}

/// Removes headers that could affect the origin of the upstream server, and confines the pages of the answer.
fn clean_answer(headers: &mut HeaderMap) {
    let named = options_of_connection(headers);
    let is_refused = |name: &HeaderName| {
        let text = name.as_str();
        let is_own = *name != header::CONTENT_LENGTH && OF_CONNECTION.contains(name);
        is_own || OF_ORIGIN.contains(name) || text.starts_with(CORS) || named.iter().any(|word| word == text)
    };
    let refused: Vec<HeaderName> = headers.keys().filter(|name| is_refused(name)).cloned().collect();
    refused.iter().for_each(|name| drop(headers.remove(name)));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn credentials_of_a_client_stay_upstream() {
        let asked = map(&[
            ("authorization", "Bearer tenant"),
            ("cookie", "a=b"),
            ("proxy-authorization", "x"),
            ("impersonate-user", "root"),
            ("impersonate-extra-scopes", "all"),
            ("x-remote-group", "system:masters"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-portolan-identity", "access"),
            ("x-kubesphere-authorization", "Bearer tenant"),
            ("origin", "https://upstream"),
            ("host", "upstream"),
            ("connection", "close, x-secret"),
            ("x-secret", "1"),
            ("content-length", "3"),
            ("accept", "application/json"),
            ("content-type", "application/yaml"),
            ("x-requested-with", "app"),
        ]);
        let expected =
            map(&[("accept", "application/json"), ("content-type", "application/yaml"), ("x-requested-with", "app")]);
        assert_eq!(cleaned(&asked), expected);
    }

    #[test]
    fn a_token_among_the_protocols_of_a_websocket_stays_upstream() {
        let asked = map(&[
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "a2V5"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.c2VjcmV0, v5.channel.k8s.io, app"),
        ]);
        let expected = map(&[
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "a2V5"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "v5.channel.k8s.io, app"),
        ]);
        assert_eq!(cleaned(&asked), expected);
    }

    #[test]
    fn the_mapped_user_is_the_only_one_that_goes_downstream() {
        let asked = map(&[("impersonate-user", "root"), ("impersonate-group", "system:masters")]);
        let user = MemberUser { name: "ann".into(), groups: vec!["devs".into(), "ops".into()] };
        for (acting, name, groups) in [(None, None, 0), (Some(&user), Some("ann"), 2)] {
            let body = bytes::Bytes::new();
            let request =
                ProxiedRequest { method: Method::GET, path: "/api", headers: &asked, body, acting, token: None };
            let headers = downstream(request).unwrap().headers().clone();
            assert_eq!(headers.get("impersonate-user").map(|value| value.to_str().unwrap()), name);
            assert_eq!(headers.get_all("impersonate-group").iter().count(), groups);
        }
    }

    #[test]
    fn a_hostile_answer_gets_nothing() {
        let mut answered = map(&[
            ("set-cookie", "session=mine"),
            ("www-authenticate", "Basic"),
            ("access-control-allow-origin", "*"),
            ("access-control-allow-credentials", "true"),
            ("content-security-policy", "default-src *"),
            ("strict-transport-security", "max-age=1"),
            ("clear-site-data", "\"*\""),
            ("service-worker-allowed", "/"),
            ("refresh", "0; url=https://evil.example"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("content-type", "text/html"),
            ("content-length", "7"),
        ]);
        clean_answer(&mut answered);
        let expected = map(&[
            ("content-type", "text/html"),
            ("content-length", "7"),
            ("content-security-policy", "sandbox"),
            ("x-content-type-options", "nosniff"),
        ]);
        assert_eq!(answered, expected);
    }
}
