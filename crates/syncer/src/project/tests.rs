use portolan_types::{GroupResource, LogicalClusterId, placement::OrdinalRange};

use super::*;

fn uid(text: &str) -> Uid {
    text.parse().unwrap()
}

fn deployment() -> (ObjectKey, Value) {
    let resource = GroupResource::new("apps", "deployments");
    let key =
        ObjectKey::namespaced(LogicalClusterId::ROOT, resource, "default".parse().unwrap(), "web".parse().unwrap());
    let template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i:2"}]}});
    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "uid": "up-d"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template}});
    (key, object)
}

/// The ReplicaSet downstream, as a Deployment controller makes it from our copy.
fn downstream(template: &Value, handed_on: bool, replicas: i64) -> Value {
    let mut template_downstream = template.clone();
    template_downstream["metadata"]["labels"]["pod-template-hash"] = json!("7c9f");
    template_downstream["metadata"]["labels"][annotations::DOWN_CLUSTER] = json!("root");
    template_downstream["spec"]["automountServiceAccountToken"] = json!(false);
    template_downstream["spec"]["dnsPolicy"] = json!("ClusterFirst");
    let mut set = json!({"metadata": {"name": "web-7c9f", "namespace": "default-x", "uid": "down-rs",
        "annotations": {"deployment.kubernetes.io/revision": "2"}}, "spec": {"replicas": replicas, "template": template_downstream}});
    if handed_on {
        object::set_annotation(&mut set, annotations::DOWN_TEMPLATE, Some(portolan_types::fingerprint(template)));
    }
    set
}

fn projected_replica_set(set: &Value, deployment: &Value, cluster: &str) -> Value {
    let (key, _) = self::deployment();
    let origin = ProjectionOrigin { name: cluster, uid: &uid(cluster) };
    replica_set(set, "default", ProjectionOwner { key: &key, object: deployment }, true, origin).unwrap()
}

#[test]
fn a_template_has_one_upstream_replica_set_despite_other_downstream_names() {
    let (_, deployment) = deployment();
    let template = deployment["spec"]["template"].clone();
    let (east, mut west) = (downstream(&template, true, 2), downstream(&template, true, 3));
    west["metadata"]["name"] = json!("web-other");
    let (east, west) =
        (projected_replica_set(&east, &deployment, "east"), projected_replica_set(&west, &deployment, "west"));
    assert_eq!(object::name(&east), object::name(&west));
    assert_eq!(east["spec"]["template"]["spec"], template["spec"], "as it is written upstream");
    let hash = &east["spec"]["selector"]["matchLabels"]["pod-template-hash"];
    assert_eq!(*hash, east["spec"]["template"]["metadata"]["labels"]["pod-template-hash"]);
    assert_eq!(object::name(&east), format!("web-{}", hash.as_str().unwrap()));
    assert_eq!(east["metadata"]["ownerReferences"][0]["uid"], "up-d");
    assert_eq!(object::annotation(&east, "deployment.kubernetes.io/revision"), Some("2"));

    let both = merge_put(Some(&east), west).unwrap();
    assert_eq!(both["spec"]["replicas"], 5, "shares add up");
    assert_eq!(ProjectionSource::on(&both, &uid("west")).unwrap().name, "web-other");
    let ProjectionRemoval::Changed(left) = merge_gone(&both, &uid("west")) else { panic!("it is still on east") };
    assert_eq!((&left["spec"]["replicas"], ProjectionSource::on(&left, &uid("west"))), (&json!(2), None));
    assert_eq!(merge_gone(&left, &uid("west")), ProjectionRemoval::Unchanged);
    assert_eq!(merge_gone(&left, &uid("east")), ProjectionRemoval::Removed);
}

#[test]
fn a_revision_brings_the_template_back_as_it_was_written_upstream() {
    let (key, mut set) = deployment();
    set["kind"] = json!("StatefulSet");
    let template = set["spec"]["template"].clone();
    let made = |template: &Value, number: i64| {
        let mut kept = downstream(template, true, 0);
        kept["data"] = json!({"spec": {"template": kept["spec"]["template"]}});
        kept["data"]["spec"]["template"]["$patch"] = json!("replace");
        kept["revision"] = number.into();
        kept["metadata"]["annotations"]["kubernetes.io/change-cause"] = json!("why");
        kept
    };
    let shown = |made: &Value, cluster: &str, set: &Value| {
        revision(
            made,
            "default",
            ProjectionOwner { key: &key, object: set },
            ProjectionOrigin { name: cluster, uid: &uid(cluster) },
        )
        .unwrap()
    };
    let mut wanted = template.clone();
    wanted["$patch"] = json!("replace");
    let east = shown(&made(&template, 1), "east", &set);
    assert_eq!(east["data"], json!({"spec": {"template": wanted}}));
    let hash = object::label(&east, "controller.kubernetes.io/hash").unwrap();
    assert_eq!((object::name(&east), &east["revision"]), (&*format!("web-{hash}"), &json!(1)));
    assert_eq!(object::annotation(&east, "kubernetes.io/change-cause"), Some("why"));

    set["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:3");
    let west = shown(&made(&template, 4), "west", &set);
    assert_eq!(object::name(&west), object::name(&east), "the same template");
    let both = merge_put(Some(&east), west).unwrap();
    assert_eq!((&both["data"], &both["revision"]), (&east["data"], &json!(4)));
    assert_eq!(PlacementRecord::of(&both).unwrap().clusters.len(), 2);
}

#[test]
fn an_older_template_is_shown_without_added_fields() {
    let (_, deployment) = deployment();
    let old = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    for handed_on in [true, false] {
        let set = projected_replica_set(&downstream(&old, handed_on, 0), &deployment, "east");
        let template = &set["spec"]["template"];
        assert_eq!(template["spec"]["containers"][0]["image"], "i:1");
        assert_eq!(template["metadata"]["labels"].as_object().unwrap().len(), 2, "app and the hash");
        assert_eq!(template["spec"].get("automountServiceAccountToken"), None);
    }
}

#[test]
fn pods_are_owned_by_upstream_objects() {
    let (_, deployment) = deployment();
    let set = projected_replica_set(&downstream(&deployment["spec"]["template"], true, 1), &deployment, "east");
    let (key, mut set_upstream) = (self::deployment().0, set.clone());
    object::metadata_mut(&mut set_upstream).insert("uid".into(), json!("up-rs"));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-7c9f-abcde", "namespace": "default-x", "uid": "down-p",
            "labels": {"app": "web", "pod-template-hash": "7c9f", "sync.portolan.dev/cluster": "root"},
            "ownerReferences": [{"uid": "down-rs", "controller": true}], "finalizers": ["x"], "managedFields": [{}]},
        "spec": {"nodeName": "n1", "volumes": [{"name": "kube-api-access-1", "projected": {}}, {"name": "v"}],
            "containers": [{"name": "c", "volumeMounts": [{"name": "kube-api-access-1"}, {"name": "v"}]}]},
        "status": {"phase": "Running"}});
    assert!(is_made_downstream(&pod, &uid("east")));
    let origin = ProjectionOrigin { name: "east", uid: &uid("east") };
    let shown =
        projected_object(&pod, "default", Some(ProjectionOwner { key: &key, object: &set_upstream }), origin).unwrap();
    let labels = json!({"app": "web", "pod-template-hash": object::label(&set, "pod-template-hash"), "portolan.dev/cluster": "east"});
    assert_eq!(shown["metadata"]["labels"], labels);
    assert_eq!(shown["metadata"]["ownerReferences"][0]["uid"], "up-rs");
    assert_eq!((shown["metadata"].get("finalizers"), shown["metadata"].get("uid")), (None, None));
    assert_eq!((&shown["spec"]["volumes"], &shown["spec"]["nodeName"]), (&json!([{"name": "v"}]), &json!("east")));
    assert_eq!(object::annotation(&shown, "portolan.dev/node"), Some("n1"), "the node there");
    assert_eq!(shown["spec"]["containers"][0]["volumeMounts"], json!([{"name": "v"}]));
    assert_eq!((&shown["status"]["phase"], object::namespace(&shown)), (&json!("Running"), "default"));
    assert!(
        PlacementRecord::of(&shown).unwrap().is_projected(),
        "a delete upstream is held until it is done downstream"
    );
    assert_eq!(ProjectionSource::on(&shown, &uid("east")).unwrap().uid, "down-p");
}

#[test]
fn a_projection_never_takes_over_an_existing_object() {
    let origin = |name: &'static str, uid: &'static Uid| ProjectionOrigin { name, uid };
    let (east, west) = (Box::leak(Box::new(uid("east"))), Box::leak(Box::new(uid("west"))));
    let pod = json!({"kind": "Pod", "metadata": {"name": "web-0"}});
    let from_east = projected_object(&pod, "default", None, origin("east", east)).unwrap();
    let from_west = projected_object(&pod, "default", None, origin("west", west)).unwrap();
    assert_eq!(merge_put(Some(&pod), from_east.clone()), None, "a user's own object");
    assert_eq!(merge_put(Some(&from_east), from_west), None, "another physical cluster's");
    let mut stored = from_east.clone();
    stored["metadata"]["uid"] = json!("upstream");
    assert_eq!(merge_put(Some(&stored), from_east).unwrap()["metadata"]["uid"], "upstream", "its own is updated");
}

#[test]
fn names_of_stateful_pods_get_a_suffix_only_if_clusters_repeat_ordinals() {
    let pod = json!({"metadata": {"name": "db-0"}});
    let copy = |name: &str| PlacedCopy {
        name: name.into(),
        uid: uid(name),
        phase: CopyPhase::Active,
        replicas: None,
        epoch: 1,
    };
    let both = || vec![copy("east"), copy("west")];
    let divided = BTreeMap::from([(uid("east"), OrdinalRange { first: 0, end: 2 })]);
    for (clusters, ordinals, expected) in [
        (vec![copy("east")], BTreeMap::new(), "db-0"),
        (both(), BTreeMap::new(), "db-0-east"),
        (both(), divided, "db-0"),
    ] {
        let mut set = json!({"kind": "StatefulSet", "metadata": {"name": "db"}});
        PlacementRecord { clusters, ordinals, ..PlacementRecord::default() }.write_to(&mut set);
        let (key, _) = deployment();
        let origin = ProjectionOrigin { name: "east", uid: &uid("east") };
        assert_eq!(shown_name(&pod, Some(ProjectionOwner { key: &key, object: &set }), origin), expected);
    }
}

#[test]
fn endpoints_are_on_the_node_that_stands_for_their_cluster() {
    let mut slice = json!({"kind": "EndpointSlice", "endpoints": [{"nodeName": "n1"}, {"addresses": ["10.0.0.1"]}]});
    name_node(&mut slice, "east");
    assert_eq!(slice["endpoints"], json!([{"nodeName": "east"}, {"addresses": ["10.0.0.1"]}]));
}
