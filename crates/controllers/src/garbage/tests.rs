use portolan_machinery::kinds::KindTable;
use portolan_store::{Expect, Transaction};
use portolan_types::{GroupVersionKind, LogicalClusterId, Seams};
use serde_json::json;

use super::*;

const HOME: LogicalClusterId = LogicalClusterId::ROOT;

/// Objects, and a collector that looks at what it is told to look at.
struct Stage {
    plane: Arc<Plane>,
    collector: GarbageCollector,
}

impl Stage {
    fn new() -> Self {
        let plane = Arc::new(Plane::new(portolan_store::memory(), KindTable::builtin(), Seams::system()));
        Self { collector: GarbageCollector::new(plane.clone()), plane }
    }

    fn kind(&self, object: &Value) -> &'static Kind {
        let text = |key: &str| object[key].as_str().unwrap();
        let gvk = GroupVersionKind::parse(text("apiVersion"), text("kind")).unwrap();
        self.plane.table().kind(&gvk).unwrap()
    }

    async fn create(&self, object: Value) -> Found {
        self.plane.create(self.kind(&object), HOME, object).await.unwrap().unwrap()
    }

    async fn remove(&self, key: &ObjectKey) {
        if self.get(key).await.is_some() {
            self.plane.store().commit(Transaction::one(key.clone(), Expect::Anything, None)).await.unwrap();
        }
    }

    async fn get(&self, key: &ObjectKey) -> Option<Value> {
        self.plane.get(key).await.unwrap().map(|found| found.object)
    }
}

fn map(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}})
}

fn reference(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid})
}

fn owned(mut object: Value, references: &[&Value]) -> Value {
    object["metadata"]["ownerReferences"] = json!(references);
    object
}

#[tokio::test]
async fn an_object_that_was_changed_since_it_was_found_goes_only_by_what_it_is_now() {
    let s = Stage::new();
    let keeper = s.create(map("shop", "keeper")).await;
    let keeper = reference("v1", "ConfigMap", "keeper", object::meta_text(&keeper.object, "uid"));
    let ghost = reference("v1", "ConfigMap", "ghost", "gone");
    let owners = |object: &mut Value, references: &[&Value]| *object = owned(object.take(), references);
    type Change<'a> = Box<dyn Fn(&mut Value) + Send + Sync + 'a>;
    let cases: [(&str, Change<'_>, bool); 4] = [
        ("adopted", Box::new(|o| owners(o, &[&ghost, &keeper])), true),
        ("left alone", Box::new(|o| owners(o, &[])), true),
        ("told to keep its dependents", Box::new(|o| o["metadata"]["finalizers"] = json!(["orphan"])), true),
        ("changed otherwise", Box::new(|o| o["data"] = json!({"a": "b"})), false),
    ];
    for (case, change, stays) in cases {
        let found = s.create(owned(map("shop", "dependent"), &[&ghost])).await;
        let kind = s.kind(&found.object);
        let write = |object: &mut Value| {
            change(object);
            Step::Write(None)
        };
        s.plane.change(kind, &found.key, write).await.unwrap();
        s.collector.attempt(kind, &found).await.unwrap();
        let now = s.get(&found.key).await;
        assert_eq!(now.is_some_and(|now| !object::is_deleting(&now)), stays, "{case}");
        s.remove(&found.key).await;
    }
}
