//! Sources of inputs: one object of every kind, as the server returns it, and lines of text.

use serde_json::{Value, json};

use crate::{plane::Plane, target::Input, tree::Parts};

/// An object and where it belongs.
#[derive(Clone)]
pub struct Seed {
    pub collection: String,
    pub object: Value,
}

impl Seed {
    pub fn path(&self) -> String {
        format!("{}/{}", self.collection, self.object["metadata"]["name"].as_str().unwrap_or("x"))
    }
}

/// Objects whose creation may fail: missing objects are not fuzzed.
const MAX_UNMADE: usize = 12;

pub struct Seeds {
    /// One of every kind.
    pub objects: Vec<Seed>,
    /// Those of them that are stored, as they are stored.
    pub stored: Vec<Seed>,
    /// Those of them that can be created, as protobuf, with where.
    pub protobuf: Vec<(String, Vec<u8>)>,
    pub parts: Parts,
    /// All of them as text.
    pub texts: Vec<Vec<u8>>,
    pub yaml: Vec<Vec<u8>>,
    pub json_patches: Vec<Value>,
    pub labels: Vec<Vec<u8>>,
    pub fields: Vec<Vec<u8>>,
    pub paths: Vec<Vec<u8>>,
    /// Continue tokens.
    pub tokens: Vec<Vec<u8>>,
    /// The collection of ConfigMaps.
    pub maps: String,
}

fn lines(text: &str) -> Vec<Vec<u8>> {
    text.lines().map(|line| line.as_bytes().to_vec()).collect()
}

/// Objects of the tests of validation that are taken: those behind are more of the same kinds, many of which no client
/// can create.
const BASES: usize = 128;

/// The objects that tests of validation begin with.
fn bases() -> Vec<Seed> {
    let text = include_str!("../../../../strategy/testdata/bases.jsonl");
    let rows = text.lines().take(BASES);
    let mut seeds: Vec<Seed> = rows.map(|line| seed(&serde_json::from_str(line).unwrap())).collect();
    let review = json!({"resource": "selfsubjectaccessreviews", "object": {"apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview", "metadata": {}, "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}});
    let token = json!({"resource": "tokenreviews", "object": {"apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview", "metadata": {}, "spec": {"token": "a.b.c", "audiences": ["x"]}}});
    let policy = json!({"resource": "physicalclusters", "object": {"apiVersion": "portolan.dev/v1alpha1",
        "kind": "PhysicalCluster", "metadata": {"name": "x"}, "spec": {"connection": {"simulated": {}}}}});
    seeds.extend([review, token, policy].iter().map(seed));
    seeds
}

fn seed(row: &Value) -> Seed {
    let mut object = row["object"].clone();
    let version = object["apiVersion"].as_str().unwrap_or("v1");
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let resource = row["resource"].as_str().unwrap();
    let inside = if object["metadata"]["namespace"].is_string() { "/namespaces/ns" } else { "" };
    let collection = format!("{root}{inside}/{resource}");
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    Seed { collection, object }
}

impl Seeds {
    pub fn summary(&self) -> String {
        let [all, stored, protobuf] = [self.objects.len(), self.stored.len(), self.protobuf.len()];
        format!("{all} kinds of objects, {stored} of them stored, {protobuf} in protobuf")
    }

    pub async fn new(plane: &Plane) -> Self {
        let json = |object: &Value| serde_json::to_vec(object).unwrap();
        plane.create("/api/v1/namespaces", json(&json!({"metadata": {"name": "ns"}}))).await;
        // No controllers run here, and pods need a service account that exists.
        for name in ["default", "sa"] {
            plane.create("/api/v1/namespaces/ns/serviceaccounts", json(&json!({"metadata": {"name": name}}))).await;
        }
        let mut objects = bases();
        let (mut stored, mut protobuf, mut unmade) = (Vec::new(), Vec::new(), Vec::new());
        for (at, seed) in objects.iter_mut().enumerate() {
            let mut answer = plane.create(&seed.collection, json(&seed.object)).await;
            if answer.code == 409 {
                seed.object["metadata"]["name"] = format!("x{at}").into();
                answer = plane.create(&seed.collection, json(&seed.object)).await;
            }
            if answer.code == 201 && answer.json()["metadata"]["uid"].is_string() {
                stored.push(Seed { object: answer.json(), ..seed.clone() });
            } else {
                unmade.push(format!("{}: {}", seed.collection, String::from_utf8_lossy(&answer.body)));
            }
            // From now on it is another one.
            seed.object["metadata"]["name"] = "y".into();
            let body = json(&seed.object);
            if let Some(encoded) = plane.as_protobuf(&seed.collection, body).await {
                protobuf.push((seed.collection.clone(), encoded));
            }
        }
        let maps = "/api/v1/namespaces/ns/configmaps".to_owned();
        for name in ["one", "two", "three"] {
            plane
                .create(&maps, json(&json!({"metadata": {"name": name, "labels": {"a": "b"}}, "data": {"k": "v"}})))
                .await;
        }
        let first = plane.send(&Input::get(format!("{maps}?limit=1"))).await.json();
        let token = first["metadata"]["continue"].as_str().unwrap().as_bytes().to_vec();
        // Reviews are not stored, and some objects of the tests are only good for an update or a status.
        assert!(unmade.len() <= MAX_UNMADE, "{} of {}:\n{}", unmade.len(), objects.len(), unmade.join("\n"));
        let trees: Vec<Value> = objects.iter().map(|seed| seed.object.clone()).collect();
        Self {
            parts: Parts::of(&trees),
            texts: trees.iter().map(json).collect(),
            objects,
            stored,
            protobuf,
            yaml: include_str!("yaml.txt").split("=====\n").map(|text| text.as_bytes().to_vec()).collect(),
            json_patches: include_str!("json-patches.txt").lines().map(|l| serde_json::from_str(l).unwrap()).collect(),
            labels: lines(include_str!("labels.txt")),
            fields: lines(include_str!("fields.txt")),
            paths: lines(include_str!("paths.txt")),
            tokens: vec![token],
            maps,
        }
    }
}
