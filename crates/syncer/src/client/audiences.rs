//! Audiences of the tokens that the API server of a physical cluster accepts.

use serde_json::{Value, json};

use super::{DownstreamClient, DownstreamError};
use crate::transform::AcceptedAudiences;

/// Account whose token names the audiences. Each Kubernetes cluster has it, and it has no rights by default.
const ACCOUNT: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";
/// Shortest lifetime of a token that Kubernetes issues, in seconds.
const LIFETIME: u32 = 600;
/// Most audiences that are believed.
const MAX_AUDIENCES: usize = 1000;

impl AcceptedAudiences {
    /// Asks the API server for a token without an audience, which it fills in with all that it accepts. The token is
    /// dropped.
    ///
    /// # Errors
    /// Requests without an answer. A refusal makes the audiences unknown.
    pub(crate) async fn read(api: &DownstreamClient, host: Option<&str>) -> Result<Self, DownstreamError> {
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": LIFETIME},
        });
        Ok(match api.ask(ACCOUNT, &request).await {
            Ok(answer) => parse_audiences(&answer, host),
            Err(DownstreamError::Refused(answer)) => Self::Unknown(format!(
                "a TokenRequest for its ServiceAccount default/default is answered with {}",
                answer.code
            )),
            Err(error @ DownstreamError::Unreachable(_)) => return Err(error),
            Err(_) => Self::Unknown("its answer makes no sense".into()),
        })
    }
}

fn parse_audiences(answer: &Value, host: Option<&str>) -> AcceptedAudiences {
    let audiences = answer["spec"]["audiences"].as_array().map_or(&[][..], Vec::as_slice);
    let texts: Option<Vec<String>> = audiences.iter().map(|text| text.as_str().map(str::to_owned)).collect();
    match texts.filter(|texts| (1..=MAX_AUDIENCES).contains(&texts.len())) {
        Some(texts) => AcceptedAudiences::known(texts, host),
        None => AcceptedAudiences::Unknown("its answer names none".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Connector as _,
        testing::{CannedAnswer, FakeCluster},
    };

    async fn read(canned: CannedAnswer) -> Result<AcceptedAudiences, DownstreamError> {
        let cluster = FakeCluster::default();
        cluster.script(move |_, path| path.starts_with(ACCOUNT).then(|| canned.clone()));
        let client = cluster.connect().await.unwrap();
        AcceptedAudiences::read(&DownstreamClient::new(client, Duration::from_secs(5)), Some("east.example.com:6443"))
            .await
    }

    #[tokio::test(start_paused = true)]
    async fn audiences_are_known_only_when_the_api_server_names_them() {
        let named = |audiences: Value| CannedAnswer::Answer(201, json!({"spec": {"audiences": audiences}}));
        let AcceptedAudiences::Known(known) = read(named(json!(["https://issuer"]))).await.unwrap() else {
            panic!("they are known")
        };
        for audience in
            ["https://issuer", "https://kubernetes.default.svc", "https://east.example.com:6443", "east.example.com"]
        {
            assert!(known.contains(audience), "{audience}");
        }
        for canned in [
            CannedAnswer::Answer(403, json!({})),
            CannedAnswer::Answer(404, json!({})),
            named(json!([])),
            named(json!([1])),
            CannedAnswer::Answer(201, json!({})),
        ] {
            assert!(matches!(read(canned.clone()).await, Ok(AcceptedAudiences::Unknown(_))), "{canned:?}");
        }
        assert!(matches!(read(CannedAnswer::Hang).await, Err(DownstreamError::Unreachable(_))));
    }
}
