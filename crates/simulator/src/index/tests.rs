use std::sync::Arc;

use portolan_store::{ChangeKind, Event};
use portolan_types::{GroupResource, ObjectKey, Record, ResourceVersion};
use serde_json::{Value, json};

use super::{nodes::NodeFacts, testing::key, *};

fn pod(name: &str, revision: u64, more: Value) -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "set", "controller": true});
    let mut pod = json!({"kind": "Pod", "metadata": {
        "name": name, "namespace": "shop", "uid": format!("uid-{name}"), "resourceVersion": revision.to_string(),
        "labels": {"app": "web"}, "ownerReferences": [owner],
    }});
    for (field, value) in more.as_object().into_iter().flatten() {
        pod[field] = value.clone();
    }
    pod
}

fn ready() -> Value {
    json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn event(change: ChangeKind, revision: u64, pod: &Value) -> Event {
    let revision = ResourceVersion::new(revision).unwrap();
    Event { revision, change, key: key(pod), record: Arc::new(Record::of(pod)), previous: None }
}

fn counts(index: &PodIndex) -> (usize, usize) {
    index.owned("set", |owned| (owned.active(), owned.ready))
}

#[test]
fn an_older_event_changes_nothing() {
    let index = PodIndex::default();
    let (pending, up) = (pod("a", 5, Value::Null), pod("a", 7, ready()));
    index.observe(&key(&up), &up);
    index.take_in(&event(ChangeKind::Created, 5, &pending));
    assert_eq!(counts(&index), (1, 1), "the event of an earlier write");
    index.forget(&key(&up), "uid-a");
    index.take_in(&event(ChangeKind::Updated, 7, &up));
    assert_eq!(counts(&index), (0, 0), "an event from before it was deleted");
    index.take_in(&event(ChangeKind::Deleted, 8, &up));
    index.observe(&key(&up), &up);
    assert_eq!(counts(&index), (0, 0), "a look from before its deletion was told");
    let again = pod(
        "a",
        9,
        json!({"metadata": {"name": "a", "namespace": "shop", "uid": "new", "resourceVersion": "9",
        "ownerReferences": up["metadata"]["ownerReferences"]}}),
    );
    index.take_in(&event(ChangeKind::Created, 9, &again));
    index.forget(&key(&up), "uid-a");
    assert_eq!(counts(&index), (1, 0), "another one of the same name stays");
}

#[test]
fn a_normalized_list_drops_hidden_fields() {
    let index = PodIndex::default();
    let (gone, stays, new) = (pod("a", 1, ready()), pod("b", 2, ready()), pod("c", 9, ready()));
    for known in [&gone, &stays, &new] {
        index.observe(&key(known), known);
    }
    index.begin_listing();
    index.take_in(&event(ChangeKind::Created, 2, &stays));
    index.end_listing(5);
    let names = index.owned("set", |owned| owned.pods().keys().map(|key| key.name.to_string()).collect::<Vec<_>>());
    assert_eq!(names, ["b", "c"], "what was written after the listing stays, too");
}

#[test]
fn those_that_do_not_serve_are_deleted_first_then_the_youngest() {
    let index = PodIndex::default();
    for pod in [pod("a", 1, ready()), pod("b", 2, ready()), pod("c", 3, Value::Null)] {
        index.observe(&key(&pod), &pod);
    }
    let first = index.owned("set", |owned| owned.first_to_delete(2));
    assert_eq!(first.iter().map(|(key, _)| key.name.to_string()).collect::<Vec<_>>(), ["c", "b"]);
}

#[test]
fn selections_know_what_has_changed() {
    let index = PodIndex::default();
    let services = GroupResource::new("", "services");
    let a = pod("a", 1, ready());
    let by = ObjectKey { resource: services.clone(), name: "web".parse().unwrap(), ..key(&a) };
    index.observe(&key(&a), &a);
    let selector = label_selector(&json!({"matchLabels": {"app": "web"}})).unwrap();
    let changes = |index: &PodIndex| {
        index
            .select(&by, &selector, |selected| selected.take_changes())
            .unwrap()
            .into_iter()
            .map(|(name, pod)| (name.to_string(), pod.is_some()))
            .collect::<Vec<_>>()
    };
    assert_eq!(changes(&index), [("a".to_owned(), true)]);
    assert!(index.changed_selections(&key(&a), &services).is_empty());
    let relabelled = pod(
        "a",
        2,
        json!({"metadata": {"name": "a", "namespace": "shop", "uid": "uid-a", "resourceVersion": "2",
        "labels": {"app": "other"}}}),
    );
    index.take_in(&event(ChangeKind::Updated, 2, &relabelled));
    assert_eq!(index.changed_selections(&key(&a), &services), std::slice::from_ref(&by));
    assert_eq!(changes(&index), [("a".to_owned(), false)]);
    index.unselect(&by);
    assert!(index.changed_selections(&key(&a), &services).is_empty());
}

fn node(labels: Value, more: Value) -> NodeFacts {
    let mut node = json!({"metadata": {"name": "n", "labels": labels},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "2"}}});
    for (field, value) in more.as_object().into_iter().flatten() {
        node[field] = value.clone();
    }
    NodeFacts::of(&node)
}

fn needs(spec: Value) -> PodNeeds {
    PodNeeds::of(&json!({"spec": spec}))
}

fn asking(cpu: &str) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]})
}

#[test]
fn a_pod_goes_to_the_emptiest_node_that_takes_it() {
    let index = PodIndex::default();
    for name in ["n1", "n2"] {
        index.put_node(name, Some(node(json!({"disk": name}), Value::Null)));
    }
    let place = |name: &str, spec: Value| {
        let pod = pod(name, 1, json!({"spec": spec}));
        index.observe(&key(&pod), &pod);
        index.choose_node(&key(&pod), &PodNeeds::of(&pod))
    };
    assert_eq!(place("a", asking("3")), Ok("n1".into()));
    assert_eq!(place("b", asking("3")), Ok("n2".into()), "counted before the choice is written");
    let full = "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 No preemption victims found \
                for incoming pod.";
    assert_eq!(place("c", asking("3")), Err(full.into()));
    assert_eq!(index.take_unscheduled(9).len(), 1);
    assert_eq!(place("d", asking("1")), Ok("n1".into()));
    assert_eq!(place("e", asking("100m")), Ok("n2".into()));
    assert!(place("f", asking("0")).is_err_and(|why| why.contains("2 Too many pods")));
}

#[test]
fn a_pod_that_fits_no_node_has_the_schedulers_message() {
    let index = PodIndex::default();
    index.put_node("n1", Some(node(json!({"disk": "ssd"}), Value::Null)));
    index.put_node("n2", Some(node(json!({}), json!({"spec": {"unschedulable": true}}))));
    let tainted = json!({"spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}});
    index.put_node("n3", Some(node(json!({}), tainted)));
    let why = |spec: Value| index.choose_node(&key(&pod("a", 1, Value::Null)), &needs(spec));
    let helpless = "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.";
    let others = "1 node(s) had untolerated taint(s), 1 node(s) were unschedulable";
    assert_eq!(why(asking("100")), Err(format!("0/3 nodes are available: 1 Insufficient cpu, {others}. {helpless}")));
    assert_eq!(
        why(json!({"nodeSelector": {"disk": "none"}})),
        Err(format!(
            "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, {others}. {helpless}"
        ))
    );
    let term = json!({"matchExpressions": [{"key": "disk", "operator": "Exists"}]});
    let affinity =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
    assert_eq!(why(json!({"affinity": affinity})), Ok("n1".into()));
    let tolerant = json!({"nodeSelector": {"disk": "none"}, "tolerations": [{"operator": "Exists"}]});
    assert!(why(tolerant).is_err_and(|why| why.contains("3 node(s) didn't match")));
    let eligible = |needs: PodNeeds| index.eligible_nodes(&needs);
    assert_eq!(eligible(needs(json!({}))), ["n1"]);
    assert_eq!(eligible(PodNeeds::of_daemon(&json!({}))), ["n1", "n2"]);
}
