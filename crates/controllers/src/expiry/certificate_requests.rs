//! Expiry of CertificateSigningRequests, as in kube-controller-manager: an hour after approval, denial or failure, a
//! day without a decision or signature, and with their certificate.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use portolan_types::object;
use portolan_validation::certificate_ends;
use serde_json::Value;

use super::ExpiryRule;

/// Lifetime of a settled request.
const SETTLED: SignedDuration = SignedDuration::from_hours(1);
/// Lifetime of a pending request.
const PENDING: SignedDuration = SignedDuration::from_hours(24);

/// Rule of CertificateSigningRequests.
pub const CERTIFICATE_REQUESTS: ExpiryRule = ExpiryRule {
    name: "certificate-requests",
    of: ("certificates.k8s.io", "v1", "CertificateSigningRequest"),
    ends,
    propagation: None,
    only_lengthens: false,
    round: Duration::ZERO,
};

/// Returns when a request expires; `None` if it has no time.
fn ends(request: &Value, _: Timestamp) -> Option<Timestamp> {
    let conditions = request.pointer("/status/conditions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if conditions.is_empty() {
        return after(object::metadata(request).get("creationTimestamp"), PENDING);
    }
    let issued = request.pointer("/status/certificate").and_then(Value::as_str).filter(|text| !text.is_empty());
    let ends_by = |condition: &Value| {
        let decided = condition.get("lastUpdateTime");
        match (condition.get("type").and_then(Value::as_str), issued) {
            (Some("Approved"), Some(issued)) => {
                after(decided, SETTLED).into_iter().chain(certificate_ends(issued)).min()
            }
            (Some("Approved"), None) => after(decided, PENDING),
            (Some("Denied" | "Failed"), _) => after(decided, SETTLED),
            _ => None,
        }
    };
    conditions.iter().filter_map(ends_by).min()
}

fn after(time: Option<&Value>, passed: SignedDuration) -> Option<Timestamp> {
    time?.as_str()?.parse::<Timestamp>().ok()?.saturating_add(passed).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base64::Engine as _;
    use portolan_kinds::KindTable;
    use portolan_store::{Expect, Transaction};
    use portolan_types::{LogicalClusterId, ObjectKey, Record, Seams};
    use serde_json::json;

    use super::*;
    use crate::{Controller as _, Plane, WorkOutcome, expiry::ExpiryController};

    /// A certificate that ended on 1 January, in PEM behind base64.
    fn expired_certificate() -> String {
        let mut params = rcgen::CertificateParams::new(["node".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(2025, 1, 1), rcgen::date_time_ymd(2026, 1, 1));
        let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        base64::engine::general_purpose::STANDARD.encode(certificate.pem())
    }

    fn request(conditions: &Value, certificate: &str) -> Value {
        json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": "r", "creationTimestamp": "2026-01-01T10:00:00Z"},
            "status": {"conditions": conditions, "certificate": certificate}})
    }

    fn decided(kind: &str) -> Value {
        json!([{"type": kind, "status": "True", "lastUpdateTime": "2026-01-01T12:00:00Z"}])
    }

    #[test]
    fn an_unused_request_is_removed() {
        for (case, request, expected) in [
            ("no decision", request(&json!([]), ""), Some("2026-01-02T10:00:00Z")),
            ("no certificate", request(&decided("Approved"), ""), Some("2026-01-02T12:00:00Z")),
            ("signed", request(&decided("Approved"), "bm9uZQ=="), Some("2026-01-01T13:00:00Z")),
            ("signed for less", request(&decided("Approved"), &expired_certificate()), Some("2026-01-01T00:00:00Z")),
            ("denied", request(&decided("Denied"), ""), Some("2026-01-01T13:00:00Z")),
            ("failed", request(&decided("Failed"), ""), Some("2026-01-01T13:00:00Z")),
            ("denied at no time", request(&json!([{"type": "Denied", "status": "True"}]), ""), None),
            ("something else was said", request(&decided("Checked"), ""), None),
        ] {
            assert_eq!(ends(&request, Timestamp::UNIX_EPOCH), expected.map(|at| at.parse().unwrap()), "{case}");
        }
    }

    #[tokio::test]
    async fn an_undecided_request_expires_after_a_day() {
        let store = portolan_store::memory();
        let requests = |now: &str| {
            let seams = Seams::seeded(1, now.parse().unwrap());
            ExpiryController::new(
                Arc::new(Plane::new(store.clone(), KindTable::builtin(), seams)),
                CERTIFICATE_REQUESTS,
            )
        };
        let (early, late) = (requests("2026-01-01T10:00:00Z"), requests("2026-01-02T10:00:00Z"));
        let resource = early.kind.storage.group_resource();
        let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, "r".parse().unwrap());
        let pending = Record::of(&request(&json!([]), ""));
        store.commit(Transaction::one(key.clone(), Expect::Anything, Some(pending))).await.unwrap();
        assert_eq!(early.reconcile(&key).await.unwrap(), WorkOutcome::RequeueAfter(Duration::from_secs(24 * 3600)));
        assert!(early.plane.get(&key).await.unwrap().is_some());
        assert_eq!(late.reconcile(&key).await.unwrap(), WorkOutcome::Done);
        assert!(late.plane.get(&key).await.unwrap().is_none());
    }
}
