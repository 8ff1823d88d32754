use serde_json::{Value, json};

use super::*;
use portolan_kinds::KindTable;

fn kind(group: &str, version: &str, plural: &str) -> &'static Kind {
    KindTable::builtin().resource(group, version, plural).expect("the kind is in the table")
}

fn pod() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"nodeName": "n1", "restartPolicy": "Always"},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]},
    })
}

#[test]
fn pods_are_selected() {
    for (text, expected) in [
        ("", true),
        (",", true),
        ("=", true),
        ("==,metadata.name=web,!=", true),
        ("metadata.name=web", true),
        ("metadata.name==web,metadata.namespace=shop", true),
        ("metadata.name!=web", false),
        ("status.phase=Running,spec.nodeName=n1,spec.host=n1", true),
        ("status.phase!=Running", false),
        ("spec.hostNetwork=false", true),
        ("spec.hostNetwork!=true,status.podIP=10.0.0.1,status.podIPs=10.0.0.1", true),
        ("status.nominatedNodeName=", true),
        ("spec.restartPolicy=Never", false),
    ] {
        let selector = FieldSelector::parse(kind("", "v1", "pods"), text).unwrap();
        assert_eq!(selector.matches(&pod()), expected, "{text:?}");
    }
}

#[test]
fn other_kinds_have_their_own_fields() {
    let event = json!({"involvedObject": {"kind": "Pod", "name": "web"}, "reason": "Started", "type": "Normal",
        "source": {"component": "kubelet"}});
    let as_new =
        json!({"regarding": {"kind": "Pod", "name": "web"}, "reason": "Started", "reportingController": "kubelet"});
    for (kind, object, text, expected) in [
        (kind("", "v1", "events"), &event, "involvedObject.name=web,reason=Started,source=kubelet,type!=Warning", true),
        (kind("events.k8s.io", "v1", "events"), &as_new, "regarding.kind=Pod,reportingController=kubelet", true),
        (kind("", "v1", "nodes"), &json!({}), "spec.unschedulable=false", true),
        (kind("", "v1", "secrets"), &json!({"type": "Opaque"}), "type=Opaque", true),
        (kind("", "v1", "services"), &json!({"spec": {"type": "NodePort"}}), "spec.type=ClusterIP", false),
        (kind("batch", "v1", "jobs"), &json!({"status": {"succeeded": 2}}), "status.successful=2", true),
        (kind("batch", "v1", "jobs"), &json!({}), "status.successful=0", true),
        (kind("", "v1", "namespaces"), &json!({"status": {"phase": "Active"}}), "status.phase=Active", true),
        (
            kind("storage.k8s.io", "v1", "storageclasses"),
            &json!({"metadata": {"name": "n"}}),
            "metadata.namespace!=x",
            true,
        ),
    ] {
        let selector = FieldSelector::parse(kind, text).unwrap();
        assert_eq!(selector.matches(object), expected, "{} {text}", kind.gvk);
    }
}

#[test]
fn wrong_selectors_are_400_with_the_text_users_know() {
    for (kind, text, expected) in [
        (kind("", "v1", "pods"), "spec.x=1", "field label not supported: spec.x"),
        (
            kind("", "v1", "configmaps"),
            "data.x=1",
            r#""data.x" is not a known field selector: only "metadata.name", "metadata.namespace""#,
        ),
        (
            kind("", "v1", "pods"),
            "metadata.name",
            "invalid selector: 'metadata.name'; can't understand 'metadata.name'",
        ),
        (kind("", "v1", "pods"), "metadata.name=a=b", "invalid field selector: unescaped character in value: 61"),
        (kind("", "v1", "nodes"), "type!=a,status.x!=b", "field label not supported: status.x"),
        (kind("", "v1", "pods"), "a=b,c>d", "invalid selector: 'a=b,c>d'; can't understand 'c>d'"),
        (kind("", "v1", "pods"), r"metadata.name=a\b", r"invalid field selector: invalid escape sequence: \b"),
        (kind("", "v1", "pods"), r"metadata.name=a\", r"invalid field selector: invalid escape sequence: \"),
    ] {
        let status = FieldSelector::parse(kind, text).unwrap_err();
        assert_eq!((status.code(), status.message()), (400, expected), "{text}");
    }
}

#[test]
fn values_may_be_escaped() {
    let selector =
        FieldSelector::parse(kind("", "v1", "pods"), r"metadata.name=a\,b\=c\\,status.phase=Running").unwrap();
    assert_eq!(selector.exact_name(), Some(r"a,b=c\"));
    assert_eq!(selector.terms.len(), 2);
}

#[test]
fn a_name_and_a_namespace_can_be_read_off() {
    let parse = |text| FieldSelector::parse(kind("", "v1", "pods"), text).unwrap();
    assert_eq!(parse("metadata.name=a").exact_name(), Some("a"));
    assert_eq!(parse("metadata.name!=a").exact_name(), None);
    assert_eq!(FieldTerms::parse(r"x=1,metadata.name=a\,b").unwrap().exact("metadata.name"), Some("a,b"));
    assert_eq!(FieldTerms::parse("metadata.name!=a").unwrap().exact("metadata.name"), None);
    assert_eq!(parse("metadata.namespace=n,status.phase=x").exact_namespace(), Some("n"));
    assert!(parse("").is_everything() && !parse("metadata.name=a").is_everything());
}

#[test]
fn names_alone_can_decide_a_selector() {
    let parse = |text| FieldSelector::parse(kind("", "v1", "pods"), text).unwrap();
    for (text, expected) in [
        ("", Some(true)),
        ("metadata.name=a", Some(true)),
        ("metadata.name=b", Some(false)),
        ("metadata.name!=b,metadata.namespace=n", Some(true)),
        ("metadata.namespace!=n", Some(false)),
        ("status.phase=Running", None),
        ("status.phase=Running,metadata.name=a", None),
        ("status.phase=Running,metadata.name!=a", Some(false)),
    ] {
        assert_eq!(parse(text).matches_name("n", "a"), expected, "{text}");
    }
    assert_eq!(parse("metadata.namespace=").matches_name("", "a"), Some(true));
}
