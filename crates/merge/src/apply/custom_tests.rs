//! Owners of fields of custom resources, across versions and changes of their definition.

use super::*;
use portolan_kinds::custom::compile;

const NOW: &str = "2026-11-21T04:00:00Z";

/// Returns a definition of gauges with a version for each of these schemas of `spec`; the first is stored.
fn gauges(versions: &[(&str, Value)], webhook: bool) -> KindTable {
    let names = json!({"plural": "gauges", "singular": "gauge", "kind": "Gauge", "listKind": "GaugeList"});
    let versions = versions.iter().enumerate().map(|(at, (name, spec))| {
        json!({"name": name, "served": true, "storage": at == 0, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": spec}}}})
    });
    let conversion = if webhook {
        json!({"strategy": "Webhook", "webhook": {"clientConfig": {}, "conversionReviewVersions": ["v1"]}})
    } else {
        json!({"strategy": "None"})
    };
    let crd = json!({"metadata": {"name": "gauges.example.dev"}, "status": {"acceptedNames": names}, "spec": {
        "group": "example.dev", "scope": "Namespaced", "names": names, "conversion": conversion,
        "versions": versions.collect::<Vec<_>>()}});
    compile(&crd).unwrap()
}

fn integers(names: &[&str]) -> Value {
    let fields = names.iter().map(|name| ((*name).to_owned(), json!({"type": "integer"})));
    json!({"type": "object", "properties": fields.collect::<Object>()})
}

/// Writes of gauges in some version, with the answers of a webhook.
struct Writes<'t> {
    table: &'t KindTable,
    webhook: fn(&Value, &str) -> Result<Value, String>,
    calls: usize,
}

impl<'t> Writes<'t> {
    fn to(table: &'t KindTable) -> Self {
        Self { table, webhook: |_, _| Err("there is none".into()), calls: 0 }
    }

    fn kind(&self, version: &str) -> &'t Kind {
        self.table.kind_named("example.dev", version, "Gauge").unwrap()
    }

    fn gauge(version: &str, spec: &Value) -> Value {
        json!({"apiVersion": format!("example.dev/{version}"), "kind": "Gauge", "metadata": {"name": "x"}, "spec": spec})
    }

    fn apply(&mut self, live: Option<&Value>, version: &str, manager: &str, spec: &Value) -> Result<Value, Status> {
        let conversions = Conversions::default();
        loop {
            let applied = Self::gauge(version, spec);
            let request = ApplyRequest {
                live,
                applied,
                manager,
                force: false,
                subresource: None,
                now: NOW,
                conversions: &conversions,
            };
            match apply(self.table, self.kind(version), request) {
                Err(Unapplied::Unconverted) => self.answer(&conversions),
                done => return done.map_err(Status::from),
            }
        }
    }

    fn update(&mut self, old: &Value, version: &str, manager: &str, change: impl Fn(&mut Value)) -> Value {
        let (conversions, mut new) = (Conversions::default(), old.clone());
        change(&mut new);
        let request = UpdateRequest { old: Some(old), manager, subresource: None, now: NOW, conversions: &conversions };
        while track_update(self.table, self.kind(version), &request, &mut new).is_err() {
            self.answer(&conversions);
        }
        new
    }

    fn answer(&mut self, conversions: &Conversions) {
        self.calls += 1;
        let wanted = conversions.take_wanted().expect("an attempt ends for want of something");
        assert!(managers::managed_fields(&wanted.object).is_none(), "the owners of fields are not shown");
        let converted = (self.webhook)(&wanted.object, &wanted.to);
        conversions.learn(wanted, converted);
    }
}

/// Returns `manager version: fieldsV1` for each entry.
fn owners(object: &Value) -> Vec<String> {
    let entries = managers::managed_fields(object).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let line =
        |entry: &Value| format!("{} {}: {}", text(entry, "manager"), text(entry, "apiVersion"), entry["fieldsV1"]);
    let mut lines: Vec<String> = entries.iter().map(line).collect();
    lines.sort();
    lines
}

/// Returns an object as a client that reads it in another version sees it, where nothing but that changes.
fn object_at_version(object: &Value, version: &str) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = format!("example.dev/{version}").into();
    object
}

/// Renames `size` of v1 to `length` of other versions, or back.
fn renamed(object: &Value, to: &str) -> Result<Value, String> {
    let mut object = object.clone();
    let (from, into) = if to.ends_with("/v1") { ("length", "size") } else { ("size", "length") };
    // Webhooks must not see pruned fields, as in kube-apiserver.
    let spec = object["spec"].as_object_mut();
    if let Some((spec, value)) = spec.and_then(|spec| spec.remove(from).map(|value| (spec, value))) {
        spec.insert(into.into(), value);
    }
    object["apiVersion"] = to.into();
    Ok(object)
}

#[test]
fn fields_of_another_version_are_compared_in_that_version() {
    let table = gauges(&[("v1", integers(&["size", "n"])), ("v2", integers(&["length", "n"]))], true);
    let mut writes = Writes { webhook: renamed, ..Writes::to(&table) };
    let first = writes.apply(None, "v1", "a", &json!({"size": 1, "n": 1})).unwrap();
    assert_eq!(writes.calls, 0, "there was no manager before");
    let live = renamed(&first, "example.dev/v2").unwrap();

    let refused = writes.apply(Some(&live), "v2", "b", &json!({"length": 2})).unwrap_err();
    assert_eq!(refused.message(), r#"Apply failed with 1 conflict: conflict with "a": .spec.size"#);

    let shared = writes.apply(Some(&live), "v2", "b", &json!({"length": 1})).unwrap();
    let both =
        [r#"a example.dev/v1: {"f:spec":{"f:n":{},"f:size":{}}}"#, r#"b example.dev/v2: {"f:spec":{"f:length":{}}}"#];
    assert_eq!(owners(&shared), both);

    // An apply in a new version releases the fields that have another name there.
    let live = shared.clone();
    let left = writes.apply(Some(&live), "v2", "a", &json!({})).unwrap();
    assert_eq!(left["spec"], json!({"length": 1}), "b still owns it");
    let live = renamed(&left, "example.dev/v1").unwrap();
    let taken = writes.update(&live, "v1", "u", |new| new["spec"]["size"] = 3.into());
    let after = [r#"a example.dev/v2: {"f:spec":{}}"#, r#"u example.dev/v1: {"f:spec":{"f:size":{}}}"#];
    assert_eq!(owners(&taken), after, "b has lost it under the name that it has there");
}

#[test]
fn a_webhook_that_fails_refuses_what_is_applied_and_leaves_updates_without_owners() {
    let table = gauges(&[("v1", integers(&["size"])), ("v2", integers(&["length"]))], true);
    let first = Writes::to(&table).apply(None, "v1", "a", &json!({"size": 1})).unwrap();
    let live = renamed(&first, "example.dev/v2").unwrap();
    let mut writes = Writes::to(&table);
    let refused = writes.apply(Some(&live), "v2", "b", &json!({"length": 1})).unwrap_err();
    assert_eq!((refused.code(), refused.message()), (500, "there is none"));
    let updated = writes.update(&live, "v2", "u", |new| new["spec"]["length"] = 3.into());
    assert_eq!((owners(&updated).len(), &updated["spec"]), (0, &json!({"length": 3})));
    assert_eq!(writes.calls, 2);
}

#[test]
fn without_a_webhook_versions_have_to_have_the_same_fields() {
    let table = gauges(&[("v1", integers(&["size", "n"])), ("v2", integers(&["size"]))], false);
    let mut writes = Writes::to(&table);
    let first = writes.apply(None, "v1", "a", &json!({"size": 1})).unwrap();
    let refused = writes.apply(Some(&object_at_version(&first, "v2")), "v2", "b", &json!({"size": 2})).unwrap_err();
    assert_eq!(refused.message(), r#"Apply failed with 1 conflict: conflict with "a": .spec.size"#);

    let more = writes.update(&first, "v1", "u", |new| new["spec"]["n"] = 1.into());
    let second = writes.apply(Some(&more), "v1", "b", &json!({"size": 1})).unwrap();
    let mut moved = object_at_version(&second, "v2");
    moved["spec"].as_object_mut().unwrap().remove("n");
    let third = writes.update(&moved, "v2", "w", |new| new["spec"]["size"] = 5.into());
    let after = [r#"u example.dev/v1: {"f:spec":{"f:n":{}}}"#, r#"w example.dev/v2: {"f:spec":{"f:size":{}}}"#];
    assert_eq!(owners(&third), after);

    let wide = gauges(&[("v1", integers(&["size"])), ("v2", integers(&["size", "extra"]))], false);
    let mut live = object_at_version(&first, "v2");
    live["spec"]["extra"] = 1.into();
    let refused = Writes::to(&wide).apply(Some(&live), "v2", "b", &json!({"size": 1})).unwrap_err();
    assert_eq!((refused.code(), refused.message()), (500, ".spec.extra: field not declared in schema"));
    let updated = Writes::to(&wide).update(&live, "v2", "u", |new| new["spec"]["extra"] = 2.into());
    assert_eq!(owners(&updated), [""; 0]);
}

#[test]
fn owners_of_a_removed_version_refuse_an_apply() {
    let table = gauges(&[("v1", integers(&["size"])), ("v2", integers(&["size"]))], false);
    let first = Writes::to(&table).apply(None, "v1", "a", &json!({"size": 1})).unwrap();
    let later = gauges(&[("v2", integers(&["size"]))], false);
    let mut writes = Writes::to(&later);
    let live = object_at_version(&first, "v2");
    let refused = writes.apply(Some(&live), "v2", "b", &json!({"size": 1})).unwrap_err();
    let expected = "request to convert CR to an invalid group/version: example.dev/v1";
    assert_eq!((refused.code(), refused.message()), (500, expected));
    let unchanged = writes.update(&live, "v2", "u", |_| {});
    assert_eq!(owners(&unchanged), [""; 0], "whatever is updated");
}

#[test]
fn newly_atomic_fields_are_owned_as_a_whole() {
    let spec = |list: &str, map: &str| {
        json!({"type": "object", "properties": {
            "list": {"type": "array", "x-kubernetes-list-type": list, "items": {"type": "string"}},
            "map": {"type": "object", "x-kubernetes-map-type": map, "additionalProperties": {"type": "string"}}}})
    };
    let (loose, whole) =
        (gauges(&[("v1", spec("set", "granular"))], false), gauges(&[("v1", spec("atomic", "atomic"))], false));
    let config = json!({"list": ["a"], "map": {"k": "v"}});
    let first = Writes::to(&loose).apply(None, "v1", "a", &config).unwrap();
    assert_eq!(owners(&first), [r#"a example.dev/v1: {"f:spec":{"f:list":{"v:\"a\"":{}},"f:map":{"f:k":{}}}}"#]);
    let mut writes = Writes::to(&whole);
    let second = writes.update(&first, "v1", "u", |_| {});
    assert_eq!(owners(&second), [r#"a example.dev/v1: {"f:spec":{"f:list":{},"f:map":{}}}"#]);
    let refused = writes.apply(Some(&first), "v1", "b", &json!({"map": {"l": "w"}})).unwrap_err();
    assert_eq!(refused.message(), r#"Apply failed with 1 conflict: conflict with "a": .spec.map"#);
    let again = Writes::to(&loose).update(&second, "v1", "u", |_| {});
    assert_eq!(owners(&again), owners(&second), "and stays so");
}

#[test]
fn scales_of_custom_resources_are_not_applied() {
    let names = json!({"plural": "gauges", "singular": "gauge", "kind": "Gauge", "listKind": "GaugeList"});
    let crd = json!({"metadata": {"name": "gauges.example.dev"}, "status": {"acceptedNames": names}, "spec": {
        "group": "example.dev", "scope": "Namespaced", "names": names, "versions": [{"name": "v1", "served": true, "storage": true,
            "subresources": {"scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": integers(&["n"]), "status": integers(&["n"])}}}}]}});
    let table = compile(&crd).unwrap();
    let mut writes = Writes::to(&table);
    let scaled = |live: &Value| {
        let request = ApplyRequest {
            live: Some(live),
            applied: json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x"}, "spec": {"replicas": 2}}),
            manager: "h",
            force: true,
            subresource: Some("scale"),
            now: NOW,
            conversions: &Conversions::default(),
        };
        let kind = table.kind_named("example.dev", "v1", "Gauge").unwrap();
        apply_scale(&table, kind, &request).map(drop).map_err(Status::from)
    };
    let why = "to proper version: request to convert CR to an invalid group/version: autoscaling/v1";
    let unowned = scaled(&Writes::gauge("v1", &json!({"n": 1}))).unwrap_err();
    let tried =
        "failed to create manager for existing fields: failed to convert live object (/; autoscaling/v1, Kind=Scale)";
    assert_eq!((unowned.code(), unowned.message()), (500, format!("{tried} {why}").as_str()));
    let owned = scaled(&writes.apply(None, "v1", "a", &json!({"n": 1})).unwrap()).unwrap_err();
    let tried = "failed to convert new object (/x; autoscaling/v1, Kind=Scale)";
    assert_eq!((owned.code(), owned.message()), (500, format!("{tried} {why}").as_str()));
}
