//! Requests to workspaces that do not exist.

use serde_json::{Value, json};

use crate::common::{Answer, Client, Plane};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn code_and_body(answer: &Answer) -> (u16, Value) {
    let status = answer.json();
    (answer.code, json!([status["reason"], status["message"], status["details"]["kind"], status["details"]["name"]]))
}

async fn allow(admin: &Client, user: &str) {
    let group = "rbac.authorization.k8s.io";
    let role = json!({"metadata": {"name": "finds-workspaces"}, "rules": [
        {"apiGroups": ["tenancy.kcp.io"], "resources": ["workspaces"], "verbs": ["get", "list"]}]});
    admin.post(&format!("/apis/{group}/v1/clusterroles"), role).await.expect(201);
    let binding = json!({"metadata": {"name": "finds-workspaces"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": user}],
        "roleRef": {"kind": "ClusterRole", "apiGroup": group, "name": "finds-workspaces"}});
    admin.post(&format!("/apis/{group}/v1/clusterrolebindings"), binding).await.expect(201);
}

#[tokio::test]
async fn a_missing_workspace_is_named_to_users_who_may_list_workspaces() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    allow(&admin, "ann").await;
    for client in [admin, plane.as_user("ann")] {
        for name in ["root:nope", "root:nope:below", "root:Nope", "root:nope:Below"] {
            let told = json!(["NotFound", format!("workspace {name:?} not found"), "workspaces", name]);
            let nowhere = client.at(name);
            for path in [PODS, "/api/v1/nodes/a", "/openid/v1/jwks", "/nothing"] {
                assert_eq!(code_and_body(&nowhere.get(path).await), (404, told.clone()), "{path}");
            }
            for path in ["/api", "/apis"] {
                // A post is no question for discovery.
                assert_eq!(code_and_body(&nowhere.post(path, json!({})).await), (404, told.clone()), "{path}");
            }
        }
    }
    for invalid in ["Root:Shop", "a;b", "root."] {
        let told = json!(["NotFound", format!("workspace {invalid:?} not found"), "workspaces", invalid]);
        assert_eq!(code_and_body(&plane.admin().at(invalid).get(PODS).await), (404, told));
        assert_eq!(plane.as_user("ann").at(invalid).get(PODS).await.code, 403, "it is looked up nowhere");
    }
    let unknown = plane.admin().at("1a2b3c4d5e6f7").get(PODS).await;
    assert_eq!(unknown.code, 404, "{}", unknown.text());
}

#[tokio::test]
async fn discovery_of_a_workspace_that_does_not_exist_shows_the_built_in_kinds() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let accept = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
    for path in ["/api", "/apis"] {
        let nowhere = admin.at("root:nope").send("GET", path, &accept, "").await.expect(200);
        let root = admin.send("GET", path, &accept, "").await.expect(200);
        assert_eq!(nowhere.bytes, root.bytes, "{path}");
    }
    for path in ["/api/v1", "/apis/apps", "/apis/apps/v1", "/openapi/v3", "/openapi/v3/apis/apps/v1", "/openapi/v2"] {
        for name in ["root:nope", "root:Nope", "Root:Shop"] {
            admin.at(name).get(path).await.expect(200);
        }
    }
}

#[tokio::test]
async fn strangers_learn_nothing_of_a_workspace_that_does_not_exist() {
    let plane = Plane::new().await;
    allow(&plane.admin(), "ann").await;
    let workspace =
        json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": "there"}});
    plane.admin().post("/apis/tenancy.kcp.io/v1alpha1/workspaces", workspace).await.expect(201);
    for (user, above) in [("eve", "root"), ("ann", "root:there")] {
        let user = plane.as_user(user);
        for path in ["/api", "/apis", "/openapi/v3", PODS] {
            let (there, nowhere) = match above {
                "root" => ("root:there", "root:nope"),
                _ => ("root:there", "root:there:nope"),
            };
            for nowhere in [nowhere.to_owned(), nowhere.replace("nope", "Nope")] {
                let (there, nowhere) = (user.at(there).get(path).await, user.at(&nowhere).get(path).await);
                assert_eq!((there.code, &there.bytes), (403, &nowhere.bytes), "{path}");
            }
        }
    }
}
