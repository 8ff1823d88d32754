use portolan_types::GroupVersionKind;

use super::*;

fn table() -> &'static KindTable {
    KindTable::builtin()
}

fn field(type_name: &str, name: &str) -> &'static Field {
    let id = table().type_named(type_name).unwrap_or_else(|| panic!("{type_name} is in the table"));
    table().get(id).field(name).unwrap_or_else(|| panic!("{type_name}.{name} is in the table"))
}

#[test]
fn kinds_are_found_by_kind_and_by_resource() {
    let by_kind = table().kind(&GroupVersionKind::new("apps", "v1", "Deployment")).unwrap();
    let by_resource = table().resource("apps", "v1", "deployments").unwrap();
    assert_eq!(by_kind.gvk, by_resource.gvk);
    assert_eq!(&*by_kind.short_names[0], "deploy");
    assert!(by_kind.namespaced && by_kind.served && by_kind.has_verb("deletecollection"));
    let scale = by_kind.subresource("scale").unwrap();
    assert_eq!(scale.gvk, GroupVersionKind::new("autoscaling", "v1", "Scale"));
    assert!(table().resource("apps", "v1", "pods").is_none());
}

#[test]
fn events_are_stored_as_core_events() {
    let events = table().resource("events.k8s.io", "v1", "events").unwrap();
    assert_eq!((&*events.storage.group, &*events.storage.version), ("", "v1"));
    let scaler = table().resource("autoscaling", "v1", "horizontalpodautoscalers").unwrap();
    assert_eq!(&*scaler.storage.version, "v2");
}

#[test]
fn options_have_a_type_under_any_group_version() {
    let options = table().object_type("apps", "v1", "DeleteOptions").unwrap();
    assert_eq!(&*table().get(options).name, "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
    assert!(table().object_type("apps", "v1", "Nothing").is_none());
    for (group, version, kind) in
        [("", "v1", "PodList"), ("policy", "v1", "Eviction"), ("autoscaling", "v1", "Scale"), ("", "v1", "Status")]
    {
        assert!(table().object_type(group, version, kind).is_some(), "{kind}");
    }
}

#[test]
fn fields_carry_the_properties_of_the_go_types() {
    let ports = field("io.k8s.api.core.v1.Container", "ports");
    assert_eq!(ports.list, ListType::Map(["containerPort".into(), "protocol".into()].into()));
    assert_eq!((ports.number, ports.merge_key.as_deref(), ports.patch.merge), (6, Some("containerPort"), true));
    let replicas = field("io.k8s.api.apps.v1.DeploymentSpec", "replicas");
    assert!(replicas.pointer && replicas.omitempty && !replicas.required);
    assert_eq!(replicas.kind, FieldKind::Scalar(Scalar::Int32));
    let limits = field("io.k8s.api.core.v1.ResourceRequirements", "limits");
    assert_eq!(limits.kind, FieldKind::Map(Box::new(FieldKind::Special(Special::Quantity))));
    let volumes = field("io.k8s.api.core.v1.PodSpec", "volumes");
    assert!(volumes.patch.merge && volumes.patch.retain_keys);
    let metadata = field("io.k8s.api.core.v1.Pod", "metadata");
    assert_eq!(metadata.trivial_default(), Some(serde_json::json!({})));
    assert_eq!(field("io.k8s.api.core.v1.Container", "name").trivial_default(), Some(serde_json::json!("")));
    assert_eq!(&*field("io.k8s.api.core.v1.ContainerPort", "protocol").values[1], "TCP");
}

#[test]
fn inlined_messages_are_flat_in_json_and_nested_on_the_wire() {
    let volume = table().get(table().type_named("io.k8s.api.core.v1.Volume").unwrap());
    assert!(volume.field("configMap").is_some());
    let Some(WireTarget::Inline(schema)) = volume.on_wire(2) else { panic!("the source is inlined") };
    assert_eq!(&*table().get(schema).name, "io.k8s.api.core.v1.VolumeSource");
    let pod = table().get(table().type_named("io.k8s.api.core.v1.Pod").unwrap());
    assert_eq!(pod.field("apiVersion").unwrap().number, 0);
    assert!(pod.on_wire(0).is_none());
}

#[test]
fn every_kind_has_types_for_itself_its_list_and_its_subresources() {
    for kind in table().kinds() {
        let known = |gvk: &GroupVersionKind| table().object_type(&gvk.group, &gvk.version, &gvk.kind).is_some();
        assert!(known(&kind.gvk), "{}", kind.gvk);
        if let Some(list) = &kind.list_kind {
            assert!(known(&kind.group_version().kind(list.clone())), "{list}");
        }
        for sub in &kind.subresources {
            assert!(known(&sub.gvk), "{}/{} {}", kind.resource, sub.name, sub.gvk);
        }
        assert!(kind.verbs.is_sorted(), "{}", kind.gvk);
    }
}

#[test]
fn a_table_laid_over_another_answers_for_both() {
    let mut builder = TableBuilder::over(table());
    let meta = builder.type_named("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap();
    let schema = builder
        .add_type(Type::new(
            "dev.example.v1.Widget",
            [Field::new("spec", FieldKind::Special(Special::Any)), Field::new("metadata", FieldKind::Message(meta))],
        ))
        .unwrap();
    let pod = table().resource("", "v1", "pods").unwrap();
    let gvk = GroupVersionKind::new("example.dev", "v1", "Widget");
    builder.add_kind(Kind { gvk: gvk.clone(), schema, resource: "widgets".into(), ..Kind::clone(pod) });
    let both = builder.finish();
    assert_eq!(both.get(schema).field("metadata").unwrap().kind.message(), Some(meta));
    assert_eq!(&*both.get(meta).name, "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
    assert_eq!(both.type_named("dev.example.v1.Widget"), Some(schema));
    assert_eq!(both.object_type("example.dev", "v1", "Widget"), Some(schema));
    assert!(both.resource("", "v1", "pods").is_some() && both.kind(&gvk).is_some());
    assert_eq!(both.kinds().count(), 1);
}
