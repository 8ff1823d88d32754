//! Cost of one decision for a user with many bindings, and of a review of the workspaces that a user may enter, without
//! sockets. Run with `cargo bench -p portolan-apiserver --bench authorization`.

use std::sync::Arc;

use bytes::Bytes;
use divan::{Bencher, black_box};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::{ApiServer, ApiServerConfig, User, attributes::Attributes};
use portolan_types::{LogicalClusterId, Seams};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// Workspaces of the review, and those of them that the user may enter.
const WORKSPACES: (usize, usize) = (10_000, 100);

fn main() {
    divan::main();
}

async fn server() -> Arc<ApiServer> {
    let config = ApiServerConfig::in_memory(Seams::system());
    ApiServer::new(portolan_store::memory(), config).await.expect("the server starts")
}

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.into(), groups: groups.iter().map(|group| (*group).to_owned()).collect(), ..User::default() }
}

async fn post(api: &Arc<ApiServer>, user: User, path: &str, object: &Value) -> Value {
    let request = Request::post(format!("/clusters/{path}")).header("content-type", "application/json");
    let request = request.body(Full::new(Bytes::from(object.to_string()))).expect("a request");
    let answer = api.service_as(user).oneshot(request).await.expect("it cannot fail");
    let (code, body) = (answer.status(), answer.into_body().collect().await.expect("a body").to_bytes());
    assert!(code.is_success(), "{path}: {}", String::from_utf8_lossy(&body));
    serde_json::from_slice(&body).expect("JSON")
}

async fn bind(api: &Arc<ApiServer>, at: &str, name: &str) {
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": name},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "ann"}],
        "roleRef": {"kind": "ClusterRole", "apiGroup": group, "name": "view"},
    });
    post(api, user("admin", &["system:masters"]), &format!("{at}{RBAC}/clusterrolebindings"), &binding).await;
}

/// A decision on a verb that none of the bindings grants, so that all are evaluated.
#[divan::bench(args = [1, 10, 100])]
fn denial(bencher: Bencher<'_, '_>, bindings: usize) {
    decide(bencher, bindings, "delete");
}

/// A decision on a verb that a binding grants.
#[divan::bench(args = [1, 10, 100])]
fn permission(bencher: Bencher<'_, '_>, bindings: usize) {
    decide(bencher, bindings, "get");
}

fn decide(bencher: Bencher<'_, '_>, bindings: usize, verb: &str) {
    let runtime = Runtime::new().expect("a runtime");
    let api = runtime.block_on(async {
        let api = server().await;
        for number in 0..bindings {
            bind(&api, "root", &format!("ann-{number}")).await;
        }
        api
    });
    let ann = user("ann", &["dev", "system:authenticated"]);
    let asked = Attributes {
        verb: verb.into(),
        version: "v1".into(),
        resource: "pods".into(),
        namespace: "default".into(),
        name: "web".into(),
        ..Attributes::default()
    };
    bencher.bench_local(|| {
        let decision = api.authorizer().authorize(LogicalClusterId::ROOT, black_box(&ann), black_box(&asked));
        runtime.block_on(decision).expect("a decision")
    });
}

/// All workspaces that a user may enter: 100 of 10 000.
#[divan::bench(sample_count = 50)]
fn review(bencher: Bencher<'_, '_>) {
    let runtime = Runtime::new().expect("a runtime");
    let api = runtime.block_on(async {
        let api = server().await;
        for number in 0..WORKSPACES.0 {
            let workspace = json!({"metadata": {"name": format!("w{number}")}});
            let path = "root/apis/tenancy.kcp.io/v1alpha1/workspaces";
            post(&api, user("owner", &["system:masters"]), path, &workspace).await;
            if number % (WORKSPACES.0 / WORKSPACES.1) == 0 {
                bind(&api, &format!("root:w{number}"), "ann").await;
            }
        }
        api
    });
    let ask = || async {
        let path = "root/apis/portolan.dev/v1alpha1/selfclusteraccessreviews";
        post(&api, user("ann", &["system:authenticated"]), path, &json!({})).await
    };
    // The index is read again after the last write.
    runtime.block_on(async {
        loop {
            let found = ask().await["status"]["clusters"].as_array().map(Vec::len);
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            if found == Some(WORKSPACES.1 + 1) {
                break;
            }
        }
    });
    bencher.bench_local(|| runtime.block_on(ask()));
}
