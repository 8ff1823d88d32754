//! Lists of the maximum length of a request: their cost grows linearly, not with the square of the length.

use super::*;

const MANY: usize = 20_000;
/// CPU seconds of a build without optimizations. A comparison of all pairs takes many times as long.
const SECONDS: f64 = 6.0;

/// Returns the CPU seconds of this thread, which the machine's other load does not change.
fn thread_cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells it");
    let nanos: u64 = stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("it begins with the time");
    std::time::Duration::from_nanos(nanos).as_secs_f64()
}

fn many(one: impl Fn(usize) -> Value) -> Value {
    (0..MANY).map(one).collect()
}

fn spec(spec: Value) -> Value {
    let mut pod = pod();
    for (name, value) in spec.as_object().unwrap() {
        pod["spec"][name] = value.clone();
    }
    pod
}

fn container(fields: Value) -> Value {
    let mut pod = pod();
    for (name, value) in fields.as_object().unwrap() {
        pod["spec"]["containers"][0][name] = value.clone();
    }
    pod
}

#[test]
fn new_objects_with_long_lists() {
    let pod_named = |spec: Value| with(self::spec(spec), "/metadata", json!({"name": "p"}));
    let both = |pod: Value, name: &str, list: Value| with(pod, &format!("/spec/{name}"), list);
    for (case, group, name, object, complaints) in [
        (
            "volumes",
            "",
            "Pod",
            pod_named(json!({"volumes": many(|n| match n % 2 {
                0 => json!({"name": format!("v{n}"), "persistentVolumeClaim": {"claimName": format!("c{n}")}}),
                _ => json!({"name": format!("v{n}"), "ephemeral": {"volumeClaimTemplate": {"spec": {
                    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}}}}}),
            })})),
            false,
        ),
        (
            "constraints",
            "",
            "Pod",
            spec(json!({"topologySpreadConstraints": many(|n| json!({
            "maxSkew": 1, "topologyKey": format!("k{n}"), "whenUnsatisfiable": "DoNotSchedule"}))})),
            false,
        ),
        ("gates", "", "Pod", spec(json!({"schedulingGates": many(|n| json!({"name": format!("g{n}")}))})), false),
        (
            "mounts and devices",
            "",
            "Pod",
            both(
                container(json!({
                    "volumeMounts": many(|n| json!({"name": format!("v{n}"), "mountPath": format!("/{n}")})),
                    "volumeDevices": many(|n| json!({"name": format!("d{n}"), "devicePath": format!("/d{n}")})),
                })),
                "volumes",
                many(|n| json!({"name": format!("v{n}"), "emptyDir": {}})),
            ),
            true,
        ),
        (
            "variables of files",
            "",
            "Pod",
            both(
                container(json!({"env": many(|n| json!({
            "name": format!("V{n}"), "valueFrom": {"fileKeyRef": {
                "volumeName": format!("v{n}"), "path": "p", "key": "K"}}}))})),
                "volumes",
                many(|n| json!({"name": format!("v{n}"), "emptyDir": {}})),
            ),
            false,
        ),
        (
            "claims of containers",
            "",
            "Pod",
            both(
                container(json!({"resources": {"claims":
            many(|n| json!({"name": format!("r{n}")}))}})),
                "resourceClaims",
                many(|n| json!({"name": format!("r{n}"), "resourceClaimName": "x"})),
            ),
            false,
        ),
        (
            "claims that are not there",
            "",
            "Pod",
            both(
                container(json!({"resources": {"claims":
            many(|n| json!({"name": format!("s{n}")}))}})),
                "resourceClaims",
                many(|n| json!({"name": format!("r{n}"), "resourceClaimName": "x"})),
            ),
            true,
        ),
        (
            "profiles of containers that are not there",
            "",
            "Pod",
            with(
                pod(),
                "/metadata",
                json!({"annotations":
            (0..5_000).map(|n| (format!("container.apparmor.security.beta.kubernetes.io/c{n}"), json!("unconfined")))
                .collect::<serde_json::Map<_, _>>()}),
            ),
            true,
        ),
        (
            "tolerations of a class",
            "node.k8s.io",
            "RuntimeClass",
            json!({"handler": "x", "scheduling": {
            "tolerations": many(|n| json!({"key": format!("k{n}"), "operator": "Exists"}))}}),
            false,
        ),
        (
            "drivers of a node",
            "storage.k8s.io",
            "CSINode",
            json!({"spec": {"drivers": many(|n| json!({
            "name": format!("d{n}"), "nodeID": "n", "topologyKeys": []}))}}),
            false,
        ),
        (
            "keys of a driver",
            "storage.k8s.io",
            "CSINode",
            json!({"spec": {"drivers": [{
            "name": "d", "nodeID": "n", "topologyKeys": many(|n| format!("k{n}").into())}]}}),
            false,
        ),
        (
            "ports of endpoints",
            "discovery.k8s.io",
            "EndpointSlice",
            json!({"addressType": "IPv4", "endpoints": [],
            "ports": many(|n| json!({"name": format!("p{n}"), "port": 80}))}),
            false,
        ),
    ] {
        let kind = kind(group, name);
        let object = complete(kind, object);
        let before = thread_cpu_seconds();
        let causes = lines(validate_create(KindTable::builtin(), kind, &object));
        assert!(thread_cpu_seconds() - before < SECONDS, "{case}: {} s", thread_cpu_seconds() - before);
        assert_eq!(!causes.is_empty(), complaints, "{case}: {:?}", &causes[..causes.len().min(3)]);
    }
}

#[test]
fn changes_of_objects_with_long_lists() {
    let tolerations = || many(|n| json!({"key": format!("k{n}"), "operator": "Exists"}));
    let gates = |from: usize| many(|n| json!({"name": format!("g{}", from + n)}));
    let deleting = |from: usize| {
        let finalizers = many(|n| format!("example.com/f{}", from + n).into());
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers}})
    };
    let addresses = |from: usize| json!({"spec": {"ports": [{"port": 80}], "externalIPs": many(|n| format!("1.2.3.0{}", from + n).into())}});
    for (case, name, old, new, complaints) in [
        (
            "tolerations",
            "Pod",
            spec(json!({"tolerations": tolerations()})),
            spec(json!({"tolerations": tolerations()})),
            false,
        ),
        (
            "gates that are new",
            "Pod",
            spec(json!({"schedulingGates": gates(0)})),
            spec(json!({"schedulingGates": gates(1)})),
            true,
        ),
        ("finalizers that are new", "ConfigMap", deleting(0), deleting(1), true),
        ("addresses of another time", "Service", addresses(0), addresses(1), true),
    ] {
        let kind = kind("", name);
        let (old, new) = (complete(kind, old), complete(kind, new));
        let before = thread_cpu_seconds();
        let causes = lines(validate_update(KindTable::builtin(), kind, None, &old, &new));
        assert!(thread_cpu_seconds() - before < SECONDS, "{case}: {} s", thread_cpu_seconds() - before);
        assert_eq!(!causes.is_empty(), complaints, "{case}: {:?}", &causes[..causes.len().min(3)]);
    }
}

#[test]
fn statuses_of_pods_with_long_lists() {
    let containers = || many(|n| json!({"name": format!("c{n}"), "image": "x"}));
    let of = |state: Value| {
        many(|n| {
            json!({"name": format!("c{n}"), "state": state, "image": "x", "imageID": "",
        "ready": false, "restartCount": 0})
        })
    };
    let claims = || many(|n| json!({"name": format!("r{n}"), "resourceClaimName": format!("x{n}")}));
    let pod =
        |status: Value| json!({"spec": {"containers": containers(), "resourceClaims": claims()}, "status": status});
    for (case, old, new, complaints) in [
        (
            "containers that run again",
            pod(json!({"containerStatuses": of(json!({"terminated": {"exitCode": 1}}))})),
            pod(json!({"containerStatuses": of(json!({"running": {}}))})),
            false,
        ),
        ("claims", pod(json!({})), pod(json!({"resourceClaimStatuses": claims()})), false),
    ] {
        let kind = kind("", "Pod");
        let (old, new) = (complete(kind, old), complete(kind, new));
        let before = thread_cpu_seconds();
        let causes = lines(validate_update(KindTable::builtin(), kind, Some("status"), &old, &new));
        assert!(thread_cpu_seconds() - before < SECONDS, "{case}: {} s", thread_cpu_seconds() - before);
        assert_eq!(!causes.is_empty(), complaints, "{case}: {:?}", &causes[..causes.len().min(3)]);
    }
}
