//! ControllerRevisions: the templates that a StatefulSet or a DaemonSet has had.

use portolan_controllers::{PlaneError, plane::PlaneObject};
use portolan_store::RangeScope;
use portolan_types::object;
use serde_json::{Value, json};

use super::children::{ChildKinds, annotations_to_hand_on, kind};
use crate::fields::{controller_ref, number, short_hash};

const KIND: (&str, &str) = ("apps", "ControllerRevision");

/// Stores the present template of `set` as its newest revision, and deletes the oldest beyond its
/// `revisionHistoryLimit`. Returns the hash of the template. Runs once per generation: it reads all objects of the set.
pub(super) async fn keep(family: &ChildKinds, set: &PlaneObject) -> Result<String, PlaneError> {
    let (uid, generation) = (object::meta_text(&set.object, "uid"), object::generation(&set.object));
    let known = || family.revisions.lock().expect("no code panics under this lock");
    if let Some((_, _, hash)) = known().get(&set.key).filter(|own| (own.0.as_str(), own.1) == (uid, generation)) {
        return Ok(hash.clone());
    }
    let hash = write(family, set).await?;
    known().insert(set.key.clone(), (uid.to_owned(), generation, hash.clone()));
    Ok(hash)
}

async fn write(family: &ChildKinds, set: &PlaneObject) -> Result<String, PlaneError> {
    let hash = short_hash(&set.object["spec"]["template"]);
    let name = format!("{}-{hash}", object::name(&set.object));
    let mut known = known_revisions(family, set).await?;
    known.sort_by_key(revision_of);
    let newest = known.last().map_or(0, revision_of);
    match known.iter().find(|known| *known.key.name == *name) {
        None => {
            let made = revision(&set.object, &name, &hash, newest + 1);
            family.plane.create(kind(&family.plane, KIND), set.key.cluster, made).await?;
        }
        Some(found) if revision_of(found) < newest => {
            let raise = |current: &mut Value| {
                current["revision"] = (newest + 1).into();
                true
            };
            family.plane.force(&found.key, raise).await?;
        }
        Some(_) => {}
    }
    let keep = usize::try_from(number(&set.object, "/spec/revisionHistoryLimit").unwrap_or(10)).unwrap_or(0);
    known.retain(|known| *known.key.name != *name);
    let spare = known.len().saturating_sub(keep);
    for old in known.iter().take(spare) {
        family.delete_as(KIND, old).await?;
    }
    Ok(hash)
}

async fn known_revisions(family: &ChildKinds, set: &PlaneObject) -> Result<Vec<PlaneObject>, PlaneError> {
    let uid = object::meta_text(&set.object, "uid").to_owned();
    let mut owned = family.plane.list(RangeScope::OwnedBy(set.key.cluster, uid)).await?;
    owned.retain(|found| &*found.key.resource.resource == "controllerrevisions");
    Ok(owned)
}

fn revision_of(found: &PlaneObject) -> i64 {
    number(&found.object, "/revision").unwrap_or(0)
}

fn revision(set: &Value, name: &str, hash: &str, number: i64) -> Value {
    let mut template = set["spec"]["template"].clone();
    let mut labels = template.pointer("/metadata/labels").cloned().unwrap_or_else(|| json!({}));
    labels["controller.kubernetes.io/hash"] = hash.into();
    template["$patch"] = "replace".into();
    json!({
        "apiVersion": "apps/v1", "kind": KIND.1, "revision": number, "data": {"spec": {"template": template}},
        "metadata": {
            "name": name, "namespace": object::namespace(set), "labels": labels,
            "annotations": annotations_to_hand_on(set),
            "ownerReferences": [controller_ref(set)],
        },
    })
}
