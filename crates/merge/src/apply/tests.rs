use proptest::prelude::*;

use super::{compare::Difference, *};
use portolan_codec::conversion::{from_storage, to_storage};

const NOW: &str = "2026-11-21T04:00:00Z";
const LATER: &str = "2026-11-21T05:00:00Z";

fn kind(group: &str, version: &str, plural: &str) -> &'static Kind {
    KindTable::builtin().resource(group, version, plural).expect("the kind is in the table")
}

fn config_map() -> &'static Kind {
    kind("", "v1", "configmaps")
}

fn update(kind: &Kind, old: Option<&Value>, new: &mut Value, (manager, subresource): (&str, Option<&str>), now: &str) {
    let request = UpdateRequest { old, manager, subresource, now, conversions: &Conversions::default() };
    track_update(KindTable::builtin(), kind, &request, new).unwrap();
}

/// Object with its writers.
struct Object {
    kind: &'static Kind,
    live: Option<Value>,
    now: &'static str,
}

impl Object {
    fn new(kind: &'static Kind) -> Self {
        Self { kind, live: None, now: NOW }
    }

    fn apply_forced(&mut self, manager: &str, mut applied: Value, force: bool) -> Result<(), Status> {
        applied["apiVersion"] = self.kind.group_version().to_string().into();
        applied["kind"] = (*self.kind.gvk.kind).into();
        let live = self.live.as_ref();
        let conversions = &Conversions::default();
        let request = ApplyRequest { live, applied, manager, force, subresource: None, now: self.now, conversions };
        self.live = Some(apply(KindTable::builtin(), self.kind, request)?);
        Ok(())
    }

    fn apply(&mut self, manager: &str, applied: Value) -> Result<(), Status> {
        self.apply_forced(manager, applied, false)
    }

    fn write(&mut self, manager: &str, subresource: Option<&str>, change: impl FnOnce(&mut Value)) {
        let gvk = &self.kind.gvk;
        let mut new = self.live.clone().unwrap_or_else(
            || json!({"apiVersion": gvk.group_version().to_string(), "kind": *gvk.kind, "metadata": {"name": "x"}}),
        );
        change(&mut new);
        update(self.kind, self.live.as_ref(), &mut new, (manager, subresource), self.now);
        self.live = Some(new);
    }

    /// Continues in another version of the same kind.
    fn in_version(&mut self, kind: &'static Kind) {
        self.live = self.live.take().map(|live| from_storage(kind, to_storage(self.kind, live)));
        self.kind = kind;
    }

    fn live(&self) -> &Value {
        self.live.as_ref().expect("it was written")
    }

    fn at(&self, pointer: &str) -> Value {
        self.live().pointer(pointer).cloned().unwrap_or_default()
    }

    /// Returns `manager operation: fieldsV1` for each entry, in order.
    fn owners(&self) -> Vec<String> {
        let entries = self.at("/metadata/managedFields");
        let line = |e: &Value| {
            let text = |key: &str| e[key].as_str().unwrap_or_default().to_owned();
            format!("{} {}: {}", text("manager"), text("operation"), e["fieldsV1"])
        };
        entries.as_array().into_iter().flatten().map(line).collect()
    }
}

#[test]
fn an_applied_object_has_one_owner() {
    let mut object = Object::new(kind("", "v1", "services"));
    let ports = json!([{"port": 80}, {"port": 80, "protocol": "UDP"}]);
    object
        .apply(
            "a",
            json!({"metadata": {"name": "x", "labels": {"l": "1"}}, "spec": {"ports": ports, "selector": {"s": "1"}}}),
        )
        .unwrap();
    assert_eq!(
        object.at("/metadata/managedFields"),
        json!([{
            "manager": "a", "operation": "Apply", "apiVersion": "v1", "time": NOW, "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {"f:l": {}}},
                "f:spec": {
                    "f:ports": {
                        r#"k:{"port":80,"protocol":"TCP"}"#: {".": {}, "f:port": {}},
                        r#"k:{"port":80,"protocol":"UDP"}"#: {".": {}, "f:port": {}, "f:protocol": {}},
                    },
                    "f:selector": {},
                },
            },
        }])
    );
}

#[test]
fn a_created_object_is_owned_as_go_would_have_it() {
    let mut object = Object::new(kind("apps", "v1", "deployments"));
    object.write("kubectl-create", None, |new| {
        new["metadata"]["labels"] = json!({"app": "web"});
        new["metadata"]["uid"] = json!("u");
        new["spec"] = json!({
            "replicas": 1, "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
                "containers": [{"name": "c", "image": "i", "resources": {}, "ports": [{"containerPort": 80, "protocol": "TCP"}]}],
                "securityContext": {}, "dnsPolicy": "ClusterFirst",
            }},
        });
        new["status"] = json!({"replicas": 1});
    });
    let expected = json!({
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
        "f:spec": {
            "f:replicas": {}, "f:selector": {},
            "f:strategy": {"f:type": {}, "f:rollingUpdate": {".": {}, "f:maxSurge": {}}},
            "f:template": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                "f:spec": {
                    "f:containers": {r#"k:{"name":"c"}"#: {
                        ".": {}, "f:name": {}, "f:image": {}, "f:resources": {},
                        "f:ports": {".": {}, r#"k:{"containerPort":80,"protocol":"TCP"}"#: {".": {}, "f:containerPort": {}, "f:protocol": {}}},
                    }},
                    "f:securityContext": {}, "f:dnsPolicy": {},
                },
            },
        },
    });
    assert_eq!(object.at("/metadata/managedFields/0/fieldsV1"), expected);
    assert_eq!(object.at("/metadata/managedFields/0/operation"), "Update");
}

#[test]
fn zero_values_of_fields_that_are_always_written_have_no_owner() {
    let mut policy = Object::new(kind("networking.k8s.io", "v1", "networkpolicies"));
    policy.write("a", None, |new| new["spec"] = json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
    assert_eq!(policy.owners(), [r#"a Update: {"f:spec":{"f:policyTypes":{}}}"#]);
    let mut role = Object::new(kind("rbac.authorization.k8s.io", "v1", "roles"));
    role.write("a", None, |new| new["rules"] = Value::Null);
    assert_eq!(role.owners(), [""; 0]);
    role.write("a", None, |new| new["rules"] = json!([{"verbs": ["get"]}]));
    assert_eq!(role.owners(), [""; 0], "what was not tracked from its start is not tracked later");
}

#[test]
fn keys_are_escaped_as_go_escapes_them() {
    let mut object = Object::new(config_map());
    object.apply("a", json!({"metadata": {"name": "x", "finalizers": ["a<b/c&d"]}})).unwrap();
    assert_eq!(object.owners(), [r#"a Apply: {"f:metadata":{"f:finalizers":{"v:\"a\\u003cb/c\\u0026d\"":{}}}}"#]);
    object.write("b", None, |new| {
        new["metadata"]["managedFields"][0]["fieldsV1"] = json!({"f:metadata": {"f:finalizers": {"v:\"a<b\"": {}}}})
    });
    assert_eq!(object.owners(), [r#"a Apply: {"f:metadata":{"f:finalizers":{"v:\"a\\u003cb\"":{}}}}"#]);
}

#[test]
fn conflicts_have_kube_apiservers_messages() {
    let deployment = |replicas: i64, image: &str| {
        json!({"metadata": {"name": "x"}, "spec": {"replicas": replicas, "template": {"spec": {
            "containers": [{"name": "c", "image": image}]}}}})
    };
    let mut object = Object::new(kind("apps", "v1", "deployments"));
    object.apply("a", deployment(1, "i:1")).unwrap();
    object.write("hpa", Some("scale"), |new| new["spec"]["replicas"] = json!(5));

    let status = object.apply("b", deployment(5, "i:2")).unwrap_err();
    assert_eq!(status.code(), 409);
    let image = r#".spec.template.spec.containers[name="c"].image"#;
    assert_eq!(status.message(), format!(r#"Apply failed with 1 conflict: conflict with "a": {image}"#));
    let cause = &status.details().causes[0];
    assert_eq!(
        (&*cause.reason, &*cause.message, &*cause.field),
        ("FieldManagerConflict", r#"conflict with "a""#, image)
    );

    let status = object.apply("b", deployment(2, "i:2")).unwrap_err();
    let both = format!(
        "Apply failed with 2 conflicts: conflicts with \"a\":\n- {image}\nconflicts with \"hpa\" with subresource \"scale\" using apps/v1:\n- .spec.replicas"
    );
    assert_eq!(status.message(), both);

    object.apply_forced("b", deployment(2, "i:2"), true).unwrap();
    assert_eq!(object.at("/spec/replicas"), 2);
    let owners = object.owners();
    assert_eq!(owners.len(), 2, "{owners:?}");
    assert!(!owners[0].contains("f:image") && owners[1].contains("f:replicas"), "{owners:?}");
}

#[test]
fn equal_values_are_shared() {
    let mut object = Object::new(config_map());
    object.apply("a", json!({"metadata": {"name": "x"}, "data": {"k": "1", "l": "1"}})).unwrap();
    object.apply("b", json!({"metadata": {"name": "x"}, "data": {"k": "1"}})).unwrap();
    // A manager that only shares existing fields gets no time, and is listed first.
    assert_eq!(object.owners(), [r#"b Apply: {"f:data":{"f:k":{}}}"#, r#"a Apply: {"f:data":{"f:k":{},"f:l":{}}}"#]);
    assert!(object.at("/metadata/managedFields/0").get("time").is_none());

    object.apply("a", json!({"metadata": {"name": "x"}, "data": {"l": "1"}})).unwrap();
    assert_eq!(object.at("/data"), json!({"k": "1", "l": "1"}), "b still owns k");
    object.apply("b", json!({"metadata": {"name": "x"}})).unwrap();
    assert_eq!(object.at("/data"), json!({"l": "1"}), "no manager owns k");
    assert_eq!(object.owners(), [r#"a Apply: {"f:data":{"f:l":{}}}"#]);
}

#[test]
fn fields_no_longer_applied_are_removed_unless_owned() {
    let pod = |containers: Value| json!({"metadata": {"name": "x"}, "spec": {"containers": containers}});
    let mut object = Object::new(kind("", "v1", "pods"));
    let three = json!([{"name": "one", "image": "i"}, {"name": "two", "image": "i"}, {"name": "three", "image": "i"}]);
    object.apply("a", pod(three)).unwrap();
    object.apply("b", pod(json!([{"name": "three"}]))).unwrap();
    object.write("defaulter", None, |new| new["spec"]["containers"][1]["tty"] = json!(true));
    object.write("kubelet", Some("status"), |new| new["status"] = json!({"phase": "Running"}));
    object.now = LATER;

    object.apply("a", pod(json!([{"name": "one"}]))).unwrap();
    // An element is removed with all that it contains, unless another manager applied it.
    assert_eq!(object.at("/spec/containers"), json!([{"name": "one"}, {"name": "three"}]));
    assert_eq!(object.at("/status/phase"), "Running");
    assert_eq!(object.at("/metadata/name"), "x");
}

#[test]
fn an_apply_without_effect_changes_nothing() {
    let mut object = Object::new(config_map());
    let config = json!({"metadata": {"name": "x", "labels": {"a": "b"}}, "data": {"k": "1"}});
    object.apply("a", config.clone()).unwrap();
    object.write("b", None, |new| new["data"]["l"] = json!("2"));
    let before = object.live().clone();
    object.now = LATER;
    object.apply("a", config).unwrap();
    assert_eq!(*object.live(), before);
    object.write("b", None, |_| {});
    assert_eq!(*object.live(), before);
}

#[test]
fn timestamps_alone_are_no_change() {
    let with_time = |time: &str, rv: &str| json!({"data": {"k": "1"}, "metadata": {"resourceVersion": rv, "managedFields": [{"manager": "a", "time": time}]}});
    let mut new = with_time(LATER, "7");
    assert!(keep_times(&with_time(NOW, "6"), &mut new));
    assert_eq!(new, with_time(NOW, "7"));
    let mut other = with_time(LATER, "7");
    other["data"]["k"] = json!("2");
    assert!(!keep_times(&with_time(NOW, "6"), &mut other));
    assert_eq!(other["metadata"]["managedFields"][0]["time"], LATER);
}

#[test]
fn existing_fields_have_the_first_apply_owner() {
    let mut object = Object::new(config_map());
    object.live = Some(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "uid": "u"}, "data": {"k": "1"}}),
    );
    let status = object.apply("a", json!({"metadata": {"name": "x"}, "data": {"k": "2"}})).unwrap_err();
    assert_eq!(
        status.message(),
        r#"Apply failed with 1 conflict: conflict with "before-first-apply" using v1: .data.k"#
    );
    object.apply("a", json!({"metadata": {"name": "x"}, "data": {"l": "2"}})).unwrap();
    assert_eq!(
        object.owners(),
        [r#"a Apply: {"f:data":{"f:l":{}}}"#, r#"before-first-apply Update: {"f:data":{".":{},"f:k":{}}}"#]
    );
}

#[test]
fn fields_of_the_server_have_no_owner() {
    let placed = |clusters: &str| json!({"portolan.dev/clusters": clusters, "portolan.dev/placement": "{}", "a": "b"});
    let live = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "annotations": placed("east"),
        "labels": {"portolan.dev/cluster": "east"}}});
    let mut object = Object::new(config_map());
    object.live = Some(live.clone());
    object.apply("a", json!({"metadata": {"name": "x", "annotations": placed("west")}})).unwrap();
    let owned = r#"{"f:metadata":{"f:annotations":{"f:a":{}}}}"#;
    let before = r#"{"f:metadata":{"f:annotations":{".":{},"f:a":{}},"f:labels":{}}}"#;
    assert_eq!(object.owners(), [format!("a Apply: {owned}"), format!("before-first-apply Update: {before}")]);
    object.write("b", None, |new| new["metadata"]["annotations"] = placed("north"));
    assert_eq!(object.owners().len(), 2, "{:?}", object.owners());
    // Nor can it be claimed.
    object.write("b", None, |new| {
        let fields = json!({"f:metadata": {"f:annotations": {"f:portolan.dev/clusters": {}, "f:a": {}}}});
        new["metadata"]["managedFields"] = json!([{"manager": "c", "operation": "Apply", "apiVersion": "v1",
            "fieldsType": "FieldsV1", "fieldsV1": fields}]);
    });
    assert_eq!(object.owners(), [format!("c Apply: {owned}")]);
}

#[test]
fn a_new_object_keeps_sent_owners_of_fields_it_lacks() {
    let sent = |fields: Value| json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields});
    let maker = r#"a Update: {"f:data":{".":{},"f:k":{}}}"#;
    for (case, managed, expected) in [
        ("of what is in it, its maker is the owner", json!([sent(json!({"f:data": {"f:k": {}}}))]), vec![maker]),
        (
            "of what is not, others may be",
            json!([sent(json!({"f:data": {"f:k": {}, "f:gone": {}}}))]),
            vec![maker, r#"m Update: {"f:data":{"f:gone":{}}}"#],
        ),
        ("what is none is passed over", json!([{"manager": "m", "operation": "Dance"}]), vec![maker]),
        ("a reset leaves nothing to be passed on", json!([{}]), vec![maker]),
    ] {
        let mut object = Object::new(config_map());
        object.write("a", None, |new| {
            new["data"] = json!({"k": "1"});
            new["metadata"]["managedFields"] = managed;
        });
        let mut owners = object.owners();
        owners.sort();
        assert_eq!(owners, expected, "{case}");
    }
}

#[test]
fn updates_take_fields_over() {
    let mut object = Object::new(config_map());
    object.apply("a", json!({"metadata": {"name": "x"}, "data": {"k": "1", "l": "1"}})).unwrap();
    object.now = LATER;
    object.write("b", None, |new| new["data"] = json!({"k": "2"}));
    assert_eq!(object.owners(), [r#"b Update: {"f:data":{"f:k":{}}}"#]);
    assert_eq!(object.at("/metadata/managedFields/0/time"), LATER);
}

#[test]
fn each_endpoint_owns_its_part() {
    let mut object = Object::new(kind("apps", "v1", "deployments"));
    object.write("a", None, |new| {
        new["spec"] = json!({"replicas": 1});
        new["status"] = json!({"replicas": 9});
    });
    object.write("c", Some("status"), |new| {
        new["status"] = json!({"replicas": 1, "conditions": [{"type": "Available", "status": "True"}]});
        new["spec"]["replicas"] = json!(9);
    });
    let owners = object.owners();
    assert_eq!(owners[0], r#"a Update: {"f:spec":{"f:replicas":{}}}"#);
    assert!(
        owners[1].starts_with(r#"c Update: {"f:status":{"f:conditions":{".":{},"k:{\"type\":\"Available\"}":{".":{}"#),
        "{owners:?}"
    );
    assert_eq!(object.at("/metadata/managedFields/1/subresource"), "status");

    let scale =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x"}, "spec": {"replicas": 3}});
    let live = object.live().clone();
    object.live = Some(scaled(object.kind, &live, scale, ("s", true)).unwrap());
    assert_eq!(object.at("/spec/replicas"), 3);
    assert_eq!(object.owners()[0], r#"s Apply: {"f:spec":{"f:replicas":{}}}"#);
    assert_eq!(object.at("/metadata/managedFields/0/subresource"), "scale");
}

/// Applies a scale to an object.
fn scaled(kind: &Kind, live: &Value, scale: Value, (manager, force): (&str, bool)) -> Result<Value, Status> {
    let request = ApplyRequest {
        live: Some(live),
        applied: scale,
        manager,
        force,
        subresource: Some("scale"),
        now: LATER,
        conversions: &Conversions::default(),
    };
    apply_scale(KindTable::builtin(), kind, &request).map_err(Status::from)?.onto(kind, live)
}

fn scale(spec: Value) -> Value {
    json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": spec})
}

#[test]
fn an_unchanged_scale_takes_the_number_from_its_updater() {
    let mut object = Object::new(kind("apps", "v1", "deployments"));
    object.write("a", None, |new| new["spec"] = json!({"replicas": 2, "paused": true}));
    object.write("hpa", Some("scale"), |_| {});
    let number = r#"a Update: {"f:spec":{"f:replicas":{}}}"#;
    let rest = r#"a Update: {"f:spec":{"f:paused":{}}}"#;
    assert_eq!(object.owners(), [number, rest]);
    assert!(object.at("/metadata/managedFields/0").get("time").is_none());
    // Of two entries of one manager the last one counts.
    object.write("hpa", Some("scale"), |_| {});
    assert_eq!(object.owners(), [rest]);
    let before = object.live().clone();
    object.write("hpa", Some("scale"), |_| {});
    assert_eq!(*object.live(), before);
}

#[test]
fn zero_replicas_have_no_owner() {
    let mut object = Object::new(kind("apps", "v1", "deployments"));
    object.write("a", None, |new| new["spec"] = json!({"replicas": 2, "paused": true}));
    object.write("hpa", Some("scale"), |new| new["spec"]["replicas"] = json!(0));
    assert_eq!(object.owners(), [r#"a Update: {"f:spec":{"f:paused":{}}}"#]);
}

#[test]
fn a_scale_without_a_number_takes_it_away() {
    let mut object = Object::new(kind("apps", "v1", "deployments"));
    object.apply("a", json!({"metadata": {"name": "x"}, "spec": {"replicas": 2}})).unwrap();
    object.live =
        Some(scaled(object.kind, &object.live().clone(), scale(json!({"replicas": 3})), ("s", true)).unwrap());
    object.live = Some(scaled(object.kind, &object.live().clone(), scale(json!({})), ("s", true)).unwrap());
    assert_eq!(object.at("/spec/replicas"), 0);
}

#[test]
fn a_scale_is_compared_as_a_scale() {
    let mut object = Object::new(kind("apps", "v1", "deployments"));
    object.apply("a", json!({"metadata": {"name": "x"}, "spec": {"replicas": 2}})).unwrap();
    let live = object.live().clone();
    let refused = |spec: Value| scaled(object.kind, &live, scale(spec), ("s", true)).unwrap_err();
    let frame = "failed to create typed patch object (/; autoscaling/v1, Kind=Scale): ";
    for (spec, expected) in [
        (json!({"replicas": 3, "more": 1}), format!("{frame}.spec.more: field not declared in schema")),
        (json!([]), format!("{frame}.spec: expected map, got &{{[]}}")),
        (
            json!({"replicas": 1.5}),
            "failed to convert new object (/; autoscaling/v1, Kind=Scale) to proper version: unable to convert unstructured object to autoscaling/v1, Kind=Scale: cannot convert float64 to int32".into(),
        ),
    ] {
        let status = refused(spec);
        assert_eq!((status.code(), status.message()), (500, expected.as_str()));
    }
    let status = refused(json!({"replicas": -1}));
    assert_eq!((status.code(), &*status.details().kind), (422, "Scale"));
    // As in Go, digits beyond the integer's size are lost.
    let wrapped = scaled(object.kind, &live, scale(json!({"replicas": 99_999_999_999_i64})), ("s", true)).unwrap();
    assert_eq!(wrapped["spec"]["replicas"], 1_215_752_191);
}

#[test]
fn scaling_does_not_own_unowned_replicas() {
    let mut object = Object::new(kind("apps", "v1", "deployments"));
    object.apply("a", json!({"metadata": {"name": "x", "labels": {"l": "v"}}})).unwrap();
    object.write("hpa", Some("scale"), |new| new["spec"]["replicas"] = json!(5));
    assert_eq!(object.owners(), [r#"a Apply: {"f:metadata":{"f:labels":{"f:l":{}}}}"#]);
    object.write("b", None, |new| new["spec"]["replicas"] = json!(6));
    object.write("hpa", Some("scale"), |new| new["spec"]["replicas"] = json!(7));
    assert_eq!(object.owners()[1], r#"hpa Update: {"f:spec":{"f:replicas":{}}}"#);
}

#[test]
fn unowned_replicas_existed_before_a_scale_is_applied() {
    let mut object = Object::new(kind("apps", "v1", "deployments"));
    object.apply("a", json!({"metadata": {"name": "x", "labels": {"l": "v"}}})).unwrap();
    object.write("hpa", Some("scale"), |new| new["spec"]["replicas"] = json!(5));
    let live = object.live().clone();
    let scaled =
        |replicas: i64, force: bool| scaled(object.kind, &live, scale(json!({"replicas": replicas})), ("s", force));
    let refused = scaled(4, false).unwrap_err();
    let expected = r#"Apply failed with 1 conflict: conflict with "before-first-apply" with subresource "scale" using autoscaling/v1: .spec.replicas"#;
    assert_eq!(refused.message(), expected);
    let owners = |done: Value| Object { live: Some(done), ..Object::new(object.kind) }.owners();
    let own = [r#"a Apply: {"f:metadata":{"f:labels":{"f:l":{}}}}"#, r#"s Apply: {"f:spec":{"f:replicas":{}}}"#];
    let mut forced = owners(scaled(4, true).unwrap());
    forced.sort();
    assert_eq!(forced, own);
    let shared = owners(scaled(5, false).unwrap());
    assert!(shared.contains(&r#"before-first-apply Update: {"f:spec":{"f:replicas":{}}}"#.to_owned()), "{shared:?}");
}

#[test]
fn the_oldest_updates_are_thrown_together() {
    let mut object = Object::new(config_map());
    object.write("m00", None, |new| new["data"] = json!({"k00": "1"}));
    let times: Vec<String> = (1..12).map(|n| format!("2026-11-21T04:{n:02}:00Z")).collect();
    for (at, time) in times.iter().enumerate() {
        let (key, manager) = (format!("k{:02}", at + 1), format!("m{:02}", at + 1));
        let mut new = object.live().clone();
        new["data"][key] = json!("1");
        update(object.kind, object.live.as_ref(), &mut new, (&manager, None), time);
        object.live = Some(new);
    }
    let owners = object.owners();
    assert_eq!(owners.len(), 10);
    assert_eq!(owners[0], r#"ancient-changes Update: {"f:data":{".":{},"f:k00":{},"f:k01":{},"f:k02":{}}}"#);
    assert_eq!(object.at("/metadata/managedFields/0/time"), times[1].as_str());
}

#[test]
fn clients_may_reset_and_edit_managed_fields() {
    for reset in [json!([]), json!([{}])] {
        let mut object = Object::new(config_map());
        object.write("a", None, |new| new["data"] = json!({"k": "1"}));
        object.write("a", None, |new| new["metadata"]["managedFields"] = reset.clone());
        assert_eq!(object.owners(), [""; 0], "{reset}");
    }
    let mut object = Object::new(config_map());
    object.write("a", None, |new| new["data"] = json!({"k": "1"}));
    object.write("b", None, |new| new["metadata"]["managedFields"][0]["manager"] = json!("moved"));
    assert_eq!(object.owners(), [r#"moved Update: {"f:data":{".":{},"f:k":{}}}"#]);
    object.write("b", None, |new| new["metadata"]["managedFields"] = json!([{"manager": "bad", "operation": "Dance"}]));
    assert_eq!(object.owners(), [r#"moved Update: {"f:data":{".":{},"f:k":{}}}"#], "garbage is dropped");
    object.write("b", Some("status"), |new| new["metadata"]["managedFields"] = json!([{}]));
    assert_eq!(object.owners().len(), 1, "not through a subresource");
    object.write("b", None, |new| drop(object::metadata_mut(new).remove("managedFields")));
    assert_eq!(object.owners().len(), 1, "clients that do not know them do not delete them");
}

#[test]
fn kubectl_moves_from_client_side_to_server_side_apply() {
    let client_side =
        |k: &str| format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"x"}},"data":{{"k":"{k}"}}}}"#);
    let mut object = Object::new(config_map());
    object.write("kubectl-client-side-apply", None, |new| {
        new["data"] = json!({"k": "1"});
        object::set_annotation(new, portolan_types::annotations::LAST_APPLIED, Some(client_side("1")));
    });
    let other = object.apply("other", json!({"metadata": {"name": "x"}, "data": {"k": "2"}})).unwrap_err();
    assert_eq!(other.code(), 409);
    object.apply("kubectl", json!({"metadata": {"name": "x"}, "data": {"k": "2"}})).unwrap();
    assert_eq!(object.at("/data/k"), "2");
    let annotation = object::annotation(object.live(), portolan_types::annotations::LAST_APPLIED).unwrap();
    assert_eq!(serde_json::from_str::<Value>(annotation).unwrap()["data"]["k"], "2");
}

#[test]
fn configurations_that_cannot_be_merged_are_refused() {
    for (config, expected) in [
        (
            json!({"metadata": {"labels": {"a": true}}, "spec": {"paused": "a", "replicas": [1]}}),
            "failed to create typed patch object (/x; apps/v1, Kind=Deployment): errors:\n  .metadata.labels.a: expected string, got &value.valueUnstructured{Value:true}\n  .spec.paused: expected boolean, got &{a}\n  .spec.replicas: expected numeric (int or float), got []interface {}",
        ),
        (
            json!({"spec": []}),
            "failed to create typed patch object (/x; apps/v1, Kind=Deployment): .spec: expected map, got &{[]}",
        ),
        (
            json!({"spec": {"foo": 1}}),
            "failed to create typed patch object (/x; apps/v1, Kind=Deployment): .spec.foo: field not declared in schema",
        ),
        (
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}}}),
            "failed to create typed patch object (/x; apps/v1, Kind=Deployment): .spec.template.spec.containers: duplicate entries for key [name=\"a\"]",
        ),
        (
            json!({"spec": {"template": {"spec": {"containers": [null]}}}}),
            "failed to create typed patch object (/x; apps/v1, Kind=Deployment): .spec.template.spec.containers: element 0: associative list with keys may not have a null element",
        ),
        (json!({"metadata": {"managedFields": []}}), "metadata.managedFields must be nil"),
    ] {
        let mut config = config;
        config["metadata"]["name"] = json!("x");
        let status = Object::new(kind("apps", "v1", "deployments")).apply("a", config).unwrap_err();
        let code = if expected.starts_with("failed") { 500 } else { 400 };
        assert_eq!((status.code(), status.message()), (code, expected));
    }
    let wrong = json!({"apiVersion": "v1", "kind": "Pod"});
    let object = Object::new(config_map());
    let conversions = &Conversions::default();
    let request = ApplyRequest {
        live: None,
        applied: wrong,
        manager: "a",
        force: false,
        subresource: None,
        now: NOW,
        conversions,
    };
    let status = Status::from(apply(KindTable::builtin(), object.kind, request).unwrap_err());
    assert_eq!(status.message(), "invalid object type: /v1, Kind=Pod");
}

#[test]
fn lists_keep_the_applied_order_around_elements_of_others() {
    let names = |list: &[&str]| list.iter().map(|name| json!({"name": name})).collect::<Value>();
    for (live, applied, expected) in [
        (&["a", "b", "c"][..], &["c", "a"][..], &["b", "c", "a"][..]),
        (&["a", "b"], &["b", "c"], &["a", "b", "c"]),
        (&["x", "a", "y"], &["a"], &["x", "a", "y"]),
        (&[], &["b", "a"], &["b", "a"]),
        (&["a", "b", "c", "d"], &["d", "b"], &["a", "c", "d", "b"]),
    ] {
        let shape = shape::OwnershipShape::of_type(KindTable::builtin(), kind("", "v1", "pods").schema).child("spec");
        let merged = merge::merge(shape, &json!({"containers": names(live)}), &json!({"containers": names(applied)}));
        assert_eq!(merged, json!({"containers": names(expected)}), "{live:?} with {applied:?}");
    }
}

fn config() -> impl Strategy<Value = Value> {
    let map = || prop::collection::btree_map("[abc]", "[12]", 0..3);
    let env = map().prop_map(|env| env.into_iter().map(|(n, v)| json!({"name": n, "value": v})).collect::<Value>());
    let containers = prop::collection::btree_map("[xyz]", (env, prop::option::of("[ij]")), 0..3);
    (map(), containers, prop::option::of(0..5i64), map()).prop_map(|(labels, containers, grace, selector)| {
        let container = |(name, (env, image)): (String, (Value, Option<String>))| {
            let mut container = json!({"name": name, "env": env});
            if let Some(image) = image {
                container["image"] = image.into();
            }
            container
        };
        let mut spec =
            json!({"containers": containers.into_iter().map(container).collect::<Value>(), "nodeSelector": selector});
        if let Some(grace) = grace {
            spec["terminationGracePeriodSeconds"] = grace.into();
        }
        json!({"metadata": {"name": "x", "labels": labels}, "spec": spec})
    })
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once(first in config(), second in config()) {
        let mut object = Object::new(kind("", "v1", "pods"));
        object.apply("a", first).unwrap();
        object.apply_forced("b", second.clone(), true).unwrap();
        let before = object.live().clone();
        object.now = LATER;
        object.apply("b", second).unwrap();
        prop_assert_eq!(object.live(), &before);
    }

    #[test]
    fn a_manager_alone_gets_what_it_applies(first in config(), second in config()) {
        let mut object = Object::new(kind("", "v1", "pods"));
        object.apply("a", first).unwrap();
        object.apply("a", second.clone()).unwrap();
        let mut fresh = Object::new(kind("", "v1", "pods"));
        fresh.apply("a", second).unwrap();
        prop_assert_eq!(object.owners(), fresh.owners());
        // Emptied objects and lists are left as null, which decoding drops.
        let shape = shape::OwnershipShape::of_type(KindTable::builtin(), object.kind.schema);
        let rest = Difference::between(shape, fresh.live(), object.live()).written().paths();
        prop_assert!(rest.iter().all(|path| object.at(&path.replace('.', "/")).is_null()), "{rest:?}");
    }

    #[test]
    fn written_sets_read_back(config in config()) {
        let shape = shape::OwnershipShape::of_type(KindTable::builtin(), kind("", "v1", "pods").schema);
        let set = collect::collect(shape, &config);
        prop_assert_eq!(FieldSet::parse(&set.to_fields()), Some(set));
    }

    #[test]
    fn set_algebra(a in config(), b in config()) {
        let shape = shape::OwnershipShape::of_type(KindTable::builtin(), kind("", "v1", "pods").schema);
        let (a, b) = (collect::collect(shape, &a), collect::collect(shape, &b));
        let both = a.intersection(&b);
        prop_assert_eq!(a.difference(&b).union(both.clone()), a.clone());
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert_eq!(&both, &b.intersection(&a));
        prop_assert_eq!(a.clone().union(b.clone()), b.union(a.clone()));
        prop_assert!(a.difference(&a).is_empty() && a.outside(&a).is_empty());
    }

    #[test]
    fn the_difference_of_a_value_to_itself_is_empty(a in config(), b in config()) {
        let shape = shape::OwnershipShape::of_type(KindTable::builtin(), kind("", "v1", "pods").schema);
        prop_assert!(Difference::between(shape, &a, &a).is_empty());
        let there = Difference::between(shape, &a, &b);
        let back = Difference::between(shape, &b, &a);
        prop_assert_eq!((there.added, there.removed, there.modified), (back.removed, back.added, back.modified));
    }
}

#[test]
fn atomic_values_are_checked_too() {
    let mut job = Object::new(kind("batch", "v1", "jobs"));
    let rule = json!({"action": "Ignore", "onExitCodes": {"operator": "In", "values": [2, 3, 2]}, "colour": "red"});
    let refused = job.apply("a", json!({"metadata": {"name": "x"}, "spec": {"podFailurePolicy": {"rules": [rule]}}}));
    let refused = refused.unwrap_err();
    let message = refused.message();
    for said in [
        ".spec.podFailurePolicy.rules[0].onExitCodes.values: duplicate entries for key [=2]",
        ".spec.podFailurePolicy.rules[0].colour: field not declared in schema",
    ] {
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn errors_are_bounded() {
    let mut pod = Object::new(kind("", "v1", "pods"));
    let mut container = json!({"name": "n".repeat(1 << 20)});
    (0..10_000).for_each(|field| container[format!("a{field}")] = json!(1));
    let refused = pod.apply("a", json!({"metadata": {"name": "x"}, "spec": {"containers": [container]}})).unwrap_err();
    assert!(refused.message().len() < 3 << 20, "{}", refused.message().len());
}

#[test]
fn conflicts_are_reported_in_the_order_of_owners() {
    let mut object = Object::new(config_map());
    object.apply("b", json!({"data": {"k": "1"}})).unwrap();
    object.write("b", None, |new| new["data"] = json!({"k": "1", "l": "1"}));
    let refused = object.apply("a", json!({"data": {"k": "2", "l": "2"}})).unwrap_err();
    let expected =
        "Apply failed with 2 conflicts: conflicts with \"b\":\n- .data.k\nconflicts with \"b\" using v1:\n- .data.l";
    assert_eq!(refused.message(), expected);
}

#[test]
fn an_element_owned_by_its_default_keys_stays() {
    let mut pod = Object::new(kind("", "v1", "pods"));
    pod.apply("c", json!({"spec": {"schedulingGates": [{}]}})).unwrap();
    pod.write("server", None, |new| new["spec"]["schedulingGates"] = json!([{"name": ""}]));
    pod.apply("b", json!({"spec": {"schedulingGates": [{"name": "a.b/g"}]}})).unwrap();
    pod.apply("b", json!({"spec": {"hostname": "h"}})).unwrap();
    assert_eq!(pod.at("/spec/schedulingGates"), json!([{"name": ""}]));
}

/// Returns a MutatingAdmissionPolicy, whose conditions are distinguished by names that may be missing.
fn policy_with(conditions: Value) -> Value {
    json!({"metadata": {"name": "x"}, "spec": {"matchConditions": conditions}})
}

#[test]
fn an_emptied_element_is_removed() {
    let mut policy = Object::new(kind("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies"));
    policy.apply("a", policy_with(json!([{"expression": "true"}]))).unwrap();
    policy.apply("a", policy_with(json!([{}]))).unwrap();
    assert_eq!(policy.at("/spec/matchConditions"), Value::Null);
    assert_eq!(policy.owners(), [r#"a Apply: {"f:spec":{"f:matchConditions":{"k:{\"name\":\"\"}":{}}}}"#]);
}

#[test]
fn an_emptied_element_without_an_applied_owner_is_refused() {
    let mut policy = Object::new(kind("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies"));
    policy.apply("a", policy_with(json!([{"name": "n", "expression": "true"}]))).unwrap();
    policy.apply("b", policy_with(json!([{"name": "m", "expression": "true"}]))).unwrap();
    // The form left by a client that turns its update into an apply.
    policy.write("c", None, |new| {
        let element = json!({r#"k:{"name":"n"}"#: {"f:name": {}, "f:expression": {}}});
        new["metadata"]["managedFields"][0]["fieldsV1"] = json!({"f:spec": {"f:matchConditions": element}});
    });
    let refused = policy.apply("a", json!({"metadata": {"name": "x"}})).unwrap_err();
    let expected = "failed to compare objects: .spec.matchConditions: element 0: associative list with keys may not have a null element";
    assert_eq!((refused.code(), refused.message()), (500, expected));
}

fn scaler(version: &str) -> &'static Kind {
    kind("autoscaling", version, "horizontalpodautoscalers")
}

fn cpu(percent: i64) -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": percent});
    json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "metrics": [
        {"type": "Resource", "resource": {"name": "cpu", "target": target}},
    ]}})
}

/// Returns an autoscaler that `a` has applied in the old version, seen in the new one.
fn applied_in_the_old_version() -> Object {
    let mut object = Object::new(scaler("v1"));
    let spec = json!({"maxReplicas": 3, "targetCPUUtilizationPercentage": 50});
    object.apply("a", json!({"metadata": {"name": "h"}, "spec": spec})).unwrap();
    object.in_version(scaler("v2"));
    object
}

#[test]
fn conflicts_of_other_versions_use_their_field_names() {
    let mut object = applied_in_the_old_version();
    object.apply("b", cpu(50)).unwrap();
    let mut object = applied_in_the_old_version();
    let refused = object.apply("b", cpu(80)).unwrap_err();
    let expected = "Apply failed with 1 conflict: conflict with \"a\": .spec.targetCPUUtilizationPercentage";
    assert_eq!(refused.message(), expected);
    object.apply_forced("b", cpu(80), true).unwrap();
    assert_eq!(object.owners()[0], r#"a Apply: {"f:spec":{"f:maxReplicas":{}}}"#);
}

#[test]
fn owners_of_another_group_are_forgotten() {
    let event = |group: &str| kind(group, "v1", "events");
    let mut object = Object::new(event(""));
    object.apply("a", json!({"metadata": {"name": "e", "labels": {"a": "b"}}, "message": "m"})).unwrap();
    object.in_version(event("events.k8s.io"));
    object.apply("b", json!({"metadata": {"name": "e", "labels": {"a": "c"}}})).unwrap();
    assert_eq!(object.owners(), [r#"b Apply: {"f:metadata":{"f:labels":{"f:a":{}}}}"#], "as kube-apiserver");
}

#[test]
fn fields_left_out_of_an_apply_in_another_version_lose_their_owner() {
    let rest = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3}});
    let mut object = applied_in_the_old_version();
    object.apply("a", rest.clone()).unwrap();
    assert_eq!(object.owners(), [r#"a Apply: {"f:spec":{"f:maxReplicas":{}}}"#]);
    // Without a metric an autoscaler gets the default one, and so the list, which is owned as a whole, is there and
    // stays.
    assert_eq!(object.at("/spec/metrics/0/resource/target/averageUtilization"), 50, "as kube-apiserver");
    let mut object = applied_in_the_old_version();
    object.apply("b", cpu(50)).unwrap();
    object.apply("a", rest).unwrap();
    assert_eq!(object.at("/spec/metrics/0/resource/target/averageUtilization"), 50, "the other one wants it");
}

#[test]
fn an_update_owns_changed_fields_in_all_versions() {
    let mut object = applied_in_the_old_version();
    object.write("b", None, |object| object["spec"]["metrics"] = cpu(70)["spec"]["metrics"].clone());
    assert_eq!(object.owners()[0], r#"a Apply: {"f:spec":{"f:maxReplicas":{}}}"#);
}

#[test]
fn owners_of_versions_that_are_gone_are_forgotten() {
    let mut object = Object::new(scaler("v2"));
    object.apply("a", cpu(50)).unwrap();
    object.live.as_mut().unwrap()["metadata"]["managedFields"][0]["apiVersion"] = "autoscaling/v2beta1".into();
    object.apply("b", json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 4}})).unwrap();
    assert_eq!(object.owners(), [r#"b Apply: {"f:spec":{"f:maxReplicas":{}}}"#]);
}
