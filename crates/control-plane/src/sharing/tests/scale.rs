//! Store reads of shared APIs: they do not grow with the bindings of others, nor with the members of a view.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use portolan_store::{DynStore, RangePage, RangeRequest, RangeScope, StoreError, StoreLayer, StoredObject};
use portolan_types::{BoxFuture, ObjectKey, apis};
use serde_json::{Value, json};

use super::world::{V1, V2, WIDGETS, World, admin, schema, widget};

/// Members of the view.
const MEMBERS: usize = 20;

/// Counts of reads.
#[derive(Default)]
struct ReadCounts {
    /// Ranges.
    all: AtomicUsize,
    /// Objects, by key or in ranges.
    objects: AtomicUsize,
    /// Those of the bindings of all logical clusters.
    of_all_bindings: AtomicUsize,
}

impl ReadCounts {
    fn now(&self) -> (usize, usize) {
        (self.all.load(Ordering::Relaxed), self.of_all_bindings.load(Ordering::Relaxed))
    }
}

/// Store that counts reads.
struct ReadCounter {
    inner: DynStore,
    counts: Arc<ReadCounts>,
}

impl StoreLayer for ReadCounter {
    fn inner(&self) -> &DynStore {
        &self.inner
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        self.counts.objects.fetch_add(1, Ordering::Relaxed);
        self.inner.get(key)
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        self.counts.all.fetch_add(1, Ordering::Relaxed);
        if request.scope == RangeScope::AllClusters(apis::resource(apis::BINDINGS)) {
            self.counts.of_all_bindings.fetch_add(1, Ordering::Relaxed);
        }
        Box::pin(async move {
            let page = self.inner.range(request).await?;
            self.counts.objects.fetch_add(page.objects.len(), Ordering::Relaxed);
            Ok(page)
        })
    }
}

/// World that exports widgets, on a store that counts.
async fn counted() -> (World, Arc<ReadCounts>) {
    let counts = Arc::new(ReadCounts::default());
    let world = World::on(Arc::new(ReadCounter { inner: portolan_store::memory(), counts: counts.clone() })).await;
    world.export_widgets("v1").await;
    (world, counts)
}

#[tokio::test(start_paused = true)]
async fn no_change_of_an_export_reads_all_bindings() {
    let (world, counts) = counted().await;
    world.bind("one", json!([])).await;
    let (_, before) = counts.now();
    world.bind("two", json!([])).await;
    let mut next = schema("v2", "widgets", "Widget");
    next["spec"]["versions"][0]["schema"]["properties"]["spec"]["properties"]["size"]["minimum"] = json!(10);
    world.post("root:provider", &format!("{V1}/apiresourceschemas"), next).await;
    let other = json!({"spec": {"resources": [super::world::exported("v2", "widgets")]}});
    world.merge("root:provider", &format!("{V2}/apiexports/widgets"), other).await;
    for name in ["one", "two"] {
        world
            .until("the new schema is bound", || async {
                let bound = world.binding(name, "widgets").await;
                bound["status"]["boundResources"][0]["schema"]["name"] == "v2.widgets.example.dev"
            })
            .await;
    }
    let slice = format!("{V1}/apiexportendpointslices/widgets");
    world
        .until("the slice has an address", || async {
            let slice = world.get("root:provider", &slice).await.unwrap_or_default();
            slice.pointer("/status/endpoints/0/url").is_some()
        })
        .await;
    assert_eq!(counts.now().1, before, "all bindings are read once, when the server starts");
}

#[tokio::test(start_paused = true)]
async fn a_list_of_a_view_does_not_read_each_member() {
    let (world, counts) = counted().await;
    for member in 0..MEMBERS {
        let (name, cluster) = (format!("m{member:02}"), format!("root:m{member:02}"));
        let workspace = json!({"metadata": {"name": name}});
        world.post("root", "apis/tenancy.kcp.io/v1alpha1/workspaces", workspace).await;
        world.bind(&name, json!([])).await;
        world.post(&cluster, WIDGETS, widget("a", 1)).await;
        world.post(&cluster, WIDGETS, widget("b", 1)).await;
    }
    // It has its own definition of the resource, and is not a member.
    let crd = json!({"metadata": {"name": "widgets.example.dev"}, "spec": {
        "group": "example.dev", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [{
            "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }},
        }],
    }});
    world.post("root:two", "apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).await;
    world.until("it is served", || async { world.get("root:two", WIDGETS).await.is_some() }).await;
    world.post("root:two", WIDGETS, widget("foreign", 1)).await;
    let provider = world.id("provider").await;
    let view = format!("/services/apiexport/{provider}/widgets/clusters/*");
    for (path, each) in [("apis/example.dev/v1/widgets".to_owned(), 2), (format!("{V2}/apibindings"), 1)] {
        for limit in [0, 7] {
            let (mut found, mut token, mut most) = (Vec::new(), String::new(), 0);
            loop {
                let uri = format!("{view}/{path}?limit={limit}&continue={token}");
                let (before, _) = counts.now();
                let (code, page) = world.send_as(&admin(), "GET", &uri, Value::Null).await;
                most = most.max(counts.now().0 - before);
                assert_eq!(code, 200, "{page}");
                let place = |item: &Value| {
                    let text = |pointer: &str| item.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
                    (text("/metadata/annotations/kcp.io~1cluster"), text("/metadata/name"))
                };
                found.extend(page["items"].as_array().unwrap().iter().map(place));
                token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
                if token.is_empty() {
                    break;
                }
            }
            assert_eq!(found.len(), MEMBERS * each, "{path} with limit {limit}: {found:?}");
            assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), found.len(), "none comes twice: {found:?}");
            assert!(found.iter().all(|(_, name)| name != "foreign"), "{found:?}");
            assert!(most < MEMBERS, "{path} with limit {limit} took {most} ranges");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_binding_reads_no_more_when_many_are_bound() {
    let (world, counts) = counted().await;
    for member in 0..2 * MEMBERS {
        let workspace = json!({"metadata": {"name": format!("m{member:02}")}});
        world.post("root", "apis/tenancy.kcp.io/v1alpha1/workspaces", workspace).await;
    }
    // What a new workspace begins with is made meanwhile.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut reads = Vec::new();
    for member in 0..2 * MEMBERS {
        let before = counts.objects.load(Ordering::Relaxed);
        world.bind(&format!("m{member:02}"), json!([])).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        reads.push(counts.objects.load(Ordering::Relaxed) - before);
    }
    // The first one gives the slice its address.
    assert!(reads[2..].iter().all(|own| *own <= reads[1]), "objects read for each binding: {reads:?}");
}
