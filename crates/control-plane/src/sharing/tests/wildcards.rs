//! Lists and watches of all logical clusters, by administrators.

use serde_json::{Value, json};

use super::{
    views::Watch,
    world::{World, admin, user},
};

const MAPS: &str = "api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

/// Returns the logical cluster and the name of each object of a list.
fn names_in(list: &Value) -> Vec<(String, String)> {
    let text = |item: &Value, pointer: &str| item.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    let items = list["items"].as_array().unwrap_or_else(|| panic!("{list}")).iter();
    items.map(|item| (text(item, "/metadata/annotations/kcp.io~1cluster"), text(item, "/metadata/name"))).collect()
}

#[tokio::test(start_paused = true)]
async fn an_administrator_lists_and_watches_all_logical_clusters() {
    let world = World::new().await;
    for name in ["one", "two"] {
        world.post(&format!("root:{name}"), MAPS, map("own")).await;
    }
    let (one, two) = (world.id("one").await, world.id("two").await);
    let all = "/clusters/*/api/v1/configmaps?fieldSelector=metadata.name%3Down";
    let (code, list) = world.send_as(&admin(), "GET", all, Value::Null).await;
    assert_eq!(code, 200, "{list}");
    let mut expected = vec![(one.clone(), "own".to_owned()), (two.clone(), "own".to_owned())];
    let mut all_found = names_in(&list);
    expected.sort();
    all_found.sort();
    assert_eq!(all_found, expected);
    let (_, page) = world.send_as(&admin(), "GET", &format!("{all}&limit=1"), Value::Null).await;
    let token = page["metadata"]["continue"].as_str().expect("another page").to_owned();
    let (_, rest) = world.send_as(&admin(), "GET", &format!("{all}&limit=1&continue={token}"), Value::Null).await;
    let mut paged: Vec<_> = names_in(&page).into_iter().chain(names_in(&rest)).collect();
    paged.sort();
    assert_eq!(paged, expected, "page by page it is the same");

    let revision = list["metadata"]["resourceVersion"].as_str().unwrap();
    let uri = format!("/clusters/*/api/v1/configmaps?watch=true&resourceVersion={revision}");
    let mut watch = Watch::of(world.open(&admin(), "GET", &uri, Value::Null).await.1);
    world.post("root:two", MAPS, map("later")).await;
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("later")));
    assert_eq!(event["object"]["metadata"]["annotations"]["kcp.io/cluster"], two.as_str());
    assert_eq!(event["object"]["metadata"]["annotations"]["kcp.io/path"], "root:two");
}

#[tokio::test(start_paused = true)]
async fn all_logical_clusters_are_read_by_administrators_and_written_by_none() {
    let world = World::new().await;
    world.allow("one", "ann", json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})).await;
    for (case, user, method, path, expected) in [
        ("a list by a user", user("ann"), "GET", "api/v1/configmaps", 403),
        ("discovery by a user", user("ann"), "GET", "api/v1", 403),
        ("a read of one object", admin(), "GET", "api/v1/namespaces/default/configmaps/own", 405),
        ("a write", admin(), "POST", MAPS, 405),
        ("a deletion of a collection", admin(), "DELETE", MAPS, 405),
        ("the server's own records", admin(), "GET", "apis/core.kcp.io/v1alpha1/logicalclusters", 404),
        ("what logical clusters define", admin(), "GET", "apis/example.dev/v1/widgets", 404),
        ("discovery", admin(), "GET", "api/v1", 200),
        ("another path", admin(), "GET", "metrics/nothing", 403),
    ] {
        let (code, answer) = world.send_as(&user, method, &format!("/clusters/*/{path}"), json!({})).await;
        assert_eq!(code, expected, "{case}: {answer}");
    }
}
