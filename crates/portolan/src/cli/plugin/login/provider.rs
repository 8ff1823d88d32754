//! OpenID provider: its endpoints, and the exchange of codes and refresh tokens for ID tokens.

use anyhow::{Context as _, bail, ensure};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{
    Method, Request, Uri,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use serde_json::Value;
use std::time::Duration;

use super::token_cache::CachedTokens;

/// Most bytes of an answer.
const ANSWER_BYTES: usize = 1 << 20;
/// Time for one answer.
const PATIENCE: Duration = Duration::from_secs(30);
const SCOPES: [&str; 4] = ["openid", "email", "profile", "offline_access"];

/// Client that signs in.
pub(super) struct OpenIdClient {
    /// Id at the issuer.
    pub(super) id: String,
    /// Secret, if it has one.
    pub(super) secret: Option<String>,
    /// Further scopes to request.
    pub(super) scopes: Vec<String>,
    /// Certificates (DER) that the issuer's must chain to; the system's without.
    pub(super) roots: Option<Vec<Vec<u8>>>,
}

/// Provider with the client that signs in.
pub(super) struct OpenIdProvider {
    pub(super) issuer: String,
    pub(super) client_id: String,
    secret: Option<String>,
    pub(super) scope: String,
    document: Value,
    roots: Option<Vec<Vec<u8>>>,
}

/// Answer of an endpoint: its code and JSON.
pub(super) struct ProviderAnswer {
    pub(super) is_success: bool,
    pub(super) body: Value,
}

impl ProviderAnswer {
    /// Returns the error of OAuth 2.0.
    pub(super) fn error(&self) -> &str {
        self.body["error"].as_str().unwrap_or_default()
    }

    /// Returns the error in words.
    pub(super) fn reason(&self) -> String {
        let more = self.body["error_description"].as_str().unwrap_or_default();
        format!("{} {more}", self.error()).trim().to_owned()
    }
}

impl OpenIdProvider {
    /// Reads the discovery document of an issuer.
    ///
    /// # Errors
    /// Fails if the issuer does not answer, or is another one.
    pub(super) async fn discover(issuer: String, client: OpenIdClient) -> anyhow::Result<Self> {
        let OpenIdClient { id: client_id, secret, scopes: further, roots } = client;
        let mut provider = Self { issuer, client_id, secret, scope: String::new(), document: Value::Null, roots };
        let url = format!("{}/.well-known/openid-configuration", provider.issuer.trim_end_matches('/'));
        let answer = provider.exchange(&url, None).await?;
        ensure!(answer.is_success, "{url} has no discovery document");
        let named = answer.body["issuer"].as_str().unwrap_or_default();
        ensure!(named == provider.issuer, "the discovery document is of the issuer {named:?}");
        let supported = answer.body["scopes_supported"].as_array();
        let is_known = |scope: &str| supported.is_none_or(|known| known.iter().any(|one| one == scope));
        // Some issuers refuse a request for an unknown scope.
        let usual = SCOPES.into_iter().filter(|scope| *scope == "openid" || is_known(scope)).map(str::to_owned);
        let groups = supported.filter(|_| is_known("groups")).map(|_| "groups".to_owned());
        provider.scope = usual.chain(groups).chain(further).collect::<Vec<_>>().join(" ");
        provider.document = answer.body;
        Ok(provider)
    }

    /// Returns the host of the issuer.
    pub(super) fn host(&self) -> &str {
        let rest = self.issuer.split_once("://").map_or(self.issuer.as_str(), |(_, rest)| rest);
        rest.split('/').next().unwrap_or(rest)
    }

    /// Returns an endpoint of the discovery document.
    ///
    /// # Errors
    /// Fails if it has none of this name.
    pub(super) fn endpoint(&self, name: &str) -> anyhow::Result<&str> {
        self.document[name].as_str().with_context(|| format!("the issuer {} has no {name}", self.issuer))
    }

    /// Asks the token endpoint. The fields of the client are added.
    ///
    /// # Errors
    /// No answer.
    pub(super) async fn ask_token(&self, fields: &[(&str, &str)]) -> anyhow::Result<ProviderAnswer> {
        let secret = self.secret.as_deref().map(|secret| ("client_secret", secret));
        let client = std::iter::once(("client_id", self.client_id.as_str())).chain(secret);
        let all: Vec<(&str, &str)> = fields.iter().copied().chain(client).collect();
        self.exchange(self.endpoint("token_endpoint")?, Some(form(&all))).await
    }

    /// Renews the tokens.
    ///
    /// # Errors
    /// A refusal, or no answer.
    pub(super) async fn renew(&self, refresh_token: &str) -> anyhow::Result<CachedTokens> {
        let answer = self.ask_token(&[("grant_type", "refresh_token"), ("refresh_token", refresh_token)]).await?;
        let mut renewed = tokens_of(&answer)?;
        // An issuer that sends no new refresh token lets the old one serve on.
        renewed.refresh_token.get_or_insert_with(|| refresh_token.to_owned());
        Ok(renewed)
    }

    /// Fetches a document, or posts a form.
    ///
    /// # Errors
    /// Fails if the URL is not of https, except on this machine, or no answer comes.
    pub(super) async fn exchange(&self, url: &str, form: Option<String>) -> anyhow::Result<ProviderAnswer> {
        let uri: Uri = url.parse().with_context(|| format!("{url:?} is no URL"))?;
        let host = uri.host().unwrap_or_default();
        let is_local = matches!(host, "127.0.0.1" | "[::1]" | "localhost");
        if uri.scheme_str() != Some("https") && !is_local {
            bail!("{url} is not of https");
        }
        let authority = uri.authority().context("the URL has no host")?;
        let base = format!("{}://{authority}", uri.scheme_str().unwrap_or("https")).parse()?;
        let mut config = kube::Config::new(base);
        config.root_cert.clone_from(&self.roots);
        (config.connect_timeout, config.read_timeout) = (Some(PATIENCE), Some(PATIENCE));
        let client = kube::Client::try_from(config).context("the issuer's certificates cannot be used")?;
        let method = if form.is_some() { Method::POST } else { Method::GET };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::builder().method(method).uri(path).header(ACCEPT, "application/json");
        if form.is_some() {
            request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        let request = request.body(Body::from(form.unwrap_or_default().into_bytes()))?;
        let answer = client.send(request).await.with_context(|| format!("{url} does not answer"))?;
        let is_success = answer.status().is_success();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("{url}: {error}"))?.to_bytes();
        Ok(ProviderAnswer { is_success, body: serde_json::from_slice(&body).unwrap_or_default() })
    }
}

/// Reads the tokens of an answer.
///
/// # Errors
/// A refusal, or an answer without an ID token.
pub(super) fn tokens_of(answer: &ProviderAnswer) -> anyhow::Result<CachedTokens> {
    ensure!(answer.is_success, "the issuer refused: {}", answer.reason());
    let text = |name: &str| answer.body[name].as_str().map(str::to_owned);
    let id_token = text("id_token").context("the issuer gave no ID token")?;
    Ok(CachedTokens { id_token, refresh_token: text("refresh_token") })
}

/// Returns the claims of a token. Only the server verifies its signature.
pub(super) fn claims_of(token: &str) -> Option<Value> {
    let payload = token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

/// Encodes fields as a form, which is also a query.
pub(super) fn form(fields: &[(&str, &str)]) -> String {
    let encode = |text: &str| -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        text.bytes()
            .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
            .collect()
    };
    fields.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect::<Vec<_>>().join("&")
}
