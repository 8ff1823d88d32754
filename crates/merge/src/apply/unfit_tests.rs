//! Objects that do not fit the schema of field tracking, and owners that cannot be parsed.

use super::*;

const NOW: &str = "2026-11-26T10:00:00Z";

fn kind(group: &str, version: &str, plural: &str) -> &'static Kind {
    KindTable::builtin().resource(group, version, plural).expect("the kind is in the table")
}

/// Returns the managers of an object after a write by `a`.
fn managers_of(kind: &Kind, old: Option<&Value>, new: &Value) -> Vec<String> {
    let mut new = new.clone();
    let conversions = &Conversions::default();
    let request = UpdateRequest { old, manager: "a", subresource: None, now: NOW, conversions };
    track_update(KindTable::builtin(), kind, &request, &mut new).expect("nothing has to be converted");
    let entries = managers::managed_fields(&new).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    entries.iter().map(|entry| format!("{} {}", entry["manager"].as_str().unwrap(), entry["fieldsV1"])).collect()
}

fn entry(fields: &Value) -> Value {
    json!([{"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}])
}

#[test]
fn misfits_have_no_owner() {
    let accounts = kind("", "v1", "serviceaccounts");
    let templates = kind("", "v1", "podtemplates");
    for (case, kind, object, expected) in [
        ("an element without a key", accounts, json!({"secrets": [{}]}), false),
        ("elements that are there twice", accounts, json!({"secrets": [{"name": "s"}, {"name": "s"}]}), true),
        ("an element of null", accounts, json!({"secrets": [null]}), false),
        ("a text for a list", accounts, json!({"secrets": "s"}), false),
        ("a number for a text", accounts, json!({"secrets": [{"name": 1}]}), false),
        ("an unknown field", accounts, json!({"zz": 1}), false),
        (
            "owners in a template, of fields that do not exist",
            templates,
            json!({"template": {"metadata": {"managedFields": [{"fieldsV1": 1}]}}}),
            false,
        ),
        (
            "owners in a template",
            templates,
            json!({"template": {"metadata": {"managedFields": [{"fieldsV1": {"f:a": {}}}]}}}),
            true,
        ),
    ] {
        let mut new = object;
        (new["apiVersion"], new["kind"]) = (json!("v1"), json!(&*kind.gvk.kind));
        new["metadata"] = json!({"name": "x", "uid": "u"});
        assert_eq!(!managers_of(kind, None, &new).is_empty(), expected, "{case}, made");
        let fields = json!({"f:metadata": {"f:labels": {}}});
        let old = json!({"apiVersion": "v1", "kind": *kind.gvk.kind,
            "metadata": {"name": "x", "uid": "u", "labels": {"a": "b"}, "managedFields": entry(&fields)}});
        new["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(managers_of(kind, Some(&old), &new).len(), if expected { 2 } else { 0 }, "{case}, changed");
    }
}

#[test]
fn owners_that_cannot_be_read_are_none() {
    let made = [r#"a {"f:data":{".":{},"f:k":{}}}"#];
    for (fields, expected) in [
        (json!({"k:{": {}}), None),
        (json!({"k:1": {}}), None),
        (json!({"v:": {}}), None),
        (json!({"i:x": {}}), None),
        (json!({"x": {}}), None),
        (json!({"f:data": 1}), None),
        (json!(1), None),
        (json!({"f:gone": {"z:unknown": {}}}), Some(r#"m {"f:gone":{}}"#)),
        (json!({"f:gone": null}), Some(r#"m {"f:gone":{}}"#)),
        (json!({"f:l": {"v:12a": {}, "v:truex": {}}}), Some(r#"m {"f:l":{"v:12":{},"v:true":{}}}"#)),
        (json!({"f:l": {"i:01": {}, "k:null": {}, "v:1 x": {}}}), Some(r#"m {"f:l":{"i:1":{},"k:{}":{},"v:1":{}}}"#)),
    ] {
        let new = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "1"},
            "metadata": {"name": "x", "managedFields": entry(&fields)}});
        let mut owners = managers_of(kind("", "v1", "configmaps"), None, &new);
        owners.sort();
        assert_eq!(owners, [&made[..], expected.as_slice()].concat(), "{fields}");
    }
}

#[test]
fn scalars_are_checked_by_kube_apiservers_types() {
    let applied = |spec: &Value| {
        let applied = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "x"}, "spec": spec});
        let conversions = &Conversions::default();
        let (manager, subresource, now) = ("a", None, NOW);
        let request = ApplyRequest { live: None, applied, manager, force: false, subresource, now, conversions };
        let failed = apply(KindTable::builtin(), kind("", "v1", "persistentvolumes"), request).map(drop);
        failed.map_err(|why| Status::from(why).message().to_owned()).err().unwrap_or_default()
    };
    let frame = "failed to create typed patch object (/x; /v1, Kind=PersistentVolume): ";
    for (spec, expected) in [
        (json!({"capacity": {"storage": []}}), ".spec.capacity.storage: expected any scalar, got &{[]}"),
        (json!({"capacity": {"storage": true}}), ""),
        (json!({"accessModes": [1]}), ".spec.accessModes[0]: expected string, got &value.valueUnstructured{Value:1}"),
    ] {
        let expected = if expected.is_empty() { String::new() } else { format!("{frame}{expected}") };
        assert_eq!(applied(&spec), expected, "{spec}");
    }
}

#[test]
fn a_patch_that_does_not_fit_the_kind_is_refused() {
    let fields = json!({"f:metadata": {"f:labels": {}}});
    let why = "(ns/x; /v1, Kind=ServiceAccount)";
    let element = ".secrets: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)";
    for (owners, expected) in [
        (
            None,
            format!(
                "failed to create manager for existing fields: failed to convert new object {why} to smd typed: {element}"
            ),
        ),
        (Some(entry(&fields)), format!("failed to create typed live object {why}: {element}")),
    ] {
        let head = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "x", "namespace": "ns"}});
        let (mut live, mut applied) = (head.clone(), head);
        live["secrets"] = json!([{}]);
        live["metadata"].as_object_mut().unwrap().extend(owners.map(|owners| ("managedFields".to_owned(), owners)));
        applied["secrets"] = json!([{"name": "s"}]);
        let conversions = &Conversions::default();
        let (live, manager, subresource, now) = (Some(&live), "a", None, NOW);
        let request = ApplyRequest { live, applied, manager, force: true, subresource, now, conversions };
        let refused = apply(KindTable::builtin(), kind("", "v1", "serviceaccounts"), request);
        assert_eq!(Status::from(refused.unwrap_err()).message(), expected);
    }
}
