//! Tests of the LimitRanger.

use serde_json::json;

use super::*;

fn range(limit: Value) -> Value {
    json!({"spec": {"limits": [limit]}})
}

fn pod(resources: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "resources": resources}]}})
}

#[test]
fn missing_amounts_are_defaulted_and_annotated() {
    let range = range(
        json!({"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "500m", "memory": "1Mi"}}),
    );
    let mut filled = pod(json!({"requests": {"cpu": "100m"}}));
    fill(&range, &mut filled);
    let expected = json!({"requests": {"cpu": "100m", "memory": "1Mi"}, "limits": {"cpu": "1"}});
    assert_eq!(filled["spec"]["containers"][0]["resources"], expected);
    let told = "LimitRanger plugin set: memory request for container a; cpu limit for container a";
    assert_eq!(object::annotation(&filled, ANNOTATION), Some(told));
}

#[test]
fn text_about_containers_is_bounded() {
    let amounts: Value =
        (0..1000).map(|n| (format!("example.com/{n:04}"), json!("1"))).collect::<object::Object>().into();
    let range = range(json!({"type": "Container", "default": amounts}));
    let of = |containers: usize| json!({"spec": {"containers": vec![json!({"name": "a"}); containers]}});
    assert_eq!(text_size(std::slice::from_ref(&range), &of(1)), 1000 * (16 + EACH));
    assert!(text_size(std::slice::from_ref(&range), &of(100)) <= MAX_BYTES);
    assert!(text_size(std::slice::from_ref(&range), &of(1000)) > MAX_BYTES);
}

#[test]
fn limits_of_pods() {
    let asks = |request: &str, limit: &str| json!({"requests": {"cpu": request}, "limits": {"cpu": limit}});
    for (limit, resources, expected) in [
        (
            json!({"type": "Container", "min": {"cpu": "1"}}),
            json!({}),
            "minimum cpu usage per Container is 1.  No request is specified",
        ),
        (
            json!({"type": "Container", "min": {"cpu": "1"}}),
            asks("500m", "2"),
            "minimum cpu usage per Container is 1, but request is 500m",
        ),
        (
            json!({"type": "Pod", "max": {"cpu": "1"}}),
            asks("500m", "2"),
            "maximum cpu usage per Pod is 1, but limit is 2",
        ),
        (
            json!({"type": "Container", "max": {"cpu": "1"}}),
            json!({}),
            "maximum cpu usage per Container is 1.  No limit is specified",
        ),
        (
            json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "1500m"}}),
            asks("500m", "1"),
            "cpu max limit to request ratio per Container is 1500m, but provided ratio is 2.000000",
        ),
        (json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}), asks("500m", "1"), ""),
        (json!({"type": "PersistentVolumeClaim", "max": {"storage": "1"}}), json!({}), ""),
    ] {
        let errors = pod_errors(&range(limit.clone()), &pod(resources));
        assert_eq!(errors.join("; "), expected, "{limit}");
    }
}

#[test]
fn limits_of_claims() {
    let range = range(json!({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}));
    for (asked, expected) in [
        ("1Gi", ""),
        ("500Mi", "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500Mi"),
        ("3Gi", "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"),
    ] {
        let claim = json!({"spec": {"resources": {"requests": {"storage": asked}}}});
        assert_eq!(claim_errors(&range, &claim).join("; "), expected, "{asked}");
    }
}
