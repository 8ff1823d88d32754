//! Sign-in on another device: a code that the user types there (RFC 8628).

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::time::Instant;

use super::{
    provider::{OpenIdProvider, form, tokens_of},
    token_cache::CachedTokens,
};
use crate::cli::plugin::Terminal;

const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Seconds between two questions, unless the issuer names others.
const INTERVAL: u64 = 5;
/// Seconds until a code expires, unless the issuer names others; longer ones are cut.
const EXPIRY: u64 = 900;

/// Signs in, and returns the tokens.
///
/// # Errors
/// A refusal, or a code that expires.
pub(super) async fn sign_in(provider: &OpenIdProvider, terminal: &mut Terminal) -> anyhow::Result<CachedTokens> {
    let endpoint = provider.endpoint("device_authorization_endpoint")?;
    let asked = form(&[("client_id", &provider.client_id), ("scope", &provider.scope)]);
    let answer = provider.exchange(endpoint, Some(asked)).await?;
    ensure!(answer.is_success, "the issuer refused: {}", answer.reason());
    let text = |name: &str| answer.body[name].as_str();
    let device_code = text("device_code").context("the issuer gave no code of the device")?;
    let user_code = text("user_code").context("the issuer gave no code")?;
    let page = text("verification_uri").context("the issuer gave no page")?;
    terminal.note(&format!("On any device, open {page} and enter the code {user_code}"));
    if let Some(whole) = text("verification_uri_complete") {
        terminal.note(&format!("or open {whole}"));
    }
    let seconds = |name: &str, usual: u64| answer.body[name].as_u64().unwrap_or(usual).clamp(1, EXPIRY);
    let mut interval = seconds("interval", INTERVAL);
    let until = Instant::now() + Duration::from_secs(seconds("expires_in", EXPIRY));
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_secs(interval)).await;
        let answer = provider.ask_token(&[("grant_type", GRANT), ("device_code", device_code)]).await?;
        match answer.error() {
            "authorization_pending" => {}
            "slow_down" => interval += INTERVAL,
            _ => return tokens_of(&answer),
        }
    }
    bail!("the code has expired; sign in again")
}
