//! Facts about the connection of a physical cluster, as annotations for people.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jiff::Timestamp;
use portolan_apiserver::pki::{InspectedPair, inspect_certificate};
use portolan_types::{object, seams::seconds_text};
use serde_json::Value;

/// Annotation: version of the agent that is or was connected last.
const AGENT_VERSION: &str = "portolan.dev/agent-version";
/// Annotation: end of the credentials in the kubeconfig (RFC 3339), or [`NEVER`].
const CREDENTIALS_EXPIRE: &str = "portolan.dev/credentials-expire";
/// Value for credentials without an end.
const NEVER: &str = "never";

/// Facts about a connection, as far as this server knows them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionFacts {
    /// Version of the connected agent. Another server may have its session.
    pub(super) agent_version: Option<String>,
    /// End of the credentials in the kubeconfig.
    pub(super) expiry: Option<String>,
}

impl ConnectionFacts {
    /// Writes the known facts. Returns true if they have changed.
    pub(super) fn annotate(&self, physical: &mut Value) -> bool {
        let mut has_changed = false;
        for (key, value) in [(AGENT_VERSION, &self.agent_version), (CREDENTIALS_EXPIRE, &self.expiry)] {
            if value.is_some() && object::annotation(physical, key) != value.as_deref() {
                object::set_annotation(physical, key, value.clone());
                has_changed = true;
            }
        }
        has_changed
    }
}

/// Returns the end of the credentials of a kubeconfig's current context; `None` for credentials that cannot be read.
pub(super) fn expiry(kubeconfig: &str, now: Timestamp) -> Option<String> {
    let config: Value = serde_saphyr::from_str(kubeconfig).ok()?;
    let entry = |list: &str, name: &Value| config[list].as_array()?.iter().find(|entry| entry["name"] == *name);
    let context = entry("contexts", &config["current-context"])?;
    let user = &entry("users", &context["context"]["user"])?["user"];
    match user["token"].as_str() {
        Some(token) => end_of_token(token),
        None => end_of_certificate(user, now),
    }
}

/// Returns the end that a JSON Web Token claims. Other tokens say nothing about it.
fn end_of_token(token: &str) -> Option<String> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    match claims.get("exp") {
        None => Some(NEVER.to_owned()),
        Some(end) => Some(seconds_text(Timestamp::from_second(end.as_i64()?).ok()?)),
    }
}

fn end_of_certificate(user: &Value, now: Timestamp) -> Option<String> {
    let text = |key: &str| String::from_utf8(STANDARD.decode(user[key].as_str()?).ok()?).ok();
    let (certificate, key) = (text("client-certificate-data")?, text("client-key-data")?);
    let facts = inspect_certificate(InspectedPair { certificate: &certificate, key: &key }, &[], now).ok()?;
    Some(seconds_text(facts.ends))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kubeconfig(user: &Value) -> String {
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": "https://a"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "u"}}],
            "users": [{"name": "other", "user": {"token": "x"}}, {"name": "u", "user": user}]})
        .to_string()
    }

    fn token(claims: &Value) -> Value {
        json!({"token": format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims.to_string()))})
    }

    #[test]
    fn the_end_of_credentials_is_read() {
        for (case, user, expected) in [
            ("a bound token", token(&json!({"exp": 1_800_000_000})), Some("2027-01-15T08:00:00Z")),
            ("the token of a Secret", token(&json!({"iss": "kubernetes/serviceaccount"})), Some("never")),
            ("no JSON Web Token", json!({"token": "opaque"}), None),
            (
                "a certificate that cannot be read",
                json!({"client-certificate-data": "eA==", "client-key-data": "eA=="}),
                None,
            ),
            ("no credentials", json!({}), None),
        ] {
            let found = expiry(&kubeconfig(&user), Timestamp::UNIX_EPOCH);
            assert_eq!(found.as_deref(), expected, "{case}");
        }
        assert_eq!(expiry("a: [", Timestamp::UNIX_EPOCH), None);
    }

    #[test]
    fn facts_are_written_when_they_change() {
        let facts = ConnectionFacts { agent_version: Some("0.1.0".into()), expiry: None };
        let mut east = json!({"metadata": {"annotations": {CREDENTIALS_EXPIRE: "never"}}});
        assert!(facts.annotate(&mut east));
        let own = json!({AGENT_VERSION: "0.1.0", CREDENTIALS_EXPIRE: "never"});
        assert_eq!(east["metadata"]["annotations"], own, "what is unknown stays");
        assert!(!facts.annotate(&mut east));
    }
}
