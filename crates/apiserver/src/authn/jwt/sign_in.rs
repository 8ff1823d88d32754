//! Sign-in of browsers at an issuer: OpenID Connect's code flow with PKCE (RFC 7636), as a public client.
//!
//! The client is the first audience of the issuer. The secrets between start and end are sealed in a cookie of the
//! browser, so that the end may reach another server.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use portolan_types::{Seams, Status};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{JwtAuthenticators, JwtIssuer, unverified_claims};

/// Characters that a form and a query need not encode.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Life of a sign-in that is under way, in seconds.
pub(crate) const SIGN_IN_SECONDS: i64 = 600;
/// Random bytes of each secret.
const SECRET_BYTES: usize = 32;
/// Scopes that are requested, where the issuer names no others.
const SCOPES: [&str; 3] = ["openid", "email", "profile"];
/// Scope of groups, which some issuers require and others refuse.
const GROUPS: &str = "groups";

/// Issuer at which a user can sign in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SignInIssuer {
    /// URL of the issuer.
    pub(crate) url: String,
    /// Id of the client: the first audience that the server accepts.
    pub(crate) client_id: String,
    /// Host of the issuer, for people.
    pub(crate) name: String,
}

/// Sign-in that is under way: its secrets, and the page to return to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingSignIn {
    pub(crate) issuer: String,
    pub(crate) state: String,
    nonce: String,
    verifier: String,
    /// URL at which the issuer sends the browser back.
    redirect: String,
    /// Fragment of the console's page.
    pub(crate) page: String,
    /// End of its life, in seconds since the epoch.
    pub(crate) until: i64,
}

/// Answer of a token endpoint.
#[derive(Deserialize)]
struct TokenAnswer {
    id_token: Option<String>,
}

impl JwtAuthenticators {
    /// Returns the issuers at which users can sign in.
    pub(crate) fn sign_in_issuers(&self) -> Vec<SignInIssuer> {
        self.current.read().issuers.iter().filter_map(JwtIssuer::for_sign_in).collect()
    }

    /// Starts a sign-in. Returns the URL for the browser and the secrets.
    ///
    /// # Errors
    /// 404 for an unknown issuer, 503 for one that does not answer.
    pub(crate) async fn start_sign_in(
        &self,
        issuer: &str,
        redirect: String,
        page: String,
    ) -> Result<(String, PendingSignIn), Status> {
        let set = self.current.read().clone();
        let found = set.issuers.iter().find(|own| own.url == issuer).and_then(|own| Some((own, own.for_sign_in()?)));
        let (own, client) = found.ok_or_else(Status::no_such_page)?;
        let endpoints = own.keys.endpoints().await.map_err(unavailable)?;
        let [state, nonce, verifier] = [(); 3].map(|()| secret(&self.seams));
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&verifier));
        let takes_groups = endpoints.scopes.iter().any(|scope| scope == GROUPS);
        let scopes: Vec<&str> = SCOPES.into_iter().chain(takes_groups.then_some(GROUPS)).collect();
        let query = form(&[
            ("response_type", "code"),
            ("client_id", &client.client_id),
            ("redirect_uri", &redirect),
            ("scope", &scopes.join(" ")),
            ("state", &state),
            ("nonce", &nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let separator = if endpoints.authorization.contains('?') { '&' } else { '?' };
        let url = format!("{}{separator}{query}", endpoints.authorization);
        let until = self.seams.clock.now().as_second() + SIGN_IN_SECONDS;
        Ok((url, PendingSignIn { issuer: own.url.clone(), state, nonce, verifier, redirect, page, until }))
    }

    /// Exchanges the code of an issuer for an ID token. Its signature is not verified yet.
    ///
    /// # Errors
    /// 401 for a code that the issuer refuses, and for a token of another sign-in; 404 for an issuer that is gone.
    pub(crate) async fn finish_sign_in(&self, pending: &PendingSignIn, code: &str) -> Result<String, Status> {
        let set = self.current.read().clone();
        let found = set.issuers.iter().find(|own| own.url == pending.issuer);
        let (own, client) = found.and_then(|own| Some((own, own.for_sign_in()?))).ok_or_else(Status::no_such_page)?;
        let endpoints = own.keys.endpoints().await.map_err(unavailable)?;
        let body = form(&[
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &pending.redirect),
            ("client_id", &client.client_id),
            ("code_verifier", &pending.verifier),
        ]);
        let answer: TokenAnswer = own.keys.post(&endpoints.token, body).await.map_err(|why| {
            tracing::debug!(why, "the issuer refused a code");
            Status::unauthorized()
        })?;
        let token = answer.id_token.ok_or_else(Status::unauthorized)?;
        let claims = unverified_claims(&token).ok_or_else(Status::unauthorized)?;
        let is_own = claims.get("nonce").and_then(Value::as_str) == Some(&pending.nonce);
        if is_own { Ok(token) } else { Err(Status::unauthorized()) }
    }
}

impl JwtIssuer {
    fn for_sign_in(&self) -> Option<SignInIssuer> {
        let client_id = self.audiences.first()?.clone();
        let host = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        let name = host.split('/').next().unwrap_or(host).to_owned();
        Some(SignInIssuer { url: self.url.clone(), client_id, name })
    }
}

fn unavailable(why: String) -> Status {
    Status::new(portolan_types::Reason::ServiceUnavailable, format!("the issuer cannot be reached: {why}"))
}

fn secret(seams: &Seams) -> String {
    let mut bytes = [0; SECRET_BYTES];
    seams.entropy.fill(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Encodes fields as a form, which is also a query.
fn form(fields: &[(&str, &str)]) -> String {
    let fields = fields.iter().map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, ENCODED)));
    fields.collect::<Vec<_>>().join("&")
}
