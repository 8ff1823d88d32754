use std::collections::{BTreeMap, BTreeSet};

use portolan_types::GroupVersion;
use serde_json::{Value, json};

use super::*;
use crate::custom;
use crate::{Field, FieldKind, Kind, KindTable, Scalar, TableBuilder, Type};

/// Schemas and paths of real documents without their texts (`e2e/codegen/kindtable -openapi`).
const GOLDEN: &str = include_str!("../../testdata/openapi.jsonl");

/// Definitions of custom resources with the documents that Kubernetes' builder makes of each
/// (`e2e/codegen/kindtable -custom`), without descriptions. For version 2 only the added parts.
const DEFINITIONS: &str = include_str!("../../testdata/definitions.jsonl");
const CUSTOM: &str = include_str!("../../testdata/custom_openapi.jsonl");

fn builtin() -> Vec<(&'static KindTable, &'static Kind)> {
    let table = KindTable::builtin();
    table.kinds().map(|kind| (table, &**kind)).collect()
}

fn built(version: &str) -> Value {
    document(&version.parse().unwrap(), &builtin(), &NoTexts)
}

/// Returns all documents by their names in the index.
fn all() -> BTreeMap<String, Value> {
    let versions: BTreeSet<GroupVersion> = builtin().iter().map(|(_, kind)| kind.group_version()).collect();
    let groups: BTreeSet<&str> = versions.iter().map(|version| &*version.group).collect();
    let of_versions = versions.iter().map(|version| (name(version), document(version, &builtin(), &NoTexts)));
    of_versions.chain(around(groups, &NoTexts)).collect()
}

/// Removes the parts that only a real server, or only this one, has; the test that compares names each.
fn comparable(schema: &mut Value, theirs: &Value) {
    match schema {
        Value::Object(entries) => {
            entries.retain(|key, value| !(key == "enum" && value.is_array()));
            for (key, value) in entries {
                comparable(value, theirs.get(key).unwrap_or(&Value::Null));
            }
        }
        Value::Array(list) => {
            list.iter_mut().enumerate().for_each(|(at, value)| {
                comparable(value, theirs.get(at).unwrap_or(&Value::Null));
            });
            if list.iter().all(Value::is_string) {
                list.sort_by(|a, b| a.as_str().cmp(&b.as_str())); // required
            }
        }
        _ => {}
    }
}

/// The golden documents have no enums: they are published with that feature off.
#[test]
fn schemas_and_paths_are_those_of_a_real_server() {
    let documents = all();
    for line in GOLDEN.lines() {
        let golden: Value = serde_json::from_str(line).unwrap();
        let document = golden["document"].as_str().unwrap().replace("__", "/");
        let ours = documents.get(&document).unwrap_or_else(|| panic!("there is no {document}"));
        for (name, theirs) in golden["schemas"].as_object().unwrap() {
            let mut ours = ours["components"]["schemas"][name].clone();
            let mut expected = theirs.clone();
            comparable(&mut ours, theirs);
            comparable(&mut expected, theirs);
            assert_eq!(ours, expected, "{document} {name}");
        }
        let (mut paths, mut wrong) = (ours["paths"].clone(), Vec::new());
        without_texts(&mut paths);
        differences(&document, &paths, &golden["paths"], &mut wrong);
        assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    }
}

#[test]
fn every_reference_has_a_schema() {
    for (document, value) in all() {
        let mut named = BTreeSet::new();
        references(&value, &mut named);
        for name in named {
            assert!(value["components"]["schemas"].get(&name).is_some(), "{document} {name}");
            assert!(!name.contains('/'), "{name}");
        }
    }
}

fn references(value: &Value, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(entries) => {
            if let Some(Value::String(target)) = entries.get("$ref") {
                out.insert(target.trim_start_matches("#/components/schemas/").to_owned());
            }
            entries.values().for_each(|value| references(value, out));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, out)),
        _ => {}
    }
}

/// Returns the kinds of a definition whose names are free.
fn defined(definition: &str) -> KindTable {
    let mut crd: Value = serde_json::from_str(definition).unwrap();
    // The decoder drops it, since Go leaves it out.
    without_false(&mut crd, "nullable");
    crd["status"] = custom::settled(&crd, &custom::TakenNames::default(), "2026-01-01T00:00:00Z").unwrap();
    custom::compile(&crd).unwrap()
}

/// Drops every field of this name that is `false`.
fn without_false(value: &mut Value, name: &str) {
    match value {
        Value::Object(entries) => {
            entries.retain(|key, value| !(key == name && *value == json!(false)));
            entries.values_mut().for_each(|value| without_false(value, name));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| without_false(value, name)),
        _ => {}
    }
}

fn without_texts(value: &mut Value) {
    match value {
        Value::Object(entries) => {
            entries.retain(|key, value| !(key == "description" && value.is_string()));
            entries.values_mut().for_each(without_texts);
        }
        Value::Array(list) => list.iter_mut().for_each(without_texts),
        _ => {}
    }
}

/// Places at which two trees differ.
fn differences(at: &str, ours: &Value, theirs: &Value, out: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(own), Value::Object(other)) => {
            let names: BTreeSet<&String> = own.keys().chain(other.keys()).collect();
            for name in names {
                differences(&format!("{at}/{name}"), &ours[name], &theirs[name], out);
            }
        }
        (Value::Array(own), Value::Array(other)) if own.len() == other.len() => {
            let pairs = own.iter().zip(other).enumerate();
            pairs.for_each(|(index, (ours, theirs))| differences(&format!("{at}/{index}"), ours, theirs, out));
        }
        _ if ours == theirs => {}
        _ => out.push(format!("{at}\n  ours:   {ours}\n  theirs: {theirs}")),
    }
}

#[test]
fn documents_of_definitions_are_those_of_a_real_server() {
    let mut wrong = Vec::new();
    for (definition, golden) in DEFINITIONS.lines().zip(CUSTOM.lines()) {
        let golden: Value = serde_json::from_str(golden).unwrap();
        let table = defined(definition);
        let kinds: Vec<(&KindTable, &Kind)> = table.kinds().map(|kind| (&table, &**kind)).collect();
        let mut v3 = document(&kinds[0].1.group_version(), &kinds, &NoTexts);
        without_texts(&mut v3);
        differences("v3", &v3, &golden["v3"], &mut wrong);
        let mut v2 = swagger([&v3]);
        let definitions = v2["definitions"].as_object_mut().unwrap();
        definitions.retain(|name, _| !name.starts_with("io.k8s."));
        for part in ["paths", "definitions"] {
            differences(&format!("v2/{part}"), &v2[part], &golden["v2"][part], &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
}

/// This is where kubectl looks before it decides who checks the fields.
#[test]
fn patches_name_their_kind_and_field_validation() {
    let document = built("apps/v1");
    let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-action"], "patch");
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "apps", "version": "v1", "kind": "Deployment"})
    );
    let names: Vec<_> =
        patch["parameters"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_some());
}

#[test]
fn operations_have_the_ids_of_a_real_server() {
    for (version, path, method, id) in [
        ("v1", "/api/v1/namespaces/{namespace}/pods", "get", "listCoreV1NamespacedPod"),
        ("v1", "/api/v1/pods", "get", "listCoreV1PodForAllNamespaces"),
        ("v1", "/api/v1/namespaces/{namespace}/pods", "delete", "deleteCoreV1CollectionNamespacedPod"),
        ("v1", "/api/v1/namespaces/{name}/finalize", "put", "replaceCoreV1NamespaceFinalize"),
        ("v1", "/api/v1/namespaces/{namespace}/pods/{name}/eviction", "post", "createCoreV1NamespacedPodEviction"),
        ("v1", "/api/v1/namespaces/{namespace}/pods/{name}/exec", "post", "connectCoreV1PostNamespacedPodExec"),
        (
            "rbac.authorization.k8s.io/v1",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}",
            "put",
            "replaceRbacAuthorizationV1ClusterRole",
        ),
    ] {
        let document = built(version);
        let operation = &document["paths"][path][method];
        assert_eq!(operation["operationId"].as_str().unwrap(), id, "{path}");
    }
}

#[test]
fn texts_come_from_outside() {
    struct TwoTexts;
    impl Texts for TwoTexts {
        fn text(&self, type_name: &str, field: Option<&str>) -> Option<&str> {
            match (type_name, field) {
                ("io.k8s.api.core.v1.ConfigMap", None) => Some("What a ConfigMap is."),
                ("io.k8s.api.core.v1.ConfigMap", Some("data")) => Some("What data is."),
                _ => None,
            }
        }
    }
    let document = document(&GroupVersion::new("", "v1"), &builtin(), &TwoTexts);
    let schema = &document["components"]["schemas"]["io.k8s.api.core.v1.ConfigMap"];
    assert_eq!(schema["description"], "What a ConfigMap is.");
    assert_eq!(schema["properties"]["data"]["description"], "What data is.");
    assert!(schema["properties"]["binaryData"].get("description").is_none());
}

#[test]
fn the_index_names_each_document_with_its_hash() {
    let (core, apps) = (name(&GroupVersion::new("", "v1")), name(&GroupVersion::new("apps", "v1")));
    assert_eq!(
        index([(&*core, "A"), (&*apps, "B"), ("version", "C")]),
        json!({"paths": {
            "api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=A"},
            "apis/apps/v1": {"serverRelativeURL": "/openapi/v3/apis/apps/v1?hash=B"},
            "version": {"serverRelativeURL": "/openapi/v3/version?hash=C"},
        }})
    );
    assert_eq!(hash(b"").len(), 64);
    assert_ne!(hash(b"a"), hash(b"b"));
}

#[test]
fn kinds_made_at_run_time_are_published_alike() {
    let mut builder = TableBuilder::over(KindTable::builtin());
    let meta = builder.type_named("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap();
    let published = json!({"type": "object", "properties": {"size": {"type": "integer", "maximum": 3}}});
    let spec = Type { published: Some(published.to_string().into()), ..Type::new("dev.example.v1.WidgetSpec", []) };
    let spec = builder.add_type(spec).unwrap();
    let fields = [
        Field::new("metadata", FieldKind::Message(meta)),
        Field::new("spec", FieldKind::Message(spec)),
        Field::new("kind", FieldKind::Scalar(Scalar::String)),
    ];
    let schema = builder.add_type(Type::new("dev.example.v1.Widget", fields)).unwrap();
    let pod = KindTable::builtin().resource("", "v1", "pods").unwrap();
    let version = GroupVersion::new("example.dev", "v1");
    let kind = Kind { gvk: version.kind("Widget"), schema, resource: "widgets".into(), ..Kind::clone(pod) };
    builder.add_kind(kind);
    let table = builder.finish();
    let kind = table.resource("example.dev", "v1", "widgets").unwrap();
    let document = document(&version, &[(&table, kind)], &NoTexts);
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["dev.example.v1.WidgetSpec"], published);
    assert_eq!(
        schemas["dev.example.v1.Widget"]["x-kubernetes-group-version-kind"],
        json!([{"group": "example.dev", "version": "v1", "kind": "Widget"}])
    );
    assert!(schemas.get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").is_some());
    let patch = &document["paths"]["/apis/example.dev/v1/namespaces/{namespace}/widgets/{name}"]["patch"];
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_none());
    assert!(patch["responses"]["200"]["content"].get("application/vnd.kubernetes.protobuf").is_none());
}

/// One definition for each schema, no dangling reference, and no kind with two definitions: Argo CD rejects each of
/// these.
#[test]
fn the_v2_document_is_whole() {
    let swagger = swagger(all().values());
    let definitions = swagger["definitions"].as_object().unwrap();
    let text = swagger.to_string();
    for reference in text.split(r##""$ref":"#/"##).skip(1) {
        let name = reference.split('"').next().unwrap().strip_prefix("definitions/").expect(reference);
        assert!(definitions.contains_key(name), "{name} is not defined");
    }
    for (name, schema) in definitions {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array().cloned().unwrap_or_default();
        let distinct: BTreeSet<String> = kinds.iter().map(Value::to_string).collect();
        assert_eq!(kinds.len(), distinct.len(), "{name}");
        assert!(schema.get("oneOf").is_none() && schema.get("default").is_none(), "{name}");
    }
    let deployment = &definitions["io.k8s.api.apps.v1.Deployment"];
    assert_eq!(
        deployment["properties"]["spec"]["$ref"].as_str(),
        Some("#/definitions/io.k8s.api.apps.v1.DeploymentSpec"),
        "{deployment}"
    );
    let create = &swagger["paths"]["/api/v1/namespaces/{namespace}/configmaps"]["post"];
    assert_eq!(create["parameters"][0]["in"], "body");
    assert_eq!(create["responses"]["200"]["schema"]["$ref"], "#/definitions/io.k8s.api.core.v1.ConfigMap");
}

/// Matches `api/openapi-spec/swagger.json` of Kubernetes 1.36.3.
#[test]
fn the_v2_document_has_the_paths_outside_of_versions() {
    let swagger = swagger(all().values());
    let forms = json!(["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"]);
    let (json, none) = (json!(["application/json"]), Value::Null);
    for (path, id, consumes, produces) in [
        ("/api/", "getCoreAPIVersions", &forms, &forms),
        ("/apis/", "getAPIVersions", &forms, &forms),
        ("/apis/apps/", "getAppsAPIGroup", &forms, &forms),
        ("/version/", "getCodeVersion", &json, &json),
        ("/.well-known/openid-configuration/", "getServiceAccountIssuerOpenIDConfiguration", &none, &json),
        ("/openid/v1/jwks/", "getServiceAccountIssuerOpenIDKeyset", &none, &json!(["application/jwk-set+json"])),
    ] {
        let get = &swagger["paths"][path]["get"];
        assert_eq!(
            (&get["operationId"], &get["consumes"], &get["produces"]),
            (&json!(id), consumes, produces),
            "{path}"
        );
    }
    for (kind, versions) in [("DeleteOptions", 60), ("WatchEvent", 60), ("APIGroup", 1)] {
        let schema = &swagger["definitions"][format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}")];
        let named = schema["x-kubernetes-group-version-kind"].as_array().unwrap();
        let is_theirs = |gvk: &&Value| {
            let group = gvk["group"].as_str().unwrap();
            !group.ends_with("portolan.dev") && !group.ends_with("kcp.io")
        };
        assert_eq!(named.iter().filter(is_theirs).count(), versions, "{kind}");
    }
}

#[test]
fn the_v2_document_as_a_message() {
    let parameter = json!({"in": "path", "name": "n", "required": true, "type": "string", "uniqueItems": true});
    let swagger = json!({
        "swagger": "2.0", "paths": {"/": {"parameters": [parameter]}},
        "definitions": {"a": {"type": "object", "x-b": {"c": 1}}},
    });
    let part = |at: &[u8], content: &[u8]| [at, &[content.len() as u8], content].concat();
    let own = [&[8, 1][..], &part(&[18], b"path"), &part(&[34], b"n"), &part(&[42], b"string"), &[0x98, 1, 1]].concat();
    let item = part(&[74], &part(&[10], &part(&[18], &part(&[34], &own))));
    let paths = part(&[66], &part(&[18], &[part(&[10], b"/"), part(&[18], &item)].concat()));
    let extension = part(&[0xfa, 1], &[part(&[10], b"x-b"), part(&[18], &part(&[18], br#"{"c":1}"#))].concat());
    let schema = [part(&[0xb2, 1], &part(&[10], b"object")), extension].concat();
    let definitions = part(&[74], &part(&[10], &[part(&[10], b"a"), part(&[18], &schema)].concat()));
    assert_eq!(swagger_protobuf(&swagger), [part(&[10], b"2.0"), paths, definitions].concat());
}
