use jiff::Timestamp;
use portolan_types::{GroupResource, placement::ChargedPods};
use serde_json::{Value, json};

use super::*;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn resource(text: &str) -> GroupResource {
    let (resource, group) = text.split_once('.').unwrap_or((text, ""));
    GroupResource::new(group, resource)
}

fn pod(spec: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": spec})
}

#[test]
fn objects_use_amounts() {
    let all = json!({"requests": {"cpu": "100m", "memory": "1Gi", "example.com/gpu": "2"}, "limits": {"cpu": "1"}});
    let small = json!({"requests": {"cpu": "50m"}});
    for (case, of, object, expected) in [
        ("a kind of its own is counted", "widgets.example.com", json!({}), json!({"count/widgets.example.com": "1"})),
        ("secrets have a name of old", "secrets", json!({}), json!({"count/secrets": "1", "secrets": "1"})),
        (
            "a pod uses what its containers ask for",
            "pods",
            pod(json!({"containers": [{"resources": all}, {"resources": small}]})),
            json!({
                "count/pods": "1", "pods": "1", "cpu": "150m", "requests.cpu": "150m", "limits.cpu": "1",
                "memory": "1Gi", "requests.memory": "1Gi", "requests.example.com/gpu": "2",
            }),
        ),
        (
            "a pod that has ended is only counted",
            "pods",
            json!({"spec": {"containers": [{"resources": all}]}, "status": {"phase": "Failed"}}),
            json!({"count/pods": "1"}),
        ),
        (
            "a pod that should be gone is only counted",
            "pods",
            json!({"metadata": {"deletionTimestamp": "2025-12-31T23:59:00Z", "deletionGracePeriodSeconds": 30}}),
            json!({"count/pods": "1"}),
        ),
        (
            "the largest init container counts, with the sidecars before it",
            "pods",
            pod(json!({
                "containers": [{"resources": {"requests": {"cpu": "1"}}}],
                "initContainers": [
                    {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                    {"resources": {"requests": {"cpu": "3"}}},
                ],
            })),
            json!({"count/pods": "1", "pods": "1", "cpu": "4", "requests.cpu": "4"}),
        ),
        (
            "overhead is added, to limits only where there are any",
            "pods",
            pod(
                json!({"containers": [{"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}], "overhead": {"cpu": "1", "memory": "1Mi"}}),
            ),
            json!({
                "count/pods": "1", "pods": "1", "cpu": "2", "requests.cpu": "2", "limits.cpu": "2",
                "memory": "1Mi", "requests.memory": "1Mi",
            }),
        ),
        (
            "a balanced service uses node ports",
            "services",
            json!({"spec": {"type": "LoadBalancer", "ports": [{}, {}]}}),
            json!({"count/services": "1", "services": "1", "services.nodeports": "2", "services.loadbalancers": "1"}),
        ),
        (
            "a claim is counted for its class, too",
            "persistentvolumeclaims",
            json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1500m"}}}}),
            json!({
                "count/persistentvolumeclaims": "1", "persistentvolumeclaims": "1", "requests.storage": "2",
                "fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
                "fast.storageclass.storage.k8s.io/requests.storage": "2",
            }),
        ),
        (
            "a claim of devices uses them by class: all that there may be, and the most of alternatives",
            "resourceclaims.resource.k8s.io",
            json!({"spec": {"devices": {"requests": [
                {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}},
                {"name": "b", "exactly": {"deviceClassName": "nic", "allocationMode": "All"}},
                {"name": "c", "firstAvailable": [
                    {"name": "x", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 4},
                    {"name": "y", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1},
                    {"name": "z", "deviceClassName": "tpu", "allocationMode": "ExactCount", "count": 3},
                ]},
                {"name": "d", "exactly": {"deviceClassName": "gpu", "allocationMode": "ToBeInvented", "count": 9}},
            ]}}}),
            json!({
                "count/resourceclaims.resource.k8s.io": "1", "gpu.deviceclass.resource.k8s.io/devices": "6",
                "nic.deviceclass.resource.k8s.io/devices": "32", "tpu.deviceclass.resource.k8s.io/devices": "3",
            }),
        ),
    ] {
        assert_eq!(list(&usage(&resource(of), &object, now())), expected, "{case}");
    }
}

fn quota(name: &str, hard: Value, used: Value, scopes: Value) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"hard": hard, "scopeSelector": {"matchExpressions": scopes}},
        "status": {"hard": hard, "used": used},
    })
}

fn charged(quotas: &[Value], of: &str, object: &Value, old: Option<&Value>) -> Result<Value, String> {
    let of = resource(of);
    let ask = Ask { resource: &of, subresource: "", object, old, now: now() };
    charge(quotas, &ask).map(|all| all.into_iter().map(|(_, used)| used).collect()).map_err(|refusal| refusal.0)
}

#[test]
fn quotas_allow_or_refuse_writes() {
    let plain = pod(json!({"containers": [{"name": "a"}, {"name": "b", "resources": {"requests": {"cpu": "1"}}}]}));
    let urgent = pod(json!({"priorityClassName": "high", "containers": [{"name": "a"}]}));
    let high = json!([{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]);
    let balanced = json!({"spec": {"type": "LoadBalancer", "ports": [{}]}});
    let internal = json!({"spec": {"type": "ClusterIP", "ports": [{}]}});
    let pods = |used: &str| quota("q", json!({"pods": "2"}), json!({"pods": used}), json!([]));
    let services = quota(
        "q",
        json!({"services.loadbalancers": "1", "services": "1"}),
        json!({"services.loadbalancers": "0", "services": "1"}),
        json!([]),
    );
    for (case, quotas, of, object, old, expected) in [
        ("the next one fits", vec![pods("1")], "pods", &plain, None, Ok(json!([{"pods": "2"}]))),
        (
            "one more does not",
            vec![pods("2")],
            "pods",
            &plain,
            None,
            Err("exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"),
        ),
        ("other kinds do not matter", vec![pods("2")], "secrets", &plain, None, Ok(json!([]))),
        ("a change that uses no more is free", vec![pods("2")], "pods", &plain, Some(&plain), Ok(json!([]))),
        (
            "nothing is let through before usage is known",
            vec![quota("q", json!({"pods": "2"}), json!({}), json!([]))],
            "pods",
            &plain,
            None,
            Err("status unknown for quota: q, resources: pods"),
        ),
        (
            "every container must say what is limited",
            vec![quota("q", json!({"requests.cpu": "2", "limits.memory": "1Gi"}), json!({}), json!([]))],
            "pods",
            &plain,
            None,
            Err("failed quota: q: must specify limits.memory for: a,b; requests.cpu for: a"),
        ),
        (
            "a scope lets others pass",
            vec![quota("q", json!({"pods": "0"}), json!({"pods": "0"}), high.clone())],
            "pods",
            &plain,
            None,
            Ok(json!([])),
        ),
        (
            "and holds whom it names",
            vec![quota("q", json!({"pods": "0"}), json!({"pods": "0"}), high)],
            "pods",
            &urgent,
            None,
            Err("exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0"),
        ),
        (
            "a service that comes to use more is charged the difference",
            vec![services],
            "services",
            &balanced,
            Some(&internal),
            Ok(json!([{"services.loadbalancers": "1", "services": "1"}])),
        ),
    ] {
        assert_eq!(charged(&quotas, of, object, old), expected.map_err(str::to_owned), "{case}");
    }
}

#[test]
fn devices_are_charged_and_counted_by_class() {
    const GPUS: &str = "gpu.deviceclass.resource.k8s.io/devices";
    let claims = resource("resourceclaims.resource.k8s.io");
    let claim = |count: i64| {
        let asks = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count});
        json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": asks}]}}})
    };
    let own = |used: &str| [quota("q", json!({GPUS: "4"}), json!({GPUS: used}), json!([]))];
    let charged = |used: &str, count: i64| charged(&own(used), "resourceclaims.resource.k8s.io", &claim(count), None);
    assert_eq!(charged("1", 3), Ok(json!([{GPUS: "4"}])));
    let refusal = format!("exceeded quota: q, requested: {GPUS}=3, used: {GPUS}=2, limited: {GPUS}=4");
    assert_eq!(charged("2", 3), Err(refusal));
    let [quota] = own("0");
    let mut tally = Tally::new(&quota, |_| true, now());
    [1, 2].iter().for_each(|count| tally.count(&claims, &claim(*count)));
    assert!(!is_plain(&claims) && tally.wants(&claims));
    assert_eq!(list(&tally.used()), json!({GPUS: "3"}));
}

#[test]
fn scopes_tell_pods_apart() {
    let best = pod(json!({"containers": [{}]}));
    let ends = pod(json!({"containers": [{"resources": {"limits": {"cpu": "1"}}}], "activeDeadlineSeconds": 5}));
    let far = pod(
        json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["x"]}]}}}),
    );
    for (scope, holds) in [
        ("BestEffort", [true, false, true]),
        ("NotBestEffort", [false, true, false]),
        ("Terminating", [false, true, false]),
        ("NotTerminating", [true, false, true]),
        ("CrossNamespacePodAffinity", [false, false, true]),
        ("PriorityClass", [false; 3]),
    ] {
        let quota = json!({"spec": {"scopes": [scope]}});
        let seen = [&best, &ends, &far].map(|pod| scopes::matches(&quota, &resource("pods"), pod));
        assert_eq!(seen, holds, "{scope}");
        assert!(!scopes::matches(&quota, &resource("configmaps"), &json!({})), "{scope} is nothing that others have");
    }
}

#[test]
fn usage_is_recounted_from_existing_objects() {
    let hard = json!({"pods": "5", "requests.cpu": "2", "count/widgets.example.com": "3", "chairs": "1"});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    let (pods, widgets) = (resource("pods"), resource("widgets.example.com"));
    let asks = pod(json!({"containers": [{"resources": {"requests": {"cpu": "250m"}}}]}));
    let (ended, widget) = (json!({"status": {"phase": "Succeeded"}}), json!({}));
    let objects = [(&pods, &asks), (&pods, &asks), (&pods, &ended), (&widgets, &widget)];
    let mut tally = Tally::new(&quota, |name| name != "chairs", now());
    objects.into_iter().for_each(|(resource, object)| tally.count(resource, object));
    assert!(!tally.wants(&resource("secrets")));
    assert_eq!(list(&tally.used()), json!({"pods": "2", "requests.cpu": "500m", "count/widgets.example.com": "1"}));
}

#[test]
fn writes_without_a_charge_are_known_without_quotas() {
    let service = |kind: &str, port: u16| json!({"spec": {"type": kind, "ports": [{"port": port}]}});
    for (case, of, old, object, subresource, expected) in [
        ("what is made", "configmaps", None, json!({}), "", true),
        ("what is changed", "configmaps", Some(json!({})), json!({"data": {}}), "", false),
        ("an event", "events", None, json!({}), "", false),
        ("a pod that changes", "pods", Some(pod(json!({}))), pod(json!({"hostname": "a"})), "", false),
        (
            "a pod that comes to have an end",
            "pods",
            Some(pod(json!({}))),
            pod(json!({"activeDeadlineSeconds": 5})),
            "",
            true,
        ),
        ("a pod that grows", "pods", Some(pod(json!({}))), pod(json!({})), "resize", true),
        ("a service with another port", "services", Some(service("ClusterIP", 1)), service("ClusterIP", 2), "", false),
        ("a service of another type", "services", Some(service("ClusterIP", 1)), service("NodePort", 1), "", true),
        ("a status", "services", Some(service("ClusterIP", 1)), service("NodePort", 1), "status", false),
    ] {
        let resource = resource(of);
        let ask = Ask { resource: &resource, subresource, object: &object, old: old.as_ref(), now: now() };
        assert_eq!(ask.may_charge(), expected, "{case}");
    }
}

#[test]
fn resources_held_during_a_resize_count() {
    let container =
        |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}});
    let status = |name: &str, has: &str, given: &str| json!({"name": name, "allocatedResources": {"cpu": given}, "resources": {"requests": {"cpu": has}, "limits": {"cpu": has}}});
    let refused = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
    for (case, asks, has, given, conditions, requests, limits) in [
        ("it grows", "2", "1", "1", json!([]), "2", "2"),
        ("it has been given more", "1", "1", "2", json!([]), "2", "1"),
        ("it shrinks, and has not yet", "1", "3", "1", json!([]), "3", "3"),
        ("it cannot grow", "8", "1", "2", refused, "2", "1"),
    ] {
        let pod = json!({
            "metadata": {"name": "p"}, "spec": {"containers": [container("a", asks)]},
            "status": {"containerStatuses": [status("a", has, given)], "conditions": conditions},
        });
        let used = usage(&resource("pods"), &pod, now());
        let of = |name: &str| used[name].to_string();
        assert_eq!((of("requests.cpu"), of("limits.cpu")), (requests.to_owned(), limits.to_owned()), "{case}");
    }
    let init = |policy: &str| {
        let mut first = container("i", "1");
        first["restartPolicy"] = policy.into();
        let pod = json!({
            "spec": {"initContainers": [first], "containers": [container("a", "1")]},
            "status": {"initContainerStatuses": [status("i", "5", "5")]},
        });
        usage(&resource("pods"), &pod, now())["requests.cpu"].to_string()
    };
    assert_eq!(
        (init("Always"), init("")),
        ("6".to_owned(), "1".to_owned()),
        "of init containers only those that go on"
    );
}

#[test]
fn pods_of_a_template_are_charged_by_their_number() {
    let asks = |cpu: &str| pod(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]}));
    let quota = |hard: Value, used: Value| json!({"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}});
    let cpu = |used: &str| quota(json!({"requests.cpu": "1"}), json!({"requests.cpu": used}));
    let of = |cpu: &str, count: i64| charged_pods(&asks(cpu), count, now());
    let charge = |quota: &Value, old: Option<ChargedPods>, new: Option<ChargedPods>, forced: bool| {
        let quotas = [quota.clone()];
        let pod = asks("100m");
        let ask = PodChargeRequest { pod: Some(&pod), old: old.as_ref(), new: new.as_ref(), forced };
        charge_pods(&quotas, &ask).map(|charged| charged.into_iter().map(|(_, used)| used).next())
    };
    let used = |amount: &str| Ok(Some(json!({"requests.cpu": amount})));
    assert_eq!(charge(&cpu("0"), None, Some(of("100m", 3)), false), used("300m"), "all of them");
    assert_eq!(charge(&cpu("300m"), Some(of("100m", 3)), Some(of("100m", 5)), false), used("500m"), "what is more");
    assert_eq!(charge(&cpu("1"), Some(of("100m", 5)), Some(of("100m", 2)), false), used("700m"), "less is given back");
    assert_eq!(charge(&cpu("100m"), Some(of("100m", 5)), None, false), used("0"), "never less than nothing");
    let refusal = "exceeded quota: q, requested: requests.cpu=300m, used: requests.cpu=800m, limited: requests.cpu=1";
    assert_eq!(charge(&cpu("800m"), None, Some(of("100m", 3)), false), Err(Refusal(refusal.into())));
    assert_eq!(charge(&cpu("800m"), None, Some(of("100m", 3)), true), used("1100m"), "what runs is counted");
    let unknown = quota(json!({"requests.cpu": "1"}), json!({}));
    let refusal = "status unknown for quota: q, resources: requests.cpu";
    assert_eq!(charge(&unknown, None, Some(of("100m", 1)), false), Err(Refusal(refusal.into())));
    let silent = quota(json!({"limits.cpu": "1"}), json!({"limits.cpu": "0"}));
    let refusal = "failed quota: q: must specify limits.cpu for: a";
    assert_eq!(charge(&silent, None, Some(of("100m", 1)), false), Err(Refusal(refusal.into())));
    let mut scoped = quota(json!({"pods": "1"}), json!({"pods": "0"}));
    scoped["spec"]["scopes"] = json!(["BestEffort"]);
    assert_eq!(charge(&scoped, None, Some(of("100m", 5)), false), Ok(None), "out of scope");
    scoped["spec"]["scopes"] = json!(["NotBestEffort", "NotTerminating"]);
    assert!(charge(&scoped, None, Some(of("100m", 5)), false).is_err());
    let mut tally = Tally::new(&scoped, |_| true, now());
    tally.count_pods(&of("100m", 5));
    tally.count_pods(&charged_pods(&pod(json!({"containers": []})), 5, now()));
    assert_eq!(list(&tally.used()), json!({"pods": "5"}), "counted in the same scopes");
}

#[test]
fn claims_of_templates_are_charged_as_claims() {
    let claim = json!({"spec": {"storageClassName": "fast", "volumeAttributesClassName": "gold",
        "resources": {"requests": {"storage": "2Gi"}}}});
    let of = |count: i64| portolan_types::placement::ChargedClaims { count, ..charged_claim("data", 0, &claim, now()) };
    let hard = json!({"requests.storage": "6Gi", "persistentvolumeclaims": "9"});
    let one = quota("q", hard, json!({"requests.storage": "2Gi", "persistentvolumeclaims": "1"}), json!([]));
    let charge = |quota: &Value, old: Option<i64>, new: Option<i64>, forced: bool| {
        let (old, new) = (old.map(of), new.map(of));
        let ask = ClaimsAsk { old: old.as_ref(), new: new.as_ref(), forced };
        charge_claims(std::slice::from_ref(quota), &ask).map(|charged| charged.into_iter().map(|(_, used)| used).next())
    };
    let used =
        |storage: &str, claims: &str| Some(json!({"requests.storage": storage, "persistentvolumeclaims": claims}));
    assert_eq!(charge(&one, None, Some(2), false), Ok(used("6Gi", "3")));
    let refusal =
        "exceeded quota: q, requested: requests.storage=6Gi, used: requests.storage=2Gi, limited: requests.storage=6Gi";
    assert_eq!(charge(&one, None, Some(3), false), Err(Refusal(refusal.into())));
    assert_eq!(charge(&one, None, Some(3), true), Ok(used("8Gi", "4")), "they are there in any case");
    assert_eq!(charge(&one, Some(1), None, false), Ok(used("0", "0")));
    let mut scoped =
        quota("q", json!({"persistentvolumeclaims": "1"}), json!({"persistentvolumeclaims": "1"}), json!([]));
    let class = |class: &str| {
        json!({"matchExpressions": [
        {"scopeName": "VolumeAttributesClass", "operator": "In", "values": [class]}]})
    };
    scoped["spec"]["scopeSelector"] = class("silver");
    assert_eq!(charge(&scoped, None, Some(1), false), Ok(None), "out of scope");
    scoped["spec"]["scopeSelector"] = class("gold");
    assert!(charge(&scoped, None, Some(1), false).is_err());
    let mut tally = Tally::new(&scoped, |_| true, now());
    tally.count_claims(&of(2));
    assert_eq!(list(&tally.used()), json!({"persistentvolumeclaims": "2"}), "counted in the same scopes");
}
