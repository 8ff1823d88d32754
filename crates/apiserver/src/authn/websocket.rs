//! Bearer tokens of browsers: they can put no header of their own on a WebSocket, so the token comes among its protocols.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONNECTION, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
};
use portolan_types::Status;

const TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// Whether a client asks for a WebSocket.
pub(crate) fn is_asked_for(headers: &HeaderMap) -> bool {
    has_token(headers, UPGRADE, "websocket") && has_token(headers, CONNECTION, "upgrade")
}

fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|own| own.trim().eq_ignore_ascii_case(token))
}

/// Takes the token out of the protocols: nobody behind the door sees it.
///
/// # Errors
/// 401 for several tokens, for what is none, and for one without another protocol, by which the server could answer.
pub(super) fn take_token(headers: &mut HeaderMap) -> Result<Option<String>, Status> {
    if !is_asked_for(headers) {
        return Ok(None);
    }
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let (tokens, others): (Vec<&str>, Vec<&str>) =
        values.flat_map(|value| value.split(',')).map(str::trim).partition(|protocol| protocol.starts_with(TOKEN));
    let [encoded] = tokens[..] else {
        return if tokens.is_empty() { Ok(None) } else { Err(Status::unauthorized()) };
    };
    let bytes = URL_SAFE_NO_PAD.decode(&encoded[TOKEN.len()..]).map_err(|_| Status::unauthorized())?;
    let token = String::from_utf8(bytes).map_err(|_| Status::unauthorized())?;
    if others.is_empty() && !token.is_empty() {
        return Err(Status::unauthorized());
    }
    let others = HeaderValue::from_str(&others.join(",")).map_err(Status::internal)?;
    headers.insert(SEC_WEBSOCKET_PROTOCOL, others);
    Ok(Some(token).filter(|token| !token.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_taken_out_of_the_protocols() {
        let token = |text: &str| format!("{TOKEN}{}", URL_SAFE_NO_PAD.encode(text));
        let (one, other) = (token("t-ann"), token("t-bob"));
        for (case, protocols, expected, left) in [
            ("none", "v5.channel.k8s.io".to_owned(), Ok(None), "v5.channel.k8s.io"),
            ("behind another", format!("binary.k8s.io, {one}"), Ok(Some("t-ann")), "binary.k8s.io"),
            ("before others", format!("{one},a,b"), Ok(Some("t-ann")), "a,b"),
            ("alone", one.clone(), Err(401), &*one),
            ("two", format!("{one}, {other}, a"), Err(401), &*format!("{one}, {other}, a")),
            ("padded", format!("{TOKEN}dA==, a"), Err(401), &*format!("{TOKEN}dA==, a")),
            ("empty", format!("{TOKEN}, a"), Ok(None), "a"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(SEC_WEBSOCKET_PROTOCOL, protocols.parse().unwrap());
            assert_eq!(take_token(&mut headers), Ok(None), "{case}: no WebSocket");
            headers.insert(UPGRADE, HeaderValue::from_static("WebSocket"));
            headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
            let taken = take_token(&mut headers).map_err(|failure| failure.code());
            assert_eq!(taken, expected.map(|token| token.map(str::to_owned)), "{case}");
            assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], left, "{case}");
        }
    }
}
