//! Sign-in in a browser of this machine: the code flow with PKCE, with a loopback address to return to (RFC 8252).

use std::time::Duration;

use anyhow::{Context as _, bail};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use portolan_types::Seams;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::{
    provider::{OpenIdProvider, form, tokens_of},
    token_cache::CachedTokens,
};
use crate::cli::plugin::{Terminal, console::browse};

/// Time for the user to sign in.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time for a browser to send its request.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Most bytes of a browser's request.
const REQUEST_BYTES: usize = 16 * 1024;
const SECRET_BYTES: usize = 32;
const DONE: &str = "You are signed in. You can close this page, and go on in the terminal.";
const FAILED: &str = "The sign-in failed. The terminal says why.";

/// Signs in, and returns the tokens.
///
/// # Errors
/// A refusal, no answer within five minutes, or a port in use.
pub(super) async fn sign_in(
    provider: &OpenIdProvider,
    terminal: &mut Terminal,
    port: u16,
    open: bool,
) -> anyhow::Result<CachedTokens> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.context("the port to return to cannot be used")?;
    let redirect = format!("http://127.0.0.1:{}/callback", listener.local_addr()?.port());
    let [state, nonce, verifier] = [(); 3].map(|()| secret());
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&verifier));
    let query = form(&[
        ("response_type", "code"),
        ("client_id", &provider.client_id),
        ("redirect_uri", &redirect),
        ("scope", &provider.scope),
        ("state", &state),
        ("nonce", &nonce),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
    ]);
    let endpoint = provider.endpoint("authorization_endpoint")?;
    let separator = if endpoint.contains('?') { '&' } else { '?' };
    let url = format!("{endpoint}{separator}{query}");
    terminal.note(&format!("Open this page in a browser of this machine, and sign in:\n\n  {url}\n"));
    terminal.note("There is none here? Sign in on another device: kubectl portolan login --device");
    if open {
        browse(&url)?;
    }
    let code = tokio::time::timeout(PATIENCE, returned_code(&listener, &state)).await;
    let code = code.context("no browser came back within five minutes")??;
    let exchanged = [
        ("grant_type", "authorization_code"),
        ("code", code.as_str()),
        ("redirect_uri", &redirect),
        ("code_verifier", &verifier),
    ];
    let tokens = tokens_of(&provider.ask_token(&exchanged).await?)?;
    let claims = super::claims_of(&tokens.id_token).context("the ID token is no JSON Web Token")?;
    if claims["nonce"] != nonce.as_str() {
        bail!("the ID token is that of another sign-in");
    }
    Ok(tokens)
}

fn secret() -> String {
    let mut bytes = [0; SECRET_BYTES];
    Seams::system().entropy.fill(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Waits for the browser that the issuer sends back. Other requests, as for an icon, are answered with 404.
async fn returned_code(listener: &TcpListener, state: &str) -> anyhow::Result<String> {
    loop {
        let (mut socket, _) = listener.accept().await.context("the browser cannot be waited for")?;
        let Ok(Ok(target)) = tokio::time::timeout(REQUEST_TIME, request_target(&mut socket)).await else { continue };
        let Some(query) = target.strip_prefix("/callback?") else {
            respond(&mut socket, "404 Not Found", "").await;
            continue;
        };
        let field = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        if field("state") != Some(state) {
            respond(&mut socket, "400 Bad Request", FAILED).await;
            continue;
        }
        let Some(code) = field("code") else {
            respond(&mut socket, "400 Bad Request", FAILED).await;
            bail!("the issuer refused: {}", decoded(field("error").unwrap_or("it sent no code")));
        };
        respond(&mut socket, "200 OK", DONE).await;
        return Ok(decoded(code));
    }
}

/// Reads the target of an HTTP/1.1 request.
async fn request_target(socket: &mut TcpStream) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|window| window == b"\r\n\r\n") {
        if bytes.len() > REQUEST_BYTES || socket.read_buf(&mut bytes).await? == 0 {
            bail!("it is no request");
        }
    }
    let line = String::from_utf8_lossy(&bytes);
    let mut words = line.split(' ');
    match (words.next(), words.next()) {
        (Some("GET"), Some(target)) => Ok(target.to_owned()),
        _ => bail!("it is no GET"),
    }
}

/// Answers the browser. A failure is ignored: the code counts.
async fn respond(socket: &mut TcpStream, status: &str, text: &str) {
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    let _ = socket.write_all(answer.as_bytes()).await;
    let _ = socket.shutdown().await;
}

/// Decodes a value of a query.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let escaped = more.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_query_are_decoded() {
        for (text, expected) in
            [("a%2Fb", "a/b"), ("a+b", "a b"), ("%c3%a4", "ä"), ("%", "%"), ("%2", "%2"), ("%zz", "%zz"), ("", "")]
        {
            assert_eq!(decoded(text), expected, "{text}");
        }
        assert_eq!(form(&[("a", "b/c d"), ("e", "ä")]), "a=b%2Fc%20d&e=%C3%A4");
    }
}
