//! A definition that goes while its resource is used, and comes back as another one.

use std::{collections::BTreeSet, sync::Arc};

use futures::future::join_all;
use portolan_apiserver::{
    ApiServerConfig,
    admission::{AdmissionPlugin, AdmissionRequest},
};
use portolan_store::{Expect, Transaction};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ObjectKey, Seams, Status, object};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};

use crate::{
    common::{Client, Faulty, Plane, Watch},
    custom::{CRDS, WIDGETS, define, widgets},
};

/// Many for a test; each receives every object.
const WATCHES: usize = 1_000;
const WRITERS: usize = 8;

/// Does the work of the definition controller when one is deleted.
async fn undefine(admin: &Client) {
    let path = format!("{CRDS}/widgets.example.dev");
    admin.delete(&path).await.expect(200);
    admin.delete(WIDGETS).await.expect(200);
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

fn widget(name: &str, size: Value) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}})
}

/// Makes objects of both kinds, and says how that was answered.
async fn write(admin: Client, writer: usize, rounds: usize) -> BTreeSet<u16> {
    let mut codes = BTreeSet::new();
    for round in 0..rounds {
        for (form, size) in [("n", json!(1)), ("t", json!("one"))] {
            let name = format!("{form}-{writer}-{round}");
            codes.insert(admin.post(WIDGETS, widget(&name, size)).await.code);
        }
    }
    codes
}

/// The sizes that a watch reports until it ends.
async fn sizes(mut watch: Watch) -> Vec<Value> {
    let mut seen = Vec::new();
    while let Some(event) = watch.next().await {
        seen.push(event["object"]["spec"]["size"].clone());
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_and_writes_never_use_a_replaced_definition() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    define(&admin, widgets()).await;
    let path = format!("{WIDGETS}?watch=1&timeoutSeconds=300");
    let mut watches = join_all((0..WATCHES).map(|_| admin.watch(&path, &[]))).await;
    assert_eq!(write(admin.clone(), 0, 2).await, BTreeSet::from([201, 422]));
    // One that has shown nothing yet may end without having shown anything.
    for watch in &mut watches {
        assert_eq!(watch.next().await.unwrap()["object"]["spec"]["size"], 1);
    }
    let watches: Vec<_> = watches.into_iter().map(|watch| tokio::spawn(sizes(watch))).collect();

    let writers = (1..=WRITERS).map(|writer| tokio::spawn(write(admin.clone(), writer, 20)));
    let replaced = async {
        undefine(&admin).await;
        define(&admin, redefined()).await;
    };
    let ((), codes) = tokio::join!(replaced, join_all(writers));
    let codes: BTreeSet<u16> = codes.into_iter().flat_map(Result::unwrap).collect();
    let known = BTreeSet::from([201, 403, 404, 422]);
    assert!(codes.is_subset(&known), "{codes:?}");

    admin.post(WIDGETS, widget("last", json!("x"))).await.expect(201);
    let left = admin.get(WIDGETS).await.expect(200).json();
    let items = left["items"].as_array().unwrap();
    assert!(!items.is_empty() && items.iter().all(|item| item["spec"]["size"].is_string()), "{left}");
    for seen in join_all(watches).await {
        let seen = seen.unwrap();
        assert!(seen.iter().all(Value::is_number), "{seen:?}");
    }
}

/// Holds those who make the object `held` until they are let go.
struct Gate {
    arrived: Notify,
    open: Semaphore,
}

impl AdmissionPlugin for Gate {
    fn mutate<'a>(
        &'a self,
        _: &'a AdmissionRequest<'a>,
        new: &'a mut Value,
        _: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if object::name(new) == "held" {
                self.arrived.notify_one();
                drop(self.open.acquire().await);
            }
            Ok(())
        })
    }
}

#[tokio::test]
async fn an_object_under_way_does_not_come_after_the_end_of_its_definition_has_begun() {
    #[derive(Clone, Copy, PartialEq)]
    enum Meanwhile {
        Changed,
        Ending,
        Gone,
        Another,
    }
    let path = format!("{CRDS}/widgets.example.dev");
    for (meanwhile, code) in
        [(Meanwhile::Changed, 201), (Meanwhile::Ending, 403), (Meanwhile::Gone, 404), (Meanwhile::Another, 404)]
    {
        let gate = Arc::new(Gate { arrived: Notify::new(), open: Semaphore::new(0) });
        let plane = Plane::with(|config| config.hooks.admission.push(gate.clone())).await;
        let admin = plane.admin();
        define(&admin, widgets()).await;
        let maker = admin.clone();
        let made = tokio::spawn(async move { maker.post(WIDGETS, widget("held", json!(1))).await });
        gate.arrived.notified().await;
        match meanwhile {
            Meanwhile::Changed => {
                drop(admin.merge(&path, json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200))
            }
            Meanwhile::Ending => drop(admin.delete(&path).await.expect(200)),
            Meanwhile::Gone | Meanwhile::Another => undefine(&admin).await,
        }
        if meanwhile == Meanwhile::Another {
            define(&admin, widgets()).await;
        }
        gate.open.add_permits(1);
        made.await.unwrap().expect(code);
        if meanwhile == Meanwhile::Gone {
            define(&admin, widgets()).await;
        }
        let left = admin.get(WIDGETS).await.expect(200).json();
        assert_eq!(left["items"].as_array().map(Vec::len), Some(usize::from(code == 201)), "{left}");
    }
}

#[tokio::test]
async fn an_object_does_not_come_after_another_server_has_ended_its_definition() {
    let store = Faulty::over(portolan_store::memory());
    let plane = Plane::on(store.clone(), ApiServerConfig::in_memory(Seams::system())).await;
    let admin = plane.admin();
    define(&admin, widgets()).await;
    admin.post(WIDGETS, widget("before", json!(1))).await.expect(201);
    admin.delete(&format!("{WIDGETS}/before")).await.expect(200);
    let resource = GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions");
    let name = "widgets.example.dev".parse().unwrap();
    let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, name);
    store.write_before([Some(Transaction::one(key, Expect::Present, None))]);
    admin.post(WIDGETS, widget("late", json!(1))).await.expect(404);
    define(&admin, widgets()).await;
    assert_eq!(admin.get(WIDGETS).await.expect(200).json()["items"], json!([]));
}

#[tokio::test]
async fn a_watch_does_not_go_on_by_another_definition_that_says_the_same() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    define(&admin, widgets()).await;
    let mut watch = admin.watch(&format!("{WIDGETS}?watch=1&timeoutSeconds=300"), &[]).await;
    admin.post(WIDGETS, widget("a", json!(1))).await.expect(201);
    assert_eq!(watch.seen().await, ("ADDED".to_owned(), "a".to_owned()));
    undefine(&admin).await;
    assert_eq!(watch.seen().await, ("DELETED".to_owned(), "a".to_owned()));
    define(&admin, widgets()).await;
    admin.post(WIDGETS, widget("b", json!(1))).await.expect(201);
    assert_eq!(watch.next().await, None, "it starts again with the present definition");
}
