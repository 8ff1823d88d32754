//! Tests of AdmissionReviews.

use serde_json::json;

use super::*;

#[test]
fn malformed_responses_are_refused() {
    let v1 =
        |response: Value| json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    let patch = STANDARD.encode("[]");
    for (case, mutates, review, expected) in [
        ("a yes", true, v1(json!({"uid": "u", "allowed": true})), Ok(true)),
        ("a no", false, v1(json!({"uid": "u", "allowed": false})), Ok(false)),
        ("nothing", true, json!({}), Err("webhook response was absent")),
        ("another's answer", true, v1(json!({"uid": "x"})), Err(r#"expected response.uid="u", got "x""#)),
        (
            "another version",
            true,
            json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "response": {"uid": "u"}}),
            Err(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got admission.k8s.io/v1beta1, Kind=AdmissionReview",
            ),
        ),
        (
            "a patch of no type",
            true,
            v1(json!({"uid": "u", "patch": patch})),
            Err("webhook returned response.patch but not response.patchType"),
        ),
        (
            "a type of no patch",
            true,
            v1(json!({"uid": "u", "patchType": "JSONPatch"})),
            Err("webhook returned response.patchType but not response.patch"),
        ),
        (
            "a patch that validates",
            false,
            v1(json!({"uid": "u", "patch": patch, "patchType": "JSONPatch"})),
            Err("validating webhook may not return response.patch"),
        ),
        ("a patch", true, v1(json!({"uid": "u", "allowed": true, "patch": patch, "patchType": "JSONPatch"})), Ok(true)),
    ] {
        let review = CheckedReview::of(&review).unwrap();
        let verdict = verdict(ReviewVersion::V1, "u", mutates, review).map(|verdict| verdict.allowed);
        assert_eq!(verdict, expected.map_err(str::to_owned), "{case}");
    }
    let old = json!({"response": {"allowed": true, "patch": patch}});
    assert!(
        verdict(ReviewVersion::V1Beta1, "u", true, CheckedReview::of(&old).unwrap()).unwrap().allowed,
        "v1beta1 needs neither a uid nor a patch type"
    );
}

#[test]
fn response_fields_have_the_types_of_go() {
    for (response, expected) in [
        (json!(null), Ok(())),
        (json!({"allowed": null, "warnings": null, "unknown": 5}), Ok(())),
        (json!({"status": {"code": 403, "details": {}}, "warnings": ["a", null]}), Ok(())),
        (json!("yes"), Err("string into Go struct field AdmissionReview.response of type v1.AdmissionResponse")),
        (json!({"allowed": "yes"}), Err("string into Go struct field AdmissionResponse.response.allowed of type bool")),
        (json!({"allowed": 1}), Err("number 1 into Go struct field AdmissionResponse.response.allowed of type bool")),
        (json!({"uid": {}}), Err("object into Go struct field AdmissionResponse.response.uid of type types.UID")),
        (json!({"patch": [1]}), Err("array into Go struct field AdmissionResponse.response.patch of type []uint8")),
        (
            json!({"warnings": "w"}),
            Err("string into Go struct field AdmissionResponse.response.warnings of type []string"),
        ),
        (
            json!({"warnings": [true]}),
            Err("bool into Go struct field AdmissionResponse.response.warnings of type string"),
        ),
        (
            json!({"auditAnnotations": {"a": 1.5}}),
            Err("number 1.5 into Go struct field AdmissionResponse.response.auditAnnotations of type string"),
        ),
        (
            json!({"status": "no"}),
            Err("string into Go struct field AdmissionResponse.response.status of type v1.Status"),
        ),
        (
            json!({"status": {"code": "403"}}),
            Err("string into Go struct field Status.response.status.code of type int32"),
        ),
    ] {
        let review = json!({"response": response});
        let got = CheckedReview::of(&review).map(drop);
        assert_eq!(got, expected.map_err(|why| format!("json: cannot unmarshal {why}")), "{review}");
    }
    let patch = json!({"response": {"patch": "W1*="}});
    assert_eq!(CheckedReview::of(&patch).map(drop), Err("illegal base64 data at input byte 2".to_owned()));
}

#[test]
fn refusals_name_the_webhook() {
    for (result, code, reason, message) in [
        (json!(null), 400, json!(null), r#"admission webhook "w" denied the request without explanation"#),
        (
            json!({"message": "no", "code": 403, "reason": "Forbidden"}),
            403,
            json!("Forbidden"),
            r#"admission webhook "w" denied the request: no"#,
        ),
        (json!({"reason": "Odd", "code": 418}), 418, json!("Odd"), r#"admission webhook "w" denied the request: Odd"#),
        (json!({"message": "no", "code": 200}), 400, json!(null), r#"admission webhook "w" denied the request: no"#),
    ] {
        let status = refusal("w", &result).to_value();
        assert_eq!((&status["code"], &status["reason"], &status["message"]), (&json!(code), &reason, &json!(message)));
    }
}
