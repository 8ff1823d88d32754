//! Definitions of custom resources as they go to a physical cluster. Pure.

use portolan_types::{
    GroupResource, Uid, annotations, fingerprint, object,
    placement::{CopyIdentity, is_governing_group},
    upstream::SyncedDefinition,
};
use serde_json::{Map, Value, json};

use crate::{plan, transform};

/// Largest definition that is sent, in bytes of JSON. kube-apiserver has a similar limit for one object.
const MAX_BYTES: usize = 1024 * 1024;
/// Annotation with the approval of a definition in a group of Kubernetes. kube-apiserver refuses the definition without
/// it.
const APPROVAL: &str = "api-approved.kubernetes.io";

/// Step for one definition on a physical cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DefinitionStep {
    /// The definition is up to date.
    Keep,
    /// Creates the definition. The create fails if a definition of the name exists.
    Create(Value),
    /// Updates the definition by server-side apply, with the uid and resourceVersion that were read.
    Apply(Value),
    /// Refuses the definition, for this reason.
    Refuse(String),
}

/// Plans the step for a definition. `found` is the definition of the same name on the physical cluster.
pub(crate) fn plan_definition(
    wanted: &SyncedDefinition,
    physical: &Uid,
    syncer_epoch: u64,
    found: Option<&Value>,
) -> DefinitionStep {
    let mut body = match definition_copy(wanted, physical, syncer_epoch) {
        Ok(body) => body,
        Err(why) => return DefinitionStep::Refuse(why),
    };
    let Some(found) = found else { return DefinitionStep::Create(body) };
    let wanted_uid = object::uid(&wanted.object);
    match plan::copy_identity(found, physical) {
        None => {
            DefinitionStep::Refuse("a definition that Portolan did not put there is there, and stays as it is".into())
        }
        // The definition was recreated upstream. The old one downstream is removed when it has no instances.
        Some(identity) if Some(&identity.uid) != wanted_uid.as_ref() => {
            DefinitionStep::Refuse("that of an earlier definition of the name is still there".into())
        }
        Some(_) if object::is_deleting(found) => DefinitionStep::Refuse("it is being deleted there".into()),
        Some(identity) if identity.syncer_epoch > syncer_epoch => DefinitionStep::Keep,
        Some(_) => {
            let applied = |object: &Value| object::annotation(object, annotations::DOWN_APPLIED).map(str::to_owned);
            if applied(found) == applied(&body) && transform::covers(&found["spec"], &body["spec"]) {
                return DefinitionStep::Keep;
            }
            for key in ["uid", "resourceVersion"] {
                let read = object::meta_text(found, key).to_owned();
                object::metadata_mut(&mut body).insert(key.into(), Value::String(read));
            }
            DefinitionStep::Apply(body)
        }
    }
}

/// Returns the copy of the definition for a physical cluster.
///
/// # Errors
/// Fails with a sentence about the part that must not be synced: a cluster-scoped kind, a group that governs clusters,
/// a webhook.
fn definition_copy(wanted: &SyncedDefinition, physical: &Uid, syncer_epoch: u64) -> Result<Value, String> {
    let SyncedDefinition { cluster, object: crd } = wanted;
    let text = |pointer: &str| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (name, group) = (object::name(crd), text("/spec/group"));
    if name != format!("{}.{group}", text("/spec/names/plural")) || is_governing_group(group) || !group.contains('.') {
        return Err(format!("the group {group:?} is not one of custom kinds"));
    }
    if text("/spec/scope") != "Namespaced" {
        return Err("cluster-scoped kinds do not go to physical clusters".into());
    }
    if text("/spec/conversion/strategy") == "Webhook" {
        return Err("its versions are converted by a webhook, which is not there".into());
    }
    let identity = CopyIdentity {
        cluster: cluster.to_string(),
        uid: object::uid(crd).ok_or("it has no uid")?,
        physical: physical.clone(),
        namespace: String::new(),
        name: name.to_owned(),
        generation: object::generation(crd),
        epoch: 0,
        syncer_epoch,
    };
    let mut notes = Map::new();
    if let Some(approval) = object::annotation(crd, APPROVAL) {
        notes.insert(APPROVAL.into(), approval.into());
    }
    let spec = &crd["spec"];
    notes.insert(annotations::DOWN_APPLIED.into(), fingerprint(&json!([spec, notes])).into());
    let identity = serde_json::to_string(&identity).expect("strings and numbers serialize");
    notes.insert(annotations::DOWN_IDENTITY.into(), identity.into());
    let body = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name, "labels": {(annotations::DOWN_CLUSTER): cluster.to_string()}, "annotations": notes},
        "spec": spec,
    });
    if body.to_string().len() > MAX_BYTES {
        return Err(format!("it is larger than {MAX_BYTES} bytes"));
    }
    Ok(body)
}

/// Returns the path of the definition of a resource, or of all.
pub(crate) fn definition_path(name: Option<&str>) -> String {
    let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    name.map_or_else(|| all.to_owned(), |name| format!("{all}/{}", crate::client::encode(name)))
}

/// Returns the path of all objects of the kind that a definition defines, in a version that is served.
pub(crate) fn instances_path(definition: &Value) -> Option<String> {
    let text = |pointer: &str| definition.pointer(pointer).and_then(Value::as_str);
    let (group, plural) = (text("/spec/group")?, text("/spec/names/plural")?);
    let mut versions = definition.pointer("/spec/versions")?.as_array()?.iter();
    let version = versions.find(|version| version["served"] == true)?["name"].as_str()?;
    let encode = crate::client::encode;
    Some(format!("/apis/{}/{}/{}", encode(group), encode(version), encode(plural)))
}

/// Returns true for a resource that only a definition, or an aggregated API, can serve.
pub(crate) fn has_definition(resource: &GroupResource) -> bool {
    resource.group.contains('.') && !is_governing_group(&resource.group)
}

#[cfg(test)]
mod tests {
    use portolan_types::LogicalClusterId;

    use super::*;

    fn definition(change: impl FnOnce(&mut Value)) -> SyncedDefinition {
        let mut object = json!({
            "metadata": {"name": "widgets.example.com", "uid": "crd-1", "generation": 2, "labels": {"own": "x"},
                "finalizers": ["customresourcecleanup.apiextensions.k8s.io"], "annotations": {"note": "y"}},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
                "conversion": {"strategy": "None"}, "versions": [{"name": "v1", "served": true, "storage": true}]},
            "status": {"storedVersions": ["v1"]},
        });
        change(&mut object);
        SyncedDefinition { cluster: LogicalClusterId::new(7), object }
    }

    fn step(wanted: &SyncedDefinition, found: Option<&Value>) -> DefinitionStep {
        plan_definition(wanted, &"east".parse().unwrap(), 3, found)
    }

    /// The definition as the physical cluster has it after its creation.
    fn created(wanted: &SyncedDefinition) -> Value {
        let DefinitionStep::Create(mut found) = step(wanted, None) else { panic!("it is created") };
        let metadata = object::metadata_mut(&mut found);
        metadata.insert("uid".into(), "down-1".into());
        metadata.insert("resourceVersion".into(), "5".into());
        found["spec"]["names"]["listKind"] = "WidgetList".into();
        found
    }

    #[test]
    fn a_definition_goes_downstream_without_upstream_fields() {
        let found = created(&definition(|_| {}));
        assert_eq!(
            found["metadata"]["labels"],
            json!({"sync.portolan.dev/cluster": LogicalClusterId::new(7).to_string()})
        );
        let notes: Vec<&String> = found["metadata"]["annotations"].as_object().unwrap().keys().collect();
        assert_eq!(notes, ["sync.portolan.dev/applied", "sync.portolan.dev/identity"]);
        assert!(found["metadata"].get("finalizers").is_none() && found.get("status").is_none());
        assert_eq!(instances_path(&found).unwrap(), "/apis/example.com/v1/widgets");
    }

    #[test]
    fn phases_of_a_definition() {
        let plain = definition(|_| {});
        let ours = created(&plain);
        let change = |change: &dyn Fn(&mut Value)| {
            let mut found = ours.clone();
            change(&mut found);
            found
        };
        let newer = definition(|crd| crd["spec"]["versions"][0]["schema"] = json!({"x": 1}));
        let remade = definition(|crd| crd["metadata"]["uid"] = "crd-2".into());
        let foreign = change(&|found| drop(object::metadata_mut(found).remove("annotations")));
        let drifted = change(&|found| found["spec"]["names"]["kind"] = "Gadget".into());
        for (case, wanted, found, expected) in [
            ("it is there", &plain, &ours, "keep"),
            ("it has changed upstream", &newer, &ours, "apply"),
            ("it was changed there", &plain, &drifted, "apply"),
            ("a foreign one is there", &plain, &foreign, "a definition that Portolan did not put there is there"),
            ("that of an earlier one is there", &remade, &ours, "that of an earlier definition"),
        ] {
            let word = match step(wanted, Some(found)) {
                DefinitionStep::Keep => "keep".to_owned(),
                DefinitionStep::Apply(body) => {
                    assert_eq!(
                        (&body["metadata"]["uid"], &body["metadata"]["resourceVersion"]),
                        (&json!("down-1"), &json!("5"))
                    );
                    "apply".to_owned()
                }
                DefinitionStep::Refuse(why) => why,
                DefinitionStep::Create(_) => "create".to_owned(),
            };
            assert!(word.starts_with(expected), "{case}: {word}");
        }
    }

    #[test]
    fn objects_beyond_their_namespace_are_refused() {
        for (case, wanted) in [
            ("a cluster-scoped kind", definition(|crd| crd["spec"]["scope"] = "Cluster".into())),
            ("a webhook", definition(|crd| crd["spec"]["conversion"] = json!({"strategy": "Webhook"}))),
            (
                "a group that governs",
                definition(|crd| {
                    crd["spec"]["group"] = "rbac.authorization.k8s.io".into();
                    crd["metadata"]["name"] = "widgets.rbac.authorization.k8s.io".into();
                }),
            ),
            ("another name", definition(|crd| crd["metadata"]["name"] = "gadgets.example.com".into())),
            ("too much", definition(|crd| crd["spec"]["x"] = "y".repeat(MAX_BYTES).into())),
        ] {
            assert!(matches!(step(&wanted, None), DefinitionStep::Refuse(_)), "{case}");
        }
    }
}
