//! Cost of admission for a write, and effect of the flood of one tenant on another, without sockets. Only the ratios
//! matter. Run with `cargo bench -p portolan-apiserver --bench admission`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use bytes::Bytes;
use divan::Bencher;
use futures::future::join_all;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::{ApiServer, ApiServerConfig, InProcess, User};
use portolan_types::Seams;
use serde_json::{Value, json};
use tokio::{runtime::Runtime, task::JoinSet};
use tower::ServiceExt as _;

/// Number of concurrent writes.
const AT_ONCE: usize = 32;
const POLICIES: usize = 10;

fn main() {
    divan::main();
}

/// Admission configuration of a namespace.
#[derive(Clone, Copy, Debug)]
enum With {
    Nothing,
    Quota,
    Policies,
}

/// An administrator of a server.
#[derive(Clone)]
struct Client {
    service: InProcess,
    named: Arc<AtomicUsize>,
}

impl Client {
    async fn new() -> Self {
        let config = ApiServerConfig::in_memory(Seams::system());
        let api = ApiServer::new(portolan_store::memory(), config).await.expect("the server starts");
        let groups = vec!["system:masters".to_owned()];
        let service = api.service_as(User { name: "admin".into(), groups, ..User::default() });
        Self { service, named: Arc::default() }
    }

    async fn send(&self, method: &str, path: &str, object: &Value) {
        let request = Request::builder().method(method).uri(format!("/clusters/{path}"));
        let request =
            request.header("content-type", "application/json").body(Full::new(Bytes::from(object.to_string())));
        let answer = self.service.clone().oneshot(request.expect("a request")).await.expect("it cannot fail");
        let (code, body) = (answer.status(), answer.into_body().collect().await.expect("a body").to_bytes());
        assert!(code.is_success(), "{method} {path}: {}", String::from_utf8_lossy(&body));
    }

    async fn create(&self, cluster: &str) {
        let name = format!("m{}", self.named.fetch_add(1, Ordering::Relaxed));
        let map = json!({"metadata": {"name": name}, "data": {"k": "x".repeat(900)}});
        self.send("POST", &format!("{cluster}/api/v1/namespaces/default/configmaps"), &map).await;
    }

    async fn configure(&self, with: With) {
        match with {
            With::Nothing => {}
            With::Quota => {
                let quotas = "root/api/v1/namespaces/default/resourcequotas";
                let hard = json!({"count/configmaps": "1000000000"});
                self.send("POST", quotas, &json!({"metadata": {"name": "q"}, "spec": {"hard": hard}})).await;
                let counted = json!({
                    "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
                    "spec": {"hard": hard}, "status": {"hard": hard, "used": {"count/configmaps": "0"}},
                });
                self.send("PUT", &format!("{quotas}/q/status"), &counted).await;
            }
            With::Policies => {
                for n in 0..POLICIES {
                    self.bind(n).await;
                }
            }
        }
    }

    async fn bind(&self, n: usize) {
        let group = "root/apis/admissionregistration.k8s.io/v1";
        let rules =
            json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]}]);
        let policy = json!({
            "metadata": {"name": format!("p{n}")},
            "spec": {
                "matchConstraints": {"resourceRules": rules},
                "variables": [{"name": "size", "expression": "object.data.map(k, object.data[k].size()).sum()"}],
                "validations": [{"expression": "variables.size < 100000 && object.metadata.name.startsWith('m')"}],
            },
        });
        self.send("POST", &format!("{group}/validatingadmissionpolicies"), &policy).await;
        let binding = json!({"metadata": {"name": format!("b{n}")}, "spec": {"policyName": format!("p{n}"), "validationActions": ["Deny"]}});
        self.send("POST", &format!("{group}/validatingadmissionpolicybindings"), &binding).await;
    }
}

#[divan::bench(args = [With::Nothing, With::Quota, With::Policies], sample_count = 50)]
fn creates(bencher: Bencher, with: With) {
    let runtime = Runtime::new().expect("a runtime starts");
    let client = runtime.block_on(Client::new());
    runtime.block_on(client.configure(with));
    let once = || runtime.block_on(join_all((0..AT_ONCE).map(|_| client.create("root"))));
    bencher.counter(AT_ONCE).bench_local(once);
}

/// Changes that no quota is charged for.
#[divan::bench(args = [With::Nothing, With::Quota], sample_count = 50)]
fn updates(bencher: Bencher, with: With) {
    let runtime = Runtime::new().expect("a runtime starts");
    let client = runtime.block_on(Client::new());
    runtime.block_on(client.configure(with));
    let maps = "root/api/v1/namespaces/default/configmaps";
    let object =
        |n: usize, round: usize| json!({"metadata": {"name": format!("u{n}")}, "data": {"k": round.to_string()}});
    runtime.block_on(join_all((0..AT_ONCE).map(|n| {
        let (client, object) = (client.clone(), object(n, 0));
        async move { client.send("POST", maps, &object).await }
    })));
    let mut round = 0;
    bencher.counter(AT_ONCE).bench_local(|| {
        round += 1;
        runtime.block_on(join_all((0..AT_ONCE).map(|n| {
            let (client, object) = (client.clone(), object(n, round));
            async move { client.send("PUT", &format!("{maps}/u{n}"), &object).await }
        })));
    });
}

/// One write of a tenant, alone or beside a tenant that writes as much as it can from ten times as many workspaces.
#[divan::bench(args = [false, true], sample_count = 50)]
fn a_write_beside_a_flood(bencher: Bencher, flood: bool) {
    let runtime = Runtime::new().expect("a runtime starts");
    let client = runtime.block_on(Client::new());
    let workspaces = |of: &str| format!("{of}/apis/tenancy.kcp.io/v1alpha1/workspaces");
    let make = |of: &'static str, name: String| {
        let client = client.clone();
        async move { client.send("POST", &workspaces(of), &json!({"metadata": {"name": name}})).await }
    };
    runtime.block_on(async {
        make("root", "calm".to_owned()).await;
        make("root", "loud".to_owned()).await;
        for n in 0..10 {
            make("root:loud", format!("w{n}")).await;
        }
    });
    let done = Arc::new(AtomicBool::new(!flood));
    let mut writers = JoinSet::new();
    for n in 0..100 {
        let (client, done) = (client.clone(), done.clone());
        let writing = async move {
            while !done.load(Ordering::Relaxed) {
                client.create(&format!("root:loud:w{}", n % 10)).await;
            }
        };
        writers.spawn_on(writing, runtime.handle());
    }
    bencher.bench_local(|| runtime.block_on(client.create("root:calm")));
    done.store(true, Ordering::Relaxed);
    runtime.block_on(async { while writers.join_next().await.is_some() {} });
}
