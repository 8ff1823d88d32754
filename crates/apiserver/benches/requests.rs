//! Cost of requests, without sockets. Run with `cargo bench -p portolan-apiserver`.

use bytes::Bytes;
use divan::Bencher;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::{ApiServer, ApiServerConfig, InProcess, User, attributes::Attributes};
use portolan_store::{DynStore, Engine, Expect, StoreConfig, Transaction, open};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Seams};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

const OBJECTS: usize = 6_000;

fn main() {
    divan::main();
}

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.into(), groups: groups.iter().map(|group| (*group).to_owned()).collect(), ..User::default() }
}

async fn put(store: &DynStore, resource: GroupResource, object: &Value) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).expect("objects here have names");
    let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
    let parsed = (namespace.parse().expect("a namespace"), name.parse().expect("a name"));
    let key = ObjectKey::namespaced(LogicalClusterId::ROOT, resource, parsed.0, parsed.1);
    let txn = Transaction::one(key, Expect::Absent, Some(Record::of(object)));
    store.commit(txn).await.expect("the store takes it");
}

/// A server with 6,000 ConfigMaps of 1 KiB, and its administrator.
fn filled(runtime: &Runtime, engine: Engine) -> (InProcess, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = StoreConfig { cache_bytes: 64 << 20, ..StoreConfig::new(engine, Some(dir.path().join("data"))) };
    let store = open(config, Seams::system()).expect("a new store opens");
    let api = runtime.block_on(async {
        let api = ApiServer::new(store.clone(), ApiServerConfig::in_memory(Seams::system())).await;
        for n in 0..OBJECTS {
            let metadata = json!({"name": format!("m{n}"), "namespace": "default"});
            let object =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "x".repeat(900)}});
            put(&store, GroupResource::new("", "configmaps"), &object).await;
        }
        api.expect("the server starts")
    });
    (api.service_as(user("admin", &["system:masters"])), dir)
}

#[divan::bench(args = [Engine::Memory, Engine::Redb])]
fn list_of_6000(bencher: Bencher, engine: Engine) {
    let runtime = Runtime::new().expect("a runtime starts");
    let (service, _dir) = filled(&runtime, engine);
    bencher.bench_local(|| {
        runtime.block_on(async {
            let request = Request::get("/clusters/root/api/v1/namespaces/default/configmaps");
            let request = request.body(Full::new(Bytes::new())).expect("a request");
            let answer = service.clone().oneshot(request).await.expect("it cannot fail");
            let mut body = answer.into_body();
            let mut bytes = 0;
            while let Some(frame) = body.frame().await {
                bytes += frame.expect("a whole list").into_data().map_or(0, |data| data.len());
            }
            assert!(bytes > OBJECTS * 900);
        });
    });
}

/// Of somebody who is bound in one namespace, so that all bindings have to be looked at.
#[divan::bench]
fn authorize(bencher: Bencher) {
    let runtime = Runtime::new().expect("a runtime starts");
    let store = portolan_store::memory();
    let binding = json!({
        "metadata": {"name": "b", "namespace": "shop"},
        "subjects": [{"kind": "User", "name": "ann"}],
        "roleRef": {"kind": "ClusterRole", "name": "admin"},
    });
    let resource = GroupResource::new("rbac.authorization.k8s.io", "rolebindings");
    let api = runtime.block_on(async {
        put(&store, resource, &binding).await;
        ApiServer::new(store.clone(), ApiServerConfig::in_memory(Seams::system())).await.expect("the server starts")
    });
    // The server's own authorizer keeps roles only while it follows them: give it the time to begin.
    runtime.block_on(async { tokio::time::sleep(std::time::Duration::from_millis(50)).await });
    let ann = user("ann", &["dev", "system:authenticated"]);
    let asked = Attributes {
        verb: "delete".into(),
        group: "apps".into(),
        resource: "deployments".into(),
        namespace: "shop".into(),
        ..Attributes::default()
    };
    bencher.bench_local(|| {
        let verdict = runtime.block_on(api.authorizer().authorize(LogicalClusterId::ROOT, &ann, &asked));
        assert!(verdict.expect("it is decided").is_allowed());
    });
}
