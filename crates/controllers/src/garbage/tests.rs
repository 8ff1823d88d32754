use portolan_kinds::{BuiltinKinds, KindTable, Kinds, Surface, custom::Definition};
use portolan_store::{Expect, Transaction};
use portolan_types::{GroupVersionKind, LogicalClusterId, Record, Scope, Seams, Status};
use serde_json::json;

use super::*;

const HOME: LogicalClusterId = LogicalClusterId::ROOT;

/// Kinds of logical clusters that show a ClusterRole which they do not store.
struct Shows;

impl Kinds for Shows {
    fn of(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Arc<Surface>, Status>> {
        BuiltinKinds.of(cluster)
    }

    fn definitions(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Vec<Arc<Definition>>, Status>> {
        BuiltinKinds.definitions(cluster)
    }

    fn changing(&self, key: &ObjectKey) -> Box<dyn Send> {
        BuiltinKinds.changing(key)
    }

    fn uid_unstored(&self, key: &ObjectKey) -> Option<String> {
        (&*key.resource.resource == "clusterroles" && key.name.as_str() == "view").then(|| "shown".to_owned())
    }

    fn is_computed(&self, key: &ObjectKey) -> bool {
        &*key.resource.resource == "physicalclusters"
    }
}

/// Objects, and a collector that reconciles given objects.
struct Stage {
    plane: Arc<Plane>,
    collector: GarbageCollector,
}

impl Stage {
    fn new() -> Self {
        let plane = Plane::new(portolan_store::memory(), KindTable::builtin(), Seams::system());
        let plane = Arc::new(plane.with_kinds(Arc::new(Shows)));
        Self { collector: GarbageCollector::new(plane.clone()), plane }
    }

    fn kind(&self, object: &Value) -> &'static Kind {
        let text = |key: &str| object[key].as_str().unwrap();
        let gvk = GroupVersionKind::parse(text("apiVersion"), text("kind")).unwrap();
        self.plane.table().kind(&gvk).unwrap()
    }

    async fn create(&self, object: Value) -> PlaneObject {
        self.plane.create(self.kind(&object), HOME, object).await.unwrap().unwrap()
    }

    /// Stores an object unchanged, with the given uid.
    async fn put(&self, cluster: LogicalClusterId, object: &Value) -> ObjectKey {
        let key = self.plane.key_of(self.kind(object), cluster, object).unwrap();
        let write = Transaction::one(key.clone(), Expect::Anything, Some(Record::of(object)));
        self.plane.store().commit(write).await.unwrap();
        key
    }

    async fn remove(&self, key: &ObjectKey) {
        if self.get(key).await.is_some() {
            self.plane.store().commit(Transaction::one(key.clone(), Expect::Anything, None)).await.unwrap();
        }
    }

    async fn get(&self, key: &ObjectKey) -> Option<Value> {
        self.plane.get(key).await.unwrap().map(|found| found.object)
    }

    /// Messages of all Events that there are, with the namespace of each; they are taken away.
    async fn events(&self) -> Vec<String> {
        let events = RangeScope::Cluster(HOME, GroupResource::new("", "events"));
        let mut told = Vec::new();
        for found in self.plane.list(events).await.unwrap() {
            assert_eq!(
                (&found.object["reason"], &found.object["type"]),
                (&json!("OwnerRefInvalidNamespace"), &json!("Warning"))
            );
            assert!(object::owner_references(&found.object).is_empty(), "it outlives what it is about");
            told.push(format!("{}: {}", object::namespace(&found.object), found.object["message"].as_str().unwrap()));
            self.remove(&found.key).await;
        }
        told
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
            PlaneChange::Write(None)
        };
        s.plane.change(kind, &found.key, write).await.unwrap();
        s.collector.collect(kind, &found, OwnerChange::Checked).await.unwrap();
        let now = s.get(&found.key).await;
        assert_eq!(now.is_some_and(|now| !object::is_deleting(&now)), stays, "{case}");
        s.remove(&found.key).await;
    }
}

#[tokio::test]
async fn owners_that_keep_an_object() {
    let s = Stage::new();
    for name in ["shop", "other", "default"] {
        s.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    }
    let uid = |found: &PlaneObject| object::meta_text(&found.object, "uid").to_owned();
    let keeper = reference("v1", "ConfigMap", "keeper", &uid(&s.create(map("shop", "keeper")).await));
    let away = uid(&s.create(map("other", "away")).await);
    let elsewhere = reference("v1", "ConfigMap", "away", &away);
    let absent = reference("v1", "ConfigMap", "absent", "gone");
    let unserved = reference("example.dev/v1", "Widget", "w", "somewhere");
    let nowhere = reference("v1", "Namespace", "nowhere", "gone");
    let role = || json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "dependent"}});
    let dependent = || map("shop", "dependent");
    let told = |place: &str, namespace: &str| {
        let owner = format!("[v1/ConfigMap, namespace: {namespace}, name: away, uid: {away}]");
        format!("{place}: ownerRef {owner} does not exist in namespace \"{namespace}\"")
    };
    for (case, object, references, left, event) in [
        ("the one that is there", dependent(), vec![&keeper, &absent], Some(vec![&keeper]), None),
        ("none", dependent(), vec![&absent], None, None),
        ("none, of a cluster", role(), vec![&nowhere], None, None),
        ("not one of another namespace", dependent(), vec![&elsewhere], None, Some(told("shop", "shop"))),
        (
            "another one beside it",
            dependent(),
            vec![&elsewhere, &keeper],
            Some(vec![&keeper]),
            Some(told("shop", "shop")),
        ),
        (
            "one in a namespace is unknown at cluster scope",
            role(),
            vec![&nowhere, &elsewhere],
            Some(vec![&nowhere, &elsewhere]),
            Some(told("default", "")),
        ),
        ("one that is nowhere, of a kind that lives in namespaces", role(), vec![&absent], Some(vec![&absent]), None),
        (
            "one of a kind that is not served is unknown",
            dependent(),
            vec![&absent, &unserved],
            Some(vec![&absent, &unserved]),
            None,
        ),
    ] {
        let found = s.create(owned(object, &references)).await;
        s.collector.reconcile(&Key::Object(found.key.clone())).await.unwrap();
        let now = s.get(&found.key).await;
        let now = now.as_ref().map(|now| object::owner_references(now).iter().collect::<Vec<_>>());
        assert_eq!(now, left, "{case}");
        assert_eq!(s.events().await, event.into_iter().collect::<Vec<_>>(), "{case}");
        s.remove(&found.key).await;
    }
}

#[tokio::test]
async fn an_owner_that_is_shown_and_not_stored_keeps_its_dependents() {
    let s = Stage::new();
    let role = |name: &str, uid: &str| reference("rbac.authorization.k8s.io/v1", "ClusterRole", name, uid);
    for (case, owner, stays) in [
        ("that one", role("view", "shown"), true),
        ("another one of its name", role("view", "stored"), false),
        ("one that is neither shown nor stored", role("none", "shown"), false),
        ("a kind that cannot be read", reference("authentication.k8s.io/v1", "TokenReview", "r", "u"), true),
    ] {
        let uid = owner["uid"].as_str().unwrap().parse().unwrap();
        let resource = GroupResource::new("rbac.authorization.k8s.io", "clusterroles");
        let key = ObjectKey::cluster_scoped(HOME, resource, owner["name"].as_str().unwrap().parse().unwrap());
        for looked_at_as in ["itself", "one of the dependents", "one of all"] {
            let found = s.create(owned(map("shop", "dependent"), &[&owner])).await;
            let look = match looked_at_as {
                "itself" => Key::Object(found.key.clone()),
                "one of all" => Key::AllOwned(HOME),
                _ => Key::DependentsOf(GoneOwner { key: key.clone(), uid: Clone::clone(&uid) }),
            };
            s.collector.reconcile(&look).await.unwrap();
            assert_eq!(s.get(&found.key).await.is_some(), stays, "{case}, as {looked_at_as}");
            s.remove(&found.key).await;
        }
    }
}

#[tokio::test]
async fn an_owner_that_may_be_computed_keeps_its_dependents_until_it_is_seen_to_go() {
    let s = Stage::new();
    let owner = reference("portolan.dev/v1alpha1", "PhysicalCluster", "east", "inherited");
    let found = s.create(owned(map("shop", "dependent"), &[&owner])).await;
    let resource = GroupResource::new("portolan.dev", "physicalclusters");
    let key = ObjectKey::cluster_scoped(HOME, resource, "east".parse().unwrap());
    for look in [
        Key::Object(found.key.clone()),
        Key::AllOwned(HOME),
        Key::DependentsOf(GoneOwner { key: key.clone(), uid: "other".parse().unwrap() }),
    ] {
        s.collector.reconcile(&look).await.unwrap();
        assert!(s.get(&found.key).await.is_some(), "{look:?}");
    }
    s.collector.reconcile(&Key::DependentsOf(GoneOwner { key, uid: "inherited".parse().unwrap() })).await.unwrap();
    assert_eq!(s.get(&found.key).await, None, "its own one that was deleted");
}

#[tokio::test]
async fn one_look_deletes_a_share_of_many_dependents_and_the_next_goes_on_behind_it() {
    const EACH: usize = SHARE + 200;
    let s = Stage::new();
    let gone = reference("v1", "ConfigMap", "gone", "gone");
    for n in 0..EACH {
        let mut held = owned(map("shop", &format!("a-held-{n}")), &[&gone]);
        held["metadata"]["finalizers"] = json!(["example.com/hold"]);
        s.create(held).await;
        s.create(owned(map("shop", &format!("b-{n}")), &[&gone])).await;
    }
    let count = async || {
        let all = s.plane.list(RangeScope::OwnedBy(HOME, "gone".into())).await.unwrap();
        (all.len(), all.iter().filter(|found| object::is_deleting(&found.object)).count())
    };
    let key = ObjectKey { name: "gone".parse().unwrap(), ..s.create(map("shop", "other")).await.key };
    let key = Key::DependentsOf(GoneOwner { key, uid: "gone".parse().unwrap() });
    let (mut looks, mut before) = (1, 0);
    while s.collector.reconcile(&key).await.unwrap() == REQUEUE_NOW {
        let (left, marked) = count().await;
        let done = 2 * EACH - left + marked;
        assert!((SHARE..2 * SHARE).contains(&(done - before)), "{done} after {before}");
        (looks, before) = (looks + 1, done);
    }
    assert!(looks > 1);
    assert_eq!(count().await, (EACH, EACH), "those that are held have been asked");
    assert_eq!(s.collector.reconcile(&key).await.unwrap(), WorkOutcome::Done, "and are not asked again");
}

#[tokio::test]
async fn dependents_of_a_removed_kind_are_collected() {
    let s = Stage::new();
    let widget = reference("example.dev/v1", "Widget", "w", "one");
    let found = s.create(owned(map("shop", "dependent"), &[&widget])).await;
    let at = |namespace: &str, uid: &str| {
        let resource = GroupResource::new("example.dev", "widgets");
        let scope = Scope::Namespace(namespace.parse().unwrap());
        let key = ObjectKey { cluster: HOME, resource, scope, name: "w".parse().unwrap() };
        Key::DependentsOf(GoneOwner { key, uid: uid.parse().unwrap() })
    };
    let looked = s.collector.reconcile(&at("other", "one")).await.unwrap();
    assert_eq!(
        (looked, s.get(&found.key).await.is_some()),
        (WorkOutcome::RequeueAfter(UNSERVED), true),
        "in another namespace"
    );
    assert_eq!(s.collector.reconcile(&at("shop", "one")).await.unwrap(), WorkOutcome::Done);
    assert_eq!(s.get(&found.key).await, None);
}

#[tokio::test]
async fn the_same_uid_in_two_logical_clusters_is_of_two_owners() {
    let (s, away) = (Stage::new(), LogicalClusterId::new(7));
    let with_uid = |mut object: Value, uid: &str| {
        object["metadata"]["uid"] = json!(uid);
        object
    };
    let owner = with_uid(map("shop", "owner"), "same");
    let dependent = owned(map("shop", "dependent"), &[&reference("v1", "ConfigMap", "owner", "same")]);
    let mut keys = Vec::new();
    for cluster in [HOME, away] {
        keys.push((s.put(cluster, &owner).await, s.put(cluster, &with_uid(dependent.clone(), "d")).await));
    }
    s.remove(&keys[0].0).await;
    let gone = GoneOwner { key: keys[0].0.clone(), uid: "same".parse().unwrap() };
    s.collector.reconcile(&Key::DependentsOf(gone)).await.unwrap();
    for key in [&keys[0].1, &keys[1].1] {
        s.collector.reconcile(&Key::Object(key.clone())).await.unwrap();
    }
    assert_eq!(s.get(&keys[0].1).await, None, "its owner is gone");
    let left = s.get(&keys[1].1).await.unwrap();
    assert_eq!(object::owner_references(&left), object::owner_references(&dependent), "this one is there");
}

#[tokio::test]
async fn an_owner_of_another_namespace_is_looked_up_once() {
    let s = Stage::new();
    for name in ["shop", "other"] {
        s.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    }
    let away = s.create(map("other", "away")).await;
    let owner = reference("v1", "ConfigMap", "away", object::meta_text(&away.object, "uid"));
    let one = s.create(owned(map("shop", "one"), &[&owner])).await;
    s.collector.reconcile(&Key::AllOwned(HOME)).await.unwrap();
    assert_eq!((s.get(&one.key).await, s.events().await.len()), (None, 0), "no lookup reads all objects");
    for (name, is_there) in [("two", true), ("three", false)] {
        let dependent = s.create(owned(map("shop", name), &[&owner])).await;
        if !is_there {
            s.remove(&away.key).await;
        }
        s.collector.reconcile(&Key::Object(dependent.key.clone())).await.unwrap();
        assert_eq!(s.get(&dependent.key).await, None);
        assert_eq!(s.events().await.len(), 1, "{name}: what was known once is known");
    }
}

#[tokio::test]
async fn a_refusal_by_rules_becomes_a_condition() {
    let stage = Stage::new();
    for name in ["default", "other"] {
        stage.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    }
    let labels = json!({"controller-uid": "another", "batch.kubernetes.io/controller-uid": "another",
        "job-name": "j", "batch.kubernetes.io/job-name": "j"});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "j", "namespace": "default", "uid": "own", "generation": 1, "finalizers": ["foregroundDeletion"],
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0},
        "spec": {"selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "another"}},
            "template": {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    let key = stage.put(HOME, &job).await;
    for _ in 0..2 {
        let refused = stage.collector.reconcile(&Key::Object(key.clone())).await;
        assert!(matches!(refused, Err(PlaneError::Refused(_))), "{refused:?}");
    }
    let events = stage.plane.list(RangeScope::Cluster(HOME, GroupResource::new("", "events"))).await.unwrap();
    assert_eq!(events.len(), 1, "once");
    let event = &events[0].object;
    assert_eq!((&event["reason"], &event["involvedObject"]["name"]), (&json!("GarbageCollectionFailed"), &json!("j")));
    let message = event["message"].as_str().unwrap();
    assert!(
        message.starts_with("cannot take the finalizer foregroundDeletion off: Job.batch \"j\" is invalid"),
        "{message}"
    );
}
