//! Headers that are passed downstream, and those that are passed back.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        ACCEPT, CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
        UPGRADE,
    },
};

/// The versions of a protocol over SPDY that a client can, and the one that a server chose.
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Protocols that a connection may be upgraded to.
const UPGRADES: [&str; 2] = ["SPDY/3.1", "websocket"];
/// The protocols of Kubernetes over WebSocket. Among those that clients send there may also be one that carries their
/// token.
const PROTOCOLS: [&str; 11] = [
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "base64.channel.k8s.io",
    "SPDY/3.1+portforward.k8s.io",
    "portforward.k8s.io",
    "binary.k8s.io",
    "base64.binary.k8s.io",
];
/// Most values of one header.
const MOST: usize = 16;

/// Returns true when a request asks for an upgrade to a streaming protocol of Kubernetes.
pub fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    upgrade(headers).is_some()
}

fn upgrade(headers: &HeaderMap) -> Option<&'static str> {
    let asked = headers.get(UPGRADE)?.to_str().ok()?;
    let asks = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let is_asked = asks.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    UPGRADES.into_iter().find(|known| is_asked && known.eq_ignore_ascii_case(asked))
}

/// The headers of a request to the physical cluster.
pub(super) fn downstream(asked: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("*/*"))]);
    upgrade_into(asked, &mut headers);
    if let Some(protocols) = protocols(asked).filter(|_| asks_for_upgrade(asked)) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocols);
    }
    headers
}

/// Adds the headers of an upgrade, if one is requested, without the protocols of a WebSocket.
pub(super) fn upgrade_into(asked: &HeaderMap, headers: &mut HeaderMap) {
    let Some(upgrade) = upgrade(asked) else { return };
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(upgrade));
    for name in [SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, STREAM_PROTOCOL] {
        headers.remove(&name);
        for value in asked.get_all(&name).iter().take(MOST) {
            headers.append(name.clone(), value.clone());
        }
    }
}

fn protocols(asked: &HeaderMap) -> Option<HeaderValue> {
    let values = asked.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let words = values.flat_map(|value| value.split(',')).map(str::trim);
    let known: Vec<&str> = words.filter(|word| PROTOCOLS.contains(word)).take(MOST).collect();
    HeaderValue::from_str(&known.join(", ")).ok().filter(|value| !value.is_empty())
}

/// Headers of the answer that switches the protocol; `None` if it switches to one that was not requested.
pub(super) fn upstream(asked: &HeaderMap, answered: &HeaderMap) -> Option<HeaderMap> {
    let upgrade = upgrade(asked)?;
    let chosen = answered.get(UPGRADE)?.to_str().ok()?;
    if !upgrade.eq_ignore_ascii_case(chosen) {
        return None;
    }
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(upgrade));
    for name in [SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, STREAM_PROTOCOL] {
        if let Some(value) = answered.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn nothing_of_the_clients_goes_down_but_the_upgrade() {
        let asked = headers(&[
            ("authorization", "Bearer tenant"),
            ("cookie", "a=b"),
            ("impersonate-user", "root"),
            ("x-remote-user", "root"),
            ("x-forwarded-for", "10.0.0.1"),
            ("host", "upstream"),
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-key", "a2V5"),
            ("sec-websocket-version", "13"),
            (
                "sec-websocket-protocol",
                "base64url.bearer.authorization.k8s.io.c2VjcmV0, v5.channel.k8s.io,v4.channel.k8s.io",
            ),
        ]);
        let expected = headers(&[
            ("accept", "*/*"),
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "a2V5"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "v5.channel.k8s.io, v4.channel.k8s.io"),
        ]);
        assert_eq!(downstream(&asked), expected);
    }

    #[test]
    fn every_version_of_a_protocol_over_spdy_is_offered() {
        let mut asked = headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        for version in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
            asked.append(STREAM_PROTOCOL, HeaderValue::from_static(version));
        }
        assert_eq!(downstream(&asked).get_all(STREAM_PROTOCOL).iter().count(), 2);
    }

    #[test]
    fn an_upgrade_is_asked_for_in_both_headers_and_to_a_known_protocol() {
        for (connection, to, expected) in [
            ("Upgrade", "websocket", true),
            ("upgrade", "spdy/3.1", true),
            ("keep-alive", "websocket", false),
            ("Upgrade", "h2c", false),
            ("Upgrade", "tcp", false),
        ] {
            let asked = headers(&[("connection", connection), ("upgrade", to)]);
            assert_eq!(asks_for_upgrade(&asked), expected, "{connection} {to}");
        }
    }

    #[test]
    fn nothing_of_the_answer_comes_up_but_the_upgrade() {
        let asked = headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        let answered = headers(&[
            ("upgrade", "SPDY/3.1"),
            ("connection", "Upgrade"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
            ("set-cookie", "session=mine"),
            ("audit-id", "1"),
        ]);
        let expected = headers(&[
            ("connection", "Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
        ]);
        assert_eq!(upstream(&asked, &answered), Some(expected));
        assert_eq!(upstream(&asked, &headers(&[("upgrade", "h2c")])), None);
    }
}
