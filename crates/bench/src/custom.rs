//! Definitions of custom resources, and objects of them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::load::{LoadOutcome, LoadTarget, Until};
use harness::client::HttpClient;

const GROUP: &str = "bench.example.dev";
/// Clients that make definitions.
const MAKERS: usize = 16;
/// Time in which a definition must be served.
const SERVED: Duration = Duration::from_secs(300);
/// Interval between requests for a definition that is not served yet.
const LOOK: Duration = Duration::from_millis(10);
/// Path of definitions below the root of a logical cluster.
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Fields of each of the groups of fields of a large schema.
const FIELDS: usize = 24;
/// Groups of fields of a large schema.
const GROUPS: usize = 16;

/// Size of a definition's schema.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SchemaSize {
    /// A dozen fields: 1 KiB.
    Small,
    /// Several hundred fields with patterns, bounds, lists by key and rules in CEL: 60 KiB.
    Large,
}

fn plural(number: usize) -> String {
    format!("things{number}")
}

/// Returns the path of a definition's objects in a namespace.
pub(super) fn objects(root: &str, number: usize, namespace: &str) -> String {
    format!("{root}/apis/{GROUP}/v1/namespaces/{namespace}/{}", plural(number))
}

/// Returns the definition with a number. Its text is the same in all logical clusters.
fn definition(number: usize, schema: SchemaSize) -> Value {
    let (plural, kind) = (plural(number), format!("Thing{number}"));
    let spec = match schema {
        SchemaSize::Small => small(),
        SchemaSize::Large => large(),
    };
    let condition = json!({"type": "object", "required": ["type", "status"], "properties":
        {"type": {"type": "string"}, "status": {"type": "string"}, "message": {"type": "string"}}});
    let status = json!({"type": "object", "properties":
        {"ready": {"type": "integer"}, "conditions": {"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"], "items": condition}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}}}]}})
}

fn small() -> Value {
    let text = |max: u32| json!({"type": "string", "maxLength": max});
    json!({"type": "object", "properties": {
        "replicas": {"type": "integer", "minimum": 0, "maximum": 100, "default": 1},
        "image": text(256), "paused": {"type": "boolean"}, "version": text(64),
        "labels": {"type": "object", "additionalProperties": text(63)},
        "ports": {"type": "array", "items": {"type": "object", "properties": {"name": text(15), "port": {"type": "integer"}}}},
    }})
}

fn large() -> Value {
    let group = || {
        let fields = (0..FIELDS).map(|field| {
            let shape = match field % 4 {
                0 => json!({"type": "string", "maxLength": 64, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}),
                1 => json!({"type": "integer", "format": "int64", "minimum": 0, "maximum": 65535}),
                2 => json!({"type": "object", "maxProperties": 16, "additionalProperties":
                    {"type": "string", "maxLength": 64}}),
                _ => json!({"type": "array", "maxItems": 16, "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object", "required": ["name"], "properties":
                        {"name": {"type": "string", "maxLength": 63}, "weight": {"type": "integer", "default": 1}}}}),
            };
            (format!("field{field}"), shape)
        });
        json!({"type": "object", "properties": fields.collect::<Map<_, _>>(), "x-kubernetes-validations": [
            {"rule": "!has(self.field1) || !has(self.field5) || self.field1 <= self.field5",
             "message": "field5 may not be less than field1"},
            {"rule": "!has(self.field3) || self.field3.all(item, item.weight > 0 && item.name.startsWith('n'))"},
            {"rule": "!has(self.field2) || self.field2.all(key, size(self.field2[key]) > 0 && key.matches('^k[0-9]+$'))"},
        ]})
    };
    let groups = (0..GROUPS).map(|number| (format!("group{number}"), group()));
    json!({"type": "object", "properties": groups.collect::<Map<_, _>>(), "x-kubernetes-validations": [
        {"rule": "has(self.group0)", "message": "group0 is wanted"},
        {"rule": "!has(oldSelf.group1) || has(self.group1)", "message": "group1 may not go"},
    ]})
}

/// Returns an object with all fields of its definition. An object of the large definition has 10 KiB.
pub(super) fn object(number: usize, schema: SchemaSize, namespace: &str, name: usize) -> Bytes {
    let spec = match schema {
        SchemaSize::Small => json!({"image": "registry.example.dev/thing:1", "paused": false, "version": "1.2.3",
            "labels": {"app": "thing"}, "ports": [{"name": "web", "port": 80}]}),
        SchemaSize::Large => filled(),
    };
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": format!("Thing{number}"),
        "metadata": {"name": format!("object-{name}"), "namespace": namespace}, "spec": spec})
    .to_string()
    .into()
}

fn filled() -> Value {
    let group = || {
        let fields = (0..FIELDS).step_by(2).chain([1, 3, 5]).map(|field| {
            let value = match field % 4 {
                0 => json!("a-name-of-something"),
                1 => json!(field * 10),
                2 => json!({"k1": "one", "k2": "two"}),
                _ => json!([{"name": "n1"}, {"name": "n2", "weight": 7}]),
            };
            (format!("field{field}"), value)
        });
        Value::Object(fields.collect())
    };
    Value::Object((0..GROUPS).map(|number| (format!("group{number}"), group())).collect())
}

impl LoadTarget {
    /// Creates `each` definitions in each of `clusters` logical clusters. `root` returns the path of a logical cluster.
    /// With `served`, a definition counts as created when its objects can be listed.
    pub(super) async fn define(
        &self,
        clusters: usize,
        each: usize,
        schema: SchemaSize,
        served: bool,
        root: fn(usize) -> String,
    ) -> Result<LoadOutcome> {
        self.load(MAKERS, Until::Count(clusters * each), move |client, number| async move {
            let (root, number) = (root(number / each), number % each);
            let body = definition(number, schema).to_string().into();
            client.send(Method::POST, &format!("{root}{DEFINITIONS}"), body).await?.success()?;
            if served {
                wait(&client, &objects(&root, number, "default")).await.with_context(|| plural(number))
            } else {
                Ok(())
            }
        })
        .await
    }
}

async fn wait(client: &HttpClient, url: &str) -> Result<()> {
    let begun = Instant::now();
    while client.send(Method::GET, url, Bytes::new()).await?.status != StatusCode::OK {
        ensure!(begun.elapsed() < SERVED, "it is not served");
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
