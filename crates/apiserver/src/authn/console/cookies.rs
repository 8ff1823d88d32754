//! Cookies of a session. A browser takes about 4 KiB per cookie, so a session is divided over some.

use http::{HeaderMap, HeaderValue, header::COOKIE};
use portolan_types::Status;

/// Name of the cookies, before their number. Browsers accept the prefix over TLS only.
const NAME: &str = "__Secure-portolan-session-";
/// Name of the cookie of a sign-in that is under way.
const SIGN_IN: &str = "__Secure-portolan-sign-in";
/// Path of the cookies.
const PATH: &str = "/ui/api/";
/// Most bytes of one cookie's value.
const PIECE: usize = 3600;
/// Most cookies of a session.
const PIECES: usize = 4;

/// Returns the `Set-Cookie` headers of a sealed session that is valid for `seconds`. Cookies of an earlier, larger
/// session are removed.
///
/// # Errors
/// 413 if the session fits no cookies.
pub(crate) fn session_cookies(sealed: &str, seconds: i64) -> Result<Vec<HeaderValue>, Status> {
    let pieces: Vec<&[u8]> = sealed.as_bytes().chunks(PIECE).collect();
    if pieces.len() > PIECES {
        return Err(Status::too_large("the user has too many groups for a session of the console"));
    }
    let value = |number: usize| match pieces.get(number) {
        Some(piece) => cookie(number, &String::from_utf8_lossy(piece), seconds),
        None => cookie(number, "", 0),
    };
    (0..PIECES).map(value).collect()
}

/// Returns the `Set-Cookie` headers that remove a session.
///
/// # Errors
/// None in practice; the names are constant.
pub(crate) fn expired_cookies() -> Result<Vec<HeaderValue>, Status> {
    (0..PIECES).map(|number| cookie(number, "", 0)).collect()
}

fn cookie(number: usize, value: &str, seconds: i64) -> Result<HeaderValue, Status> {
    let text = format!("{NAME}{number}={value}; Path={PATH}; Max-Age={seconds}; HttpOnly; Secure; SameSite=Strict");
    HeaderValue::from_str(&text).map_err(Status::internal)
}

/// Returns the `Set-Cookie` header of a sign-in that is under way, or with zero seconds the one that removes it. The
/// browser sends it when the issuer leads it back, so it is not `Strict`.
///
/// # Errors
/// 500 for text that is not a header.
pub(crate) fn sign_in_cookie(sealed: &str, seconds: i64) -> Result<HeaderValue, Status> {
    let text = format!("{SIGN_IN}={sealed}; Path=/ui/oidc/; Max-Age={seconds}; HttpOnly; Secure; SameSite=Lax");
    HeaderValue::from_str(&text).map_err(Status::internal)
}

/// Returns the sealed sign-in of a request.
pub(crate) fn take_sign_in(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = values.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, value)| *name == SIGN_IN && value.len() <= PIECE).map(|(_, value)| value.to_owned())
}

/// Removes all cookies, and returns the sealed session in them.
pub(super) fn take(headers: &mut HeaderMap) -> Option<String> {
    let mut pieces = [const { None }; PIECES];
    for value in headers.get_all(COOKIE) {
        let Ok(text) = value.to_str() else { continue };
        for (name, piece) in text.split(';').filter_map(|pair| pair.trim().split_once('=')) {
            let number = name.strip_prefix(NAME).and_then(|number| number.parse::<usize>().ok());
            if let Some(place) = number.and_then(|number| pieces.get_mut(number)).filter(|_| piece.len() <= PIECE) {
                *place = Some(piece.to_owned());
            }
        }
    }
    headers.remove(COOKIE);
    let sealed: String = pieces.into_iter().map_while(|piece| piece).collect();
    Some(sealed).filter(|sealed| !sealed.is_empty())
}
