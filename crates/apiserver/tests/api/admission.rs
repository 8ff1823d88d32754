//! Kubernetes' built-in admission plugins.

use crate::{
    common::{MAPS, Plane, config_map},
    quotas::{quota, used},
};
use futures::future::join_all;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const APPLY: &str = "application/apply-patch+yaml";

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    if pod["spec"].get("containers").is_none() {
        pod["spec"]["containers"] = json!([{"name": "a", "image": "a:1"}]);
    }
    pod
}

#[tokio::test]
async fn a_quota_is_charged_for_writes_only() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    quota(&admin, "q", json!({"hard": {"pods": "1", "requests.cpu": "1"}}), json!({"pods": "0", "requests.cpu": "0"}))
        .await;
    let asks = |name: &str, cpu: &str| {
        pod(name, json!({"containers": [{"name": "a", "image": "a", "resources": {"requests": {"cpu": cpu}}}]}))
    };
    for (case, path, body, code, says) in [
        ("a dry run fits", format!("{PODS}?dryRun=All"), asks("a", "1"), 201, ""),
        (
            "one that says nothing",
            PODS.into(),
            pod("a", json!({})),
            403,
            "failed quota: q: must specify requests.cpu for: a",
        ),
        (
            "too much",
            PODS.into(),
            asks("a", "1100m"),
            403,
            "exceeded quota: q, requested: requests.cpu=1100m, used: requests.cpu=0, limited: requests.cpu=1",
        ),
        ("one that is invalid", PODS.into(), asks("A_B", "1"), 422, ""),
        ("one that fits", PODS.into(), asks("a", "250m"), 201, ""),
        (
            "one of the same name",
            PODS.into(),
            asks("a", "250m"),
            403,
            "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1",
        ),
        ("a dry run of one more", format!("{PODS}?dryRun=All"), asks("b", "1m"), 403, "exceeded quota: q"),
    ] {
        let answer = admin.post(&path, body).await;
        assert_eq!(answer.code, code, "{case}: {}", answer.text());
        assert!(answer.text().contains(says), "{case}: {}", answer.text());
    }
    assert_eq!(used(&admin, "q").await, json!({"pods": "1", "requests.cpu": "250m"}));
    admin.merge(&format!("{PODS}/a"), json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    assert_eq!(used(&admin, "q").await, json!({"pods": "1", "requests.cpu": "250m"}), "a label uses nothing");
    admin.delete(&format!("{QUOTAS}/q")).await.expect(200);
    admin.post(PODS, pod("b", json!({}))).await.expect(201);
}

#[tokio::test]
async fn pod_defaults_of_kubernetes_have_no_field_owner() {
    let admin = Plane::new().await.admin();
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}, "max": {"cpu": "2"}}]}});
    admin.post("/api/v1/namespaces/default/limitranges", range).await.expect(201);
    let made = admin.post(PODS, pod("p", json!({}))).await.expect(201).json();
    let spec = &made["spec"];
    assert_eq!(spec["priority"], 0);
    assert_eq!(spec["preemptionPolicy"], "PreemptLowerPriority");
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!((&spec["serviceAccountName"], &spec["serviceAccount"]), (&json!("default"), &json!("default")));
    assert!(spec["volumes"][0]["name"].as_str().unwrap().starts_with("kube-api-access-"));
    assert_eq!(spec["containers"][0]["volumeMounts"][0]["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    let resources = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}});
    assert_eq!(spec["containers"][0]["resources"], resources);
    let told = "LimitRanger plugin set: cpu request for container a; cpu limit for container a";
    assert_eq!(made["metadata"]["annotations"]["kubernetes.io/limit-ranger"], told);
    let owned = made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].as_object().unwrap();
    for key in ["f:tolerations", "f:serviceAccount", "f:serviceAccountName", "f:priority", "f:volumes"] {
        assert!(!owned.contains_key(key), "{key} was not written by the client");
    }
    let applied = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}});
    let path = format!("{PODS}/p?fieldManager=x");
    let answer = admin.patch(&path, APPLY, applied).await.expect(200);
    assert!(!answer.headers.contains_key("warning"), "{:?}", answer.headers);
}

#[tokio::test]
async fn pods_that_are_refused() {
    let admin = Plane::new().await.admin();
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Pod", "max": {"cpu": "2"}}]}});
    admin.post("/api/v1/namespaces/default/limitranges", range).await.expect(201);
    let class = json!({"metadata": {"name": "high"}, "value": 10, "globalDefault": true});
    admin.post("/apis/scheduling.k8s.io/v1/priorityclasses", class).await.expect(201);
    let asks = |cpu: &str| json!({"containers": [{"name": "a", "image": "a", "resources": {"limits": {"cpu": cpu}}}]});
    for (case, spec, says) in [
        (
            "an account that is not there",
            json!({"serviceAccountName": "none"}),
            r#"pods "p" is forbidden: error looking up service account default/none: serviceaccount "none" not found"#,
        ),
        (
            "a class that is not there",
            json!({"priorityClassName": "none"}),
            r#"pods "p" is forbidden: no PriorityClass with name none was found"#,
        ),
        (
            "another number than the class has",
            json!({"priority": 5}),
            r#"pods "p" is forbidden: the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 10 from the given PriorityClass name"#,
        ),
        (
            "a runtime that is not there",
            json!({"runtimeClassName": "none"}),
            r#"pods "p" is forbidden: pod rejected: RuntimeClass "none" not found"#,
        ),
        (
            "overhead of nothing",
            json!({"overhead": {"cpu": "1"}, "containers": [{"name": "a", "image": "a", "resources": {"limits": {"cpu": "1"}}}]}),
            r#"pods "p" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"#,
        ),
        (
            "more than the range allows",
            asks("3"),
            r#"pods "p" is forbidden: maximum cpu usage per Pod is 2, but limit is 3"#,
        ),
        (
            "less than the range can tell",
            json!({}),
            r#"pods "p" is forbidden: maximum cpu usage per Pod is 2.  No limit is specified"#,
        ),
    ] {
        let answer = admin.post(PODS, pod("p", spec)).await;
        assert_eq!((answer.code, answer.message().as_str()), (403, says), "{case}");
    }
    let made = admin.post(PODS, pod("p", asks("1"))).await.expect(201).json();
    assert_eq!((&made["spec"]["priorityClassName"], &made["spec"]["priority"]), (&json!("high"), &json!(10)));
    let second = json!({"metadata": {"name": "higher"}, "value": 11, "globalDefault": true});
    let refused = admin.post("/apis/scheduling.k8s.io/v1/priorityclasses", second).await.expect(403);
    assert!(refused.message().ends_with("PriorityClass high is already marked as default. Only one default can exist"));
}

#[tokio::test]
async fn equal_errors_of_containers_are_reported_once() {
    let admin = Plane::new().await.admin();
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}});
    admin.post("/api/v1/namespaces/default/limitranges", range).await.expect(201);
    let asks = |name: &str, cpu: &str| json!({"name": name, "image": "a", "resources": {"limits": {"cpu": cpu}}});
    for (containers, says) in [
        (json!([asks("a", "2"), asks("b", "2")]), "maximum cpu usage per Container is 1, but limit is 2"),
        (
            json!([asks("a", "2"), asks("b", "3"), asks("c", "2")]),
            "[maximum cpu usage per Container is 1, but limit is 2, maximum cpu usage per Container is 1, but limit is 3]",
        ),
    ] {
        let refused = admin.post(PODS, pod("p", json!({"containers": containers}))).await.expect(403);
        assert_eq!(refused.message(), format!("pods \"p\" is forbidden: {says}"));
    }
}

#[tokio::test]
async fn namespaces_say_how_safe_their_pods_are() {
    let admin = Plane::new().await.admin();
    let spaces = "/api/v1/namespaces";
    let labels = |level: &str| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
    let wrong = admin.merge(&format!("{spaces}/default"), labels("strict")).await.expect(422);
    let says = r#"metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "strict": must be one of privileged, baseline, restricted"#;
    assert!(wrong.message().contains(says), "{}", wrong.message());
    let host = json!({"hostNetwork": true});
    admin.post(PODS, pod("old", host.clone())).await.expect(201);
    let stricter = admin.merge(&format!("{spaces}/default"), labels("baseline")).await.expect(200);
    let warnings: Vec<&str> = stricter.headers.get_all("warning").iter().map(|v| v.to_str().unwrap()).collect();
    let existing = r#"299 - "existing pods in namespace \"default\" violate the new PodSecurity enforce level \"baseline:latest\"""#;
    assert_eq!(warnings, [existing, r#"299 - "old: host namespaces""#]);
    let refused = admin.post(PODS, pod("new", host.clone())).await.expect(403);
    let says = r#"pods "new" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)"#;
    assert_eq!(refused.message(), says);
    let deployment = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod("", host)["spec"]},
    }});
    let made = admin.post("/apis/apps/v1/namespaces/default/deployments", deployment).await.expect(201);
    let says = r#"299 - "would violate PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)""#;
    assert_eq!(made.headers["warning"], says);
    admin.merge(&format!("{PODS}/old"), json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    admin.post(PODS, pod("fine", json!({}))).await.expect(201);
}

#[tokio::test]
async fn claims_volumes_and_ingresses_have_classes() {
    let admin = Plane::new().await.admin();
    let class = |name: &str, grows: bool| {
        let metadata =
            json!({"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": grows.to_string()}});
        json!({"metadata": metadata, "provisioner": "p", "allowVolumeExpansion": grows})
    };
    for one in [class("fast", true), class("slow", false)] {
        admin.post("/apis/storage.k8s.io/v1/storageclasses", one).await.expect(201);
    }
    let claim = |name: &str, class: Value| {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": class});
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let made = admin.post(CLAIMS, claim("a", Value::Null)).await.expect(201).json();
    assert_eq!(made["spec"]["storageClassName"], "fast");
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    admin.post(CLAIMS, claim("b", json!("slow"))).await.expect(201);
    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let unbound = admin.merge(&format!("{CLAIMS}/a"), larger.clone()).await;
    let immutable = "PersistentVolumeClaim \"a\" is invalid: spec: Forbidden: spec is immutable after creation except \
        resources.requests and volumeAttributesClassName for bound claims\n";
    assert_eq!(unbound.code, 422, "{}", unbound.text());
    let message = unbound.json()["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with(immutable), "{message}");
    assert!(message.contains("-   \"storage\": \"1Gi\"\n+   \"storage\": \"2Gi\"\n"), "{message}");
    assert_eq!(admin.get(&format!("{CLAIMS}/a")).await.json()["spec"]["resources"]["requests"]["storage"], "1Gi");
    let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}});
    let made = admin.post("/api/v1/persistentvolumes", volume).await.expect(201).json();
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    let ingress_class = json!({"metadata": {"name": "web", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}}, "spec": {"controller": "example.com/c"}});
    admin.post("/apis/networking.k8s.io/v1/ingressclasses", ingress_class).await.expect(201);
    let ingress = json!({"metadata": {"name": "i"}, "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}});
    let made = admin.post("/apis/networking.k8s.io/v1/namespaces/default/ingresses", ingress).await.expect(201);
    assert_eq!(made.json()["spec"]["ingressClassName"], "web");
}

#[tokio::test]
async fn claims_grow_when_they_are_bound_and_their_class_lets_them() {
    let admin = Plane::new().await.admin();
    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let class = |name: &str, grows: bool| json!({"metadata": {"name": name}, "provisioner": "p", "allowVolumeExpansion": grows});
    for (name, grows, bound, code) in [("a", true, true, 200), ("b", false, true, 403)] {
        admin.post("/apis/storage.k8s.io/v1/storageclasses", class(name, grows)).await.expect(201);
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": name});
        admin.post(CLAIMS, json!({"metadata": {"name": name}, "spec": spec})).await.expect(201);
        let status = json!({"status": {"phase": if bound { "Bound" } else { "Pending" }, "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}});
        admin.merge(&format!("{CLAIMS}/{name}/status"), status).await.expect(200);
        let answer = admin.merge(&format!("{CLAIMS}/{name}"), larger.clone()).await;
        assert_eq!(answer.code, code, "{name}: {}", answer.text());
    }
}

#[tokio::test]
async fn of_many_pods_only_some_are_looked_at_when_a_namespace_gets_stricter() {
    let plane = Plane::new().await;
    let names: Vec<String> = (0..3_010).map(|n| format!("p{n:05}")).collect();
    for names in names.chunks(100) {
        let mut transaction = portolan_store::Transaction::default();
        for name in names {
            let pod = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"hostNetwork": true}});
            let key = portolan_types::ObjectKey::namespaced(
                portolan_types::LogicalClusterId::ROOT,
                portolan_types::GroupResource::new("", "pods"),
                "default".parse().unwrap(),
                name.parse().unwrap(),
            );
            let record = Some(portolan_types::Record::of(&pod));
            transaction = transaction.and(key, portolan_store::Expect::Absent, record);
        }
        plane.store.commit(transaction).await.unwrap();
    }
    let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    let answer = plane.admin().merge("/api/v1/namespaces/default", labels).await.expect(200);
    let warnings: Vec<_> = answer.headers.get_all("warning").iter().map(|text| text.to_str().unwrap()).collect();
    // The number of evaluations within the time limit depends on the machine, but it never exceeds 3,000.
    let start = r#"299 - "new PodSecurity enforce level only checked against the first "#;
    let checked = warnings[0].strip_prefix(start).and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
    assert!(checked.is_some_and(|checked| checked <= 3_000), "{warnings:?}");
}

#[tokio::test]
async fn a_namespace_has_no_more_quotas_than_one_write_can_be_charged_to() {
    let admin = Plane::new().await.admin();
    for n in 0..64 {
        let spec = json!({"hard": {"configmaps": "100"}});
        quota(&admin, &format!("q{n}"), spec, json!({"configmaps": "0"})).await;
    }
    let one_more = json!({"metadata": {"name": "more"}, "spec": {"hard": {"configmaps": "100"}}});
    let refused = admin.post(QUOTAS, one_more).await.expect(403);
    assert!(refused.message().ends_with("a namespace has at most 64 resource quotas"), "{}", refused.message());
    admin.post(MAPS, config_map("m", json!({}))).await.expect(201);
    assert_eq!(used(&admin, "q63").await["configmaps"], "1");
}

#[tokio::test]
async fn limits_and_classes_have_an_effect_at_once() {
    let admin = Plane::new().await.admin();
    let ranges = "/api/v1/namespaces/default/limitranges";
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let asked = |name: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let made = |name: &'static str| {
        let admin = &admin;
        async move {
            let pod = admin.post(&format!("{PODS}?dryRun=All"), asked(name)).await.expect(201).json();
            (pod["spec"]["containers"][0]["resources"]["limits"]["cpu"].clone(), pod["spec"]["priority"].clone())
        }
    };
    assert_eq!(made("a").await, (json!(null), json!(0)));
    let range = |cpu: &str| json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": cpu}}]}});
    admin.post(ranges, range("1")).await.expect(201);
    let class = json!({"metadata": {"name": "c"}, "value": 7, "globalDefault": true});
    admin.post(classes, class).await.expect(201);
    assert_eq!(made("b").await, (json!("1"), json!(7)));
    admin.put(&format!("{ranges}/r"), range("2")).await.expect(200);
    assert_eq!(made("c").await, (json!("2"), json!(7)));
    admin.delete(&format!("{ranges}/r")).await.expect(200);
    admin.delete(&format!("{classes}/c")).await.expect(200);
    assert_eq!(made("d").await, (json!(null), json!(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn quotas_that_are_made_at_once_are_not_too_many() {
    let admin = Plane::new().await.admin();
    let create = |n: usize| {
        let admin = admin.clone();
        let quota = json!({"metadata": {"name": format!("q{n}")}, "spec": {"hard": {"pods": "1"}}});
        async move { admin.post(QUOTAS, quota).await.code }
    };
    for n in 0..60 {
        assert_eq!(create(n).await, 201);
    }
    let codes = join_all((60..76).map(|n| tokio::spawn(create(n)))).await;
    let made = codes.into_iter().filter(|code| *code.as_ref().unwrap() == 201).count();
    assert_eq!(made, 4);
}

#[tokio::test]
async fn escalate_does_not_imply_create() {
    const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let rule = |verbs: Value, names: Value| json!({"verbs": verbs, "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": names});
    let rules = json!([rule(json!(["create", "update"]), json!([])), rule(json!(["escalate"]), json!(["ops"]))]);
    admin.post(ROLES, json!({"metadata": {"name": "keeper"}, "rules": rules})).await.expect(201);
    let binding = json!({"metadata": {"name": "ann"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "keeper"}});
    admin.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    let ops = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "ops"}, "rules": all});
    ann.post(ROLES, ops.clone()).await.expect(403);
    let empty = json!({"metadata": {"name": "ops"}, "rules": []});
    admin.post(ROLES, empty).await.expect(201);
    ann.put(&format!("{ROLES}/ops"), ops).await.expect(200);
}

#[tokio::test]
async fn pods_have_the_zone_and_the_region_of_their_node() {
    let admin = Plane::new().await.admin();
    let (zone, region) = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region");
    let labels = json!({zone: "z", region: "r", "topology.kubernetes.io/rack": "k", "a": "b"});
    admin.post("/api/v1/nodes", json!({"metadata": {"name": "n", "labels": labels}})).await.expect(201);
    admin.post("/api/v1/nodes", json!({"metadata": {"name": "bare"}})).await.expect(201);
    let both = json!({zone: "z", region: "r"});
    for (case, made_on, own, bound_to, expected) in [
        ("made on it", "n", json!({}), None, both.clone()),
        ("labels of its own are kept", "n", json!({"c": "d"}), None, json!({"c": "d", zone: "z", region: "r"})),
        ("another zone of its own is not", "n", json!({zone: "x"}), None, both.clone()),
        ("made on a node that is not there", "gone", json!({zone: "x"}), None, json!({zone: "x"})),
        ("made on none", "", json!({zone: "x"}), None, json!({zone: "x"})),
        ("bound to it", "", json!({zone: "x", "c": "d"}), Some("n"), json!({"c": "d", zone: "z", region: "r"})),
        ("bound to one without", "", json!({zone: "x"}), Some("bare"), json!({zone: "x"})),
        ("bound to one that is not there", "", json!({}), Some("gone"), Value::Null),
    ] {
        let mut made = pod("p", json!({"nodeName": made_on}));
        made["metadata"]["labels"] = own;
        admin.post(PODS, made).await.expect(201);
        if let Some(node) = bound_to {
            let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}});
            admin.post(&format!("{PODS}/p/binding"), binding).await.expect(201);
        }
        let made = admin.get(&format!("{PODS}/p")).await.expect(200).json();
        assert_eq!(made["metadata"]["labels"], expected, "{case}");
        admin.delete(&format!("{PODS}/p?gracePeriodSeconds=0")).await.expect(200);
    }
}
