//! A definition that goes while its resource is used, and comes back as another one.

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::{
    common::{Client, Plane, Watch},
    custom::{CRDS, WIDGETS, define, widgets},
};

/// Many for a test; each is told of every object.
const WATCHES: usize = 1_000;
const WRITERS: usize = 8;

/// What the loop of definitions does when one is deleted, which is not here.
async fn undefine(admin: &Client) {
    let path = format!("{CRDS}/widgets.example.dev");
    admin.delete(&path).await.expect(200);
    // What was under way when it began to go may come after the first look.
    for _ in 0..3 {
        admin.delete(WIDGETS).await.expect(200);
    }
    let left = admin.get(WIDGETS).await.expect(200).json();
    assert_eq!(left["items"], json!([]), "nothing comes to it while it goes");
    admin.merge(&path, json!({"metadata": {"finalizers": null}})).await.expect(200);
    admin.get(&path).await.expect(404);
}

/// The same resource with texts for sizes, in no namespace's objects of before.
fn redefined() -> Value {
    let mut crd = widgets();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"] =
        json!({"type": "string"});
    crd
}

/// Makes objects of both kinds, and says how that was answered.
async fn write(admin: Client, writer: usize, rounds: usize) -> BTreeSet<u16> {
    let mut codes = BTreeSet::new();
    for round in 0..rounds {
        for (form, size) in [("n", json!(1)), ("t", json!("one"))] {
            let name = format!("{form}-{writer}-{round}");
            let object = json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}});
            codes.insert(admin.post(WIDGETS, object).await.code);
        }
    }
    codes
}

/// The sizes that a watch tells of until it ends.
async fn sizes(mut watch: Watch) -> Vec<Value> {
    let mut seen = Vec::new();
    while let Some(event) = watch.next().await {
        seen.push(event["object"]["spec"]["size"].clone());
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_watches_and_writes_while_a_definition_is_replaced_sees_and_makes_nothing_by_the_wrong_one() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    define(&admin, widgets()).await;
    let path = format!("{WIDGETS}?watch=1&timeoutSeconds=300");
    let watches = join_all((0..WATCHES).map(|_| admin.watch(&path, &[]))).await;
    let watches: Vec<_> = watches.into_iter().map(|watch| tokio::spawn(sizes(watch))).collect();
    assert_eq!(write(admin.clone(), 0, 2).await, BTreeSet::from([201, 422]));

    let writers = (1..=WRITERS).map(|writer| tokio::spawn(write(admin.clone(), writer, 20)));
    let replaced = async {
        undefine(&admin).await;
        define(&admin, redefined()).await;
    };
    let ((), codes) = tokio::join!(replaced, join_all(writers));
    let codes: BTreeSet<u16> = codes.into_iter().flat_map(Result::unwrap).collect();
    let known = BTreeSet::from([201, 403, 404, 422]);
    assert!(codes.is_subset(&known), "{codes:?}");

    let text =
        json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "last"}, "spec": {"size": "x"}});
    admin.post(WIDGETS, text).await.expect(201);
    let left = admin.get(WIDGETS).await.expect(200).json();
    let items = left["items"].as_array().unwrap();
    assert!(!items.is_empty() && items.iter().all(|item| item["spec"]["size"].is_string()), "{left}");
    for seen in join_all(watches).await {
        let seen = seen.unwrap();
        assert!(!seen.is_empty() && seen.iter().all(Value::is_number), "{seen:?}");
    }
}
