//! Cost of one request between HTTP and the store: decoding, defaults, field ownership, patches, tables.

use std::hint::black_box;

use divan::{Bencher, counter::ItemsCount};
use jiff::Timestamp;
use portolan_codec::{
    decode::{self, FieldValidation, MediaType},
    protobuf,
};
use portolan_kinds::{Kind, KindTable};
use portolan_merge::{
    apply::{self, ApplyRequest, Conversions, UpdateRequest},
    patch,
};
use portolan_strategy::{
    lifecycle::{self, WriteContext},
    table::{self, IncludeObject},
};
use portolan_types::Seams;
use serde_json::{Value, json};

const NOW: &str = "2026-01-01T00:00:00Z";

fn main() {
    divan::main();
}

fn kind(group: &str, name: &str) -> &'static Kind {
    KindTable::builtin().kind_named(group, "v1", name).expect("it is a kind of Kubernetes")
}

/// A ConfigMap of 1 KiB, as most objects are small.
fn config_map() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "shop"},
        "data": {"text": "x".repeat(1024)}})
}

fn deployment(image: &str) -> Value {
    let labels = json!({"app": "web"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "labels": labels},
        "spec": {"replicas": 3, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "web", "image": image, "ports": [{"containerPort": 80}],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                "readinessProbe": {"httpGet": {"path": "/", "port": 80}}}]}}}})
}

fn decoded(kind: &Kind, object: &Value) -> Value {
    let body = serde_json::to_vec(object).expect("a tree serializes");
    let decoded = decode::decode(KindTable::builtin(), kind, MediaType::Json, &body, FieldValidation::Strict);
    decoded.expect("the object is well formed").object
}

/// All that is done to an object between its body and its bytes.
fn created(kind: &Kind, object: &Value, seams: &Seams) -> Value {
    let table = KindTable::builtin();
    let mut object = decoded(kind, object);
    let conversions = Conversions::default();
    let request = UpdateRequest { old: None, manager: "bench", subresource: None, now: NOW, conversions: &conversions };
    apply::track_update(table, kind, &request, &mut object).expect("built-in kinds are converted by themselves");
    lifecycle::prepare_create(&WriteContext::new(table, seams), kind, object, Some("shop"), None).expect("it is valid")
}

fn applied(live: Option<&Value>, configuration: Value) -> Value {
    let request = ApplyRequest {
        live,
        applied: configuration,
        manager: "bench",
        force: false,
        subresource: None,
        now: NOW,
        conversions: &Conversions::default(),
    };
    apply::apply(KindTable::builtin(), kind("apps", "Deployment"), request).expect("no other manager owns fields")
}

#[divan::bench]
fn create_config_map(bencher: Bencher<'_, '_>) {
    let (kind, object, seams) = (kind("", "ConfigMap"), config_map(), Seams::system());
    bencher.bench(|| created(black_box(kind), black_box(&object), &seams));
}

#[divan::bench]
fn create_deployment(bencher: Bencher<'_, '_>) {
    let (kind, object, seams) = (kind("apps", "Deployment"), deployment("nginx:1.27"), Seams::system());
    bencher.bench(|| created(black_box(kind), black_box(&object), &seams));
}

#[divan::bench]
fn decode_json(bencher: Bencher<'_, '_>) {
    let (kind, object) = (kind("apps", "Deployment"), deployment("nginx:1.27"));
    let body = serde_json::to_vec(&object).expect("a tree serializes");
    bencher.bench(|| {
        decode::decode(KindTable::builtin(), kind, MediaType::Json, black_box(&body), FieldValidation::Strict)
    });
}

#[divan::bench]
fn decode_protobuf(bencher: Bencher<'_, '_>) {
    let (kind, table) = (kind("apps", "Deployment"), KindTable::builtin());
    let object = decoded(kind, &deployment("nginx:1.27"));
    let body = protobuf::encode(&object, kind.schema, table).expect("it is one of Kubernetes' own");
    bencher.bench(|| decode::decode(table, kind, MediaType::Protobuf, black_box(&body), FieldValidation::Strict));
}

#[divan::bench]
fn encode_protobuf(bencher: Bencher<'_, '_>) {
    let (kind, table) = (kind("apps", "Deployment"), KindTable::builtin());
    let object = created(kind, &deployment("nginx:1.27"), &Seams::system());
    bencher.bench(|| protobuf::encode(black_box(&object), kind.schema, table));
}

#[divan::bench]
fn apply_without_a_change(bencher: Bencher<'_, '_>) {
    let live = applied(None, deployment("nginx:1.27"));
    bencher.with_inputs(|| deployment("nginx:1.27")).bench_values(|wanted| applied(Some(black_box(&live)), wanted));
}

#[divan::bench]
fn apply_with_a_change(bencher: Bencher<'_, '_>) {
    let live = applied(None, deployment("nginx:1.27"));
    bencher.with_inputs(|| deployment("nginx:1.28")).bench_values(|wanted| applied(Some(black_box(&live)), wanted));
}

#[divan::bench]
fn strategic_merge_patch(bencher: Bencher<'_, '_>) {
    let kind = kind("apps", "Deployment");
    let object = decoded(kind, &deployment("nginx:1.27"));
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "nginx:1.28"}]}}}});
    bencher.bench(|| patch::strategic_merge(KindTable::builtin(), kind.schema, black_box(&object), black_box(&patch)));
}

#[divan::bench(args = [10, 1000])]
fn table_of_deployments(bencher: Bencher<'_, '_>, count: usize) {
    let kind = kind("apps", "Deployment");
    let object = created(kind, &deployment("nginx:1.27"), &Seams::system());
    let objects = vec![object; count];
    let now: Timestamp = NOW.parse().expect("it is a time");
    bencher
        .counter(ItemsCount::new(count))
        .bench(|| table::table(kind, black_box(&objects).clone(), json!({}), IncludeObject::Metadata, true, now));
}
