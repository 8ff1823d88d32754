//! Identities that hold in one workspace only, in checks of another one.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::User;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::world::{V2, WIDGETS, World, binding, user, widget};

const ROLES: &str = "apis/rbac.authorization.k8s.io/v1/clusterroles";
const ROBOT: &str = "system:serviceaccount:default:robot";

fn anything() -> Value {
    json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})
}

fn role(resource: &str) -> Value {
    let rule = json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
    json!({"metadata": {"name": format!("get-{resource}")}, "rules": [rule]})
}

impl World {
    /// Sends a request as `asker`, who impersonates `wanted`.
    async fn impersonate(&self, asker: &User, wanted: &str, uri: &str, object: Value) -> (u16, Value) {
        let request = Request::builder().method("POST").uri(uri).header("content-type", "application/json");
        let request = request.header("impersonate-user", wanted).body(Full::new(Bytes::from(object.to_string())));
        let answer = self.api().service_as(asker.clone()).oneshot(request.unwrap()).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// Sends a request as a service account of a workspace.
    async fn as_robot(&self, workspace: &str, method: &str, uri: &str, object: Value) -> (u16, Value) {
        let robot = User { groups: vec!["system:serviceaccounts".into()], ..user(ROBOT) };
        let home = self.id(workspace).await.parse().unwrap();
        let request = Request::builder().method(method).uri(uri).header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from(object.to_string()))).unwrap();
        let answer = self.api().service_in(robot, home).oneshot(request).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }
}

#[tokio::test(start_paused = true)]
async fn impersonation_in_a_workspace_gives_no_right_to_an_export_of_another() {
    let world = World::exporting().await;
    world.allow("one", "ann", anything()).await;
    world.allow("one", "boss", anything()).await;
    world.allow("provider", "boss", anything()).await;
    let uri = format!("/clusters/root:one/{V2}/apibindings");
    let (code, answer) = world.impersonate(&user("ann"), "boss", &uri, binding("widgets", json!([]))).await;
    assert_eq!(code, 403, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("no permission to bind to export"), "{answer}");
    let (code, answer) = world.send_as(&user("boss"), "POST", &uri, binding("widgets", json!([]))).await;
    assert_eq!(code, 201, "the user itself may: {answer}");
}

#[tokio::test(start_paused = true)]
async fn impersonation_in_a_workspace_passes_no_maximal_permission_policy() {
    let world = World::exporting().await;
    world.bind("one", json!([])).await;
    world.allow("one", "ann", anything()).await;
    world.allow("one", "boss", anything()).await;
    let policy = json!({"spec": {"maximalPermissionPolicy": {"local": {}}}});
    world.merge("root:provider", &format!("{V2}/apiexports/widgets"), policy).await;
    let rule = json!({"apiGroups": ["example.dev"], "resources": ["widgets"], "verbs": ["create"]});
    world.allow("provider", "apis.kcp.io:binding:boss", rule).await;
    let uri = format!("/clusters/root:one/{WIDGETS}");
    let (code, answer) = world.impersonate(&user("ann"), "boss", &uri, widget("a", 1)).await;
    assert_eq!(code, 403, "{answer}");
    assert_eq!(world.send_as(&user("boss"), "POST", &uri, widget("a", 1)).await.0, 201, "the user itself may");
}

#[tokio::test(start_paused = true)]
async fn impersonation_in_a_workspace_gives_no_right_to_a_type_of_another() {
    let world = World::new().await;
    let kind = json!({"metadata": {"name": "team"}, "spec": {}});
    world.post("root:provider", "apis/tenancy.kcp.io/v1alpha1/workspacetypes", kind).await;
    world.allow("one", "ann", anything()).await;
    world.allow("one", "boss", anything()).await;
    let rule = json!({"apiGroups": ["tenancy.kcp.io"], "resources": ["workspacetypes"], "verbs": ["use"]});
    world.allow("provider", "boss", rule).await;
    let uri = "/clusters/root:one/apis/tenancy.kcp.io/v1alpha1/workspaces";
    let child = json!({"metadata": {"name": "child"}, "spec": {"type": {"name": "team", "path": "root:provider"}}});
    let (code, answer) = world.impersonate(&user("ann"), "boss", uri, child.clone()).await;
    assert_eq!(code, 403, "{answer}");
    let (code, answer) = world.send_as(&user("boss"), "POST", uri, child).await;
    assert_eq!(code, 201, "the user itself may: {answer}");
}

#[tokio::test(start_paused = true)]
async fn a_service_account_of_the_provider_has_no_rights_of_its_namesake_in_the_consumer() {
    let world = World::exporting().await;
    let group = "rbac.authorization.k8s.io";
    let claims = json!([{"group": group, "resource": "clusterroles", "verbs": ["*"]}]);
    let patch = json!({"spec": {"permissionClaims": claims}});
    world.merge("root:provider", &format!("{V2}/apiexports/widgets"), patch).await;
    let selector = json!({"matchAll": true});
    let accepted = json!([{
        "group": group, "resource": "clusterroles", "verbs": ["*"], "selector": selector, "state": "Accepted",
    }]);
    world.bind("one", accepted).await;
    world.allow("one", ROBOT, anything()).await;
    let content = json!({"apiGroups": ["apis.kcp.io"], "resources": ["apiexports/content"], "verbs": ["*"]});
    world.allow("provider", ROBOT, content).await;
    let (provider, one) = (world.id("provider").await, world.id("one").await);
    let uri = format!("/services/apiexport/{provider}/widgets/clusters/{one}/{ROLES}");
    let (code, answer) = world.as_robot("provider", "POST", &uri, role("secrets")).await;
    assert_eq!(code, 403, "{answer}");
    let stranger = format!("system:kcp:serviceaccount:{provider}:default:robot");
    assert!(answer["message"].as_str().unwrap().contains(&stranger), "{answer}");
    // The consumer can give the stranger the permission to pass on.
    let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    world.allow("one", &stranger, pods).await;
    let (code, answer) = world.as_robot("provider", "POST", &uri, role("pods")).await;
    assert_eq!(code, 201, "{answer}");
    let (code, _) = world.as_robot("one", "POST", &format!("/clusters/{one}/{ROLES}"), role("secrets")).await;
    assert_eq!(code, 201, "the namesake itself may");
}

#[tokio::test(start_paused = true)]
async fn a_service_account_that_writes_through_a_view_is_one_stranger_elsewhere() {
    let world = World::exporting().await;
    let claims = json!([{"group": "tenancy.kcp.io", "resource": "workspaces", "verbs": ["*"]}]);
    let patch = json!({"spec": {"permissionClaims": claims}});
    world.merge("root:provider", &format!("{V2}/apiexports/widgets"), patch).await;
    let accepted = json!([{
        "group": "tenancy.kcp.io", "resource": "workspaces", "verbs": ["*"], "selector": {"matchAll": true},
        "state": "Accepted",
    }]);
    world.bind("one", accepted).await;
    let content = json!({"apiGroups": ["apis.kcp.io"], "resources": ["apiexports/content"], "verbs": ["*"]});
    world.allow("provider", ROBOT, content).await;
    let kind = json!({"metadata": {"name": "team"}, "spec": {}});
    world.post("root:two", "apis/tenancy.kcp.io/v1alpha1/workspacetypes", kind).await;
    let (provider, one) = (world.id("provider").await, world.id("one").await);
    let uri = format!("/services/apiexport/{provider}/widgets/clusters/{one}/apis/tenancy.kcp.io/v1alpha1/workspaces");
    let child = json!({"metadata": {"name": "child"}, "spec": {"type": {"name": "team", "path": "root:two"}}});
    let (code, answer) = world.as_robot("provider", "POST", &uri, child.clone()).await;
    assert_eq!(code, 403, "{answer}");
    let stranger = format!("system:kcp:serviceaccount:{provider}:default:robot");
    let rule = json!({"apiGroups": ["tenancy.kcp.io"], "resources": ["workspacetypes"], "verbs": ["use"]});
    world.allow("two", &stranger, rule).await;
    let (code, answer) = world.as_robot("provider", "POST", &uri, child).await;
    assert_eq!(code, 201, "{answer}");
}
