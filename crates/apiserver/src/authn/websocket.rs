//! Bearer tokens in WebSocket subprotocols: browsers cannot set headers on a WebSocket.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONNECTION, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
};
use portolan_types::Status;

const TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// Returns true if the client asks for a WebSocket.
pub(crate) fn is_asked_for(headers: &HeaderMap) -> bool {
    has_token(headers, UPGRADE, "websocket") && has_token(headers, CONNECTION, "upgrade")
}

fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|own| own.trim().eq_ignore_ascii_case(token))
}

/// Removes a token from the subprotocols, valid or not, so that no handler sees it.
///
/// # Errors
/// 401, if a WebSocket is asked for, for several tokens, for a malformed one, and for one without another subprotocol
/// that the server could select.
pub(super) fn take_token(headers: &mut HeaderMap) -> Result<Option<String>, Status> {
    let (tokens, others) = protocols(headers);
    if tokens.is_empty() {
        return Ok(None);
    }
    let left = others.join(&b","[..]);
    match HeaderValue::from_bytes(&left) {
        Ok(left) if !left.is_empty() => headers.insert(SEC_WEBSOCKET_PROTOCOL, left),
        _ => headers.remove(SEC_WEBSOCKET_PROTOCOL),
    };
    let encoded = match &tokens[..] {
        _ if !is_asked_for(headers) => return Ok(None),
        [encoded] => encoded,
        _ => return Err(Status::unauthorized()),
    };
    let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| Status::unauthorized())?;
    let token = String::from_utf8(bytes).map_err(|_| Status::unauthorized())?;
    if others.is_empty() && !token.is_empty() {
        return Err(Status::unauthorized());
    }
    Ok(Some(token).filter(|token| !token.is_empty()))
}

/// Splits the offered subprotocols into encoded tokens and all others.
fn protocols(headers: &HeaderMap) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut tokens, mut others) = (Vec::new(), Vec::new());
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    for protocol in values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii) {
        match protocol.strip_prefix(TOKEN.as_bytes()) {
            Some(encoded) => tokens.push(encoded.to_vec()),
            None => others.push(protocol.to_vec()),
        }
    }
    (tokens, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_removed_from_the_subprotocols() {
        let token = |text: &str| format!("{TOKEN}{}", URL_SAFE_NO_PAD.encode(text));
        let (one, other) = (token("t-ann"), token("t-bob"));
        for (case, protocols, expected, left) in [
            ("none", "v5.channel.k8s.io".to_owned(), Ok(None), Some("v5.channel.k8s.io")),
            ("behind another", format!("binary.k8s.io, {one}"), Ok(Some("t-ann")), Some("binary.k8s.io")),
            ("before others", format!("{one},a,b"), Ok(Some("t-ann")), Some("a,b")),
            ("alone", one.clone(), Err(401), None),
            ("two", format!("{one}, {other}, a"), Err(401), Some("a")),
            ("padded", format!("{TOKEN}dA==, a"), Err(401), Some("a")),
            ("with bytes that are not text", format!("{one}\u{fc}, a"), Err(401), Some("a")),
            ("empty", format!("{TOKEN}, a"), Ok(None), Some("a")),
            ("empty and alone", TOKEN.to_owned(), Ok(None), None),
        ] {
            let mut plain = HeaderMap::new();
            plain.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_bytes(protocols.as_bytes()).unwrap());
            let mut asking = plain.clone();
            asking.insert(UPGRADE, HeaderValue::from_static("WebSocket"));
            asking.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
            assert_eq!(take_token(&mut plain), Ok(None), "{case}: no WebSocket");
            let taken = take_token(&mut asking).map_err(|failure| failure.code());
            assert_eq!(taken, expected.map(|token| token.map(str::to_owned)), "{case}");
            for headers in [plain, asking] {
                let kept = headers.get(SEC_WEBSOCKET_PROTOCOL).map(|value| value.to_str().unwrap());
                assert_eq!(kept, left, "{case}");
            }
        }
    }
}
