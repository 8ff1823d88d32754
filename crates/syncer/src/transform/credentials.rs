//! Credentials for the API server of a physical cluster that a copy would make it issue. Pure.

use std::collections::BTreeSet;

use portolan_types::GroupVersionKind;
use serde_json::Value;

use super::pods;
use crate::rules::SyncRefusal;

/// Audiences that API servers accept by default, or that are commonly configured.
const USUAL_AUDIENCES: [&str; 5] = [
    "https://kubernetes.default.svc",
    "https://kubernetes.default.svc.cluster.local",
    "kubernetes.default.svc",
    "https://kubernetes.default",
    "kubernetes",
];
/// Types of Secrets with which clients authenticate to the API server: the token of the first is made by the physical
/// cluster.
const CREDENTIAL_SECRETS: [&str; 2] = ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"];
/// Deepest nesting that is looked into; decoding bounds it too.
const MAX_DEPTH: usize = 64;

/// Audiences that the API server of a physical cluster accepts in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceptedAudiences {
    /// Unknown, for this reason: each audience may be accepted.
    Unknown(String),
    /// All of them.
    Known(BTreeSet<String>),
}

impl AcceptedAudiences {
    /// Returns the audiences that the API server reported, the usual ones, and those of the `host` that it is reached
    /// by.
    pub(crate) fn known(told: impl IntoIterator<Item = String>, host: Option<&str>) -> Self {
        let usual = USUAL_AUDIENCES.map(str::to_owned);
        let of_host = host.into_iter().flat_map(|host| {
            let name =
                host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
            [host, name]
                .into_iter()
                .flat_map(|text| [text.to_owned(), format!("https://{text}"), format!("https://{text}/")])
        });
        Self::Known(told.into_iter().chain(usual).chain(of_host).collect())
    }

    /// Checks that a token for `audience` is not a credential for the API server.
    fn check(&self, audience: &str) -> Result<(), SyncRefusal> {
        let refuse = |what: String| {
            Err(SyncRefusal::not_syncable(format!("{what} is not allowed on a shared physical cluster")))
        };
        match self {
            _ if audience.is_empty() => refuse("a token for its API server".into()),
            Self::Known(accepted) if accepted.contains(audience) => {
                refuse(format!("a token for the audience {audience:?}, which its API server accepts,"))
            }
            Self::Known(_) => Ok(()),
            Self::Unknown(why) => Err(SyncRefusal::not_syncable(format!(
                "a token for the audience {audience:?} may be a credential for the API server of the physical cluster: the audiences \
                 that it accepts are not known ({why})"
            ))),
        }
    }
}

/// Refuses volumes and Secrets by which a copy gets credentials for the API server of its physical cluster. Volumes are
/// found by their shape in any field: controllers downstream create pods from custom resources, too.
pub(super) fn check(kind: &GroupVersionKind, copy: &Value, accepted: &AcceptedAudiences) -> Result<(), SyncRefusal> {
    if kind.group.is_empty() && &*kind.kind == "Secret" {
        return check_secret(copy);
    }
    if !pods::may_hold_pods(kind) {
        return Ok(());
    }
    walk(copy, MAX_DEPTH, accepted)
}

fn check_secret(secret: &Value) -> Result<(), SyncRefusal> {
    match secret["type"].as_str().filter(|kind| CREDENTIAL_SECRETS.contains(kind)) {
        Some(kind) => Err(SyncRefusal::not_syncable(format!(
            "a Secret of the type {kind} holds a credential for the API server of the physical cluster"
        ))),
        None => Ok(()),
    }
}

fn walk(value: &Value, depth: usize, accepted: &AcceptedAudiences) -> Result<(), SyncRefusal> {
    let deeper = depth.checked_sub(1).ok_or_else(|| SyncRefusal::not_syncable("it is nested too deeply"))?;
    match value {
        Value::Object(map) => {
            let sources = map.get("sources").and_then(Value::as_array).into_iter().flatten();
            sources.into_iter().try_for_each(|source| check_source(source, accepted))?;
            map.values().try_for_each(|child| walk(child, deeper, accepted))
        }
        Value::Array(items) => items.iter().try_for_each(|child| walk(child, deeper, accepted)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// Checks a source of a projected volume. Certificates of all signers are refused, because API servers may accept any
/// of them.
fn check_source(source: &Value, accepted: &AcceptedAudiences) -> Result<(), SyncRefusal> {
    if source.get("podCertificate").is_some_and(Value::is_object) {
        return Err(SyncRefusal::not_syncable(
            "a certificate of a signer of the physical cluster (podCertificate) may be a credential for its API server",
        ));
    }
    match source.get("serviceAccountToken").filter(|token| token.is_object()) {
        Some(token) => accepted.check(token["audience"].as_str().unwrap_or_default()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn verdict(kind: &str, copy: &Value, accepted: &AcceptedAudiences) -> Result<(), String> {
        let (group, kind) = kind.split_once('/').unwrap();
        let answer = check(&GroupVersionKind::new(group, "v1", kind), copy, accepted);
        answer.map_err(|refusal| refusal.message)
    }

    fn projected(source: Value) -> Value {
        json!({"name": "v", "projected": {"sources": [{"configMap": {"name": "c"}}, source]}})
    }

    #[test]
    fn only_tokens_for_audiences_that_the_api_server_does_not_accept_are_synced() {
        let known = AcceptedAudiences::known(["https://oidc.example.com/id/1".to_owned()], Some("10.0.0.1:6443"));
        let unknown = AcceptedAudiences::Unknown("403".into());
        for (audience, is_synced) in [
            (json!("vault"), true),
            (json!("https://sts.example.com"), true),
            (json!(""), false),
            (json!(null), false),
            (json!("https://oidc.example.com/id/1"), false),
            (json!("https://kubernetes.default.svc"), false),
            (json!("https://kubernetes.default.svc.cluster.local"), false),
            (json!("kubernetes.default.svc"), false),
            (json!("10.0.0.1:6443"), false),
            (json!("https://10.0.0.1:6443"), false),
            (json!("10.0.0.1"), false),
        ] {
            let volume = projected(json!({"serviceAccountToken": {"path": "t", "audience": audience}}));
            for (kind, copy) in [
                ("/Pod", json!({"spec": {"containers": [], "volumes": [volume]}})),
                ("apps/Deployment", json!({"spec": {"template": {"spec": {"containers": [], "volumes": [volume]}}}})),
                ("monitoring.coreos.com/Prometheus", json!({"spec": {"volumes": [volume]}})),
            ] {
                let answer = verdict(kind, &copy, &known);
                assert_eq!(answer.is_ok(), is_synced, "{kind} {audience}: {answer:?}");
                assert!(verdict(kind, &copy, &unknown).is_err(), "{kind} {audience}: nothing is known");
            }
        }
    }

    #[test]
    fn a_pod_without_tokens_needs_no_known_audiences() {
        let unknown = AcceptedAudiences::Unknown("403".into());
        let pod = json!({"spec": {"containers": [], "volumes": [projected(json!({"secret": {"name": "s"}}))]}});
        assert_eq!(verdict("/Pod", &pod, &unknown), Ok(()));
    }

    #[test]
    fn certificates_of_signers_and_secrets_with_credentials_are_refused() {
        let known = AcceptedAudiences::known([], None);
        let signer =
            json!({"podCertificate": {"signerName": "kubernetes.io/kube-apiserver-client-pod", "keyType": "ED25519"}});
        let pod = json!({"spec": {"containers": [], "volumes": [projected(signer)]}});
        assert!(verdict("/Pod", &pod, &known).unwrap_err().contains("podCertificate"));
        for (kind, is_synced) in [
            ("Opaque", true),
            ("kubernetes.io/tls", true),
            ("kubernetes.io/service-account-token", false),
            ("bootstrap.kubernetes.io/token", false),
        ] {
            assert_eq!(verdict("/Secret", &json!({"type": kind}), &known).is_ok(), is_synced, "{kind}");
        }
        let data = json!({"data": {"sources": "serviceAccountToken"}});
        assert_eq!(verdict("/ConfigMap", &data, &known), Ok(()));
    }
}
