//! Claims of one name that several physical clusters have made for a StatefulSet: one is shown, and all are accounted
//! for.

use portolan_types::{
    Uid, annotations, object,
    placement::{PlacementRecord, ProjectionSource},
};
use serde_json::Value;

/// Returns true for a claim.
pub(super) fn is_claim(object: &Value) -> bool {
    object["kind"] == "PersistentVolumeClaim"
}

/// Notes that a pod on `physical` uses the claim.
pub fn mark_used(claim: &mut Value, physical: &Uid) {
    let mut sources = ProjectionSource::all(claim);
    sources.entry(physical.clone()).and_modify(|source| source.is_used = true);
    ProjectionSource::write_all(&sources, claim);
}

/// Returns true if the claim of `physical` should be shown instead of another one, which no pod uses or which is gone.
pub fn is_next_to_show(shown: &Value, physical: &Uid) -> bool {
    let record = PlacementRecord::of(shown).filter(|_| is_claim(shown)).unwrap_or_default();
    let by = shown_cluster(shown, &record);
    let sources = ProjectionSource::all(shown);
    let is_used = |uid: &Uid| sources.get(uid).is_some_and(|source| source.is_used);
    let is_first = sources.keys().next() == Some(physical);
    match by {
        Some(by) if by == *physical => false,
        Some(by) => is_used(physical) && !is_used(&by),
        None => record.on(physical).is_some() && (is_used(physical) || is_first),
    }
}

/// Returns true if `put`, the claim of `physical`, replaces the stored claim.
pub(super) fn is_replaced_by(stored: &Value, put: &Value, physical: &Uid) -> bool {
    let mut known = ProjectionSource::all(stored);
    known.extend(ProjectionSource::all(put));
    let mut seen = stored.clone();
    ProjectionSource::write_all(&known, &mut seen);
    let record = PlacementRecord::of(stored).unwrap_or_default();
    match shown_cluster(stored, &record) {
        Some(by) => by == *physical || is_next_to_show(&seen, physical),
        None => true,
    }
}

/// The physical cluster whose claim is shown, as long as it has one.
fn shown_cluster(claim: &Value, record: &PlacementRecord) -> Option<Uid> {
    let name = object::label(claim, annotations::PROJECTED_FROM)?;
    record.clusters.iter().find(|copy| copy.name == name).map(|copy| copy.uid.clone())
}

#[cfg(test)]
mod tests {
    use portolan_types::placement::CopyPhase;
    use serde_json::json;

    use super::*;
    use crate::project::{ProjectionOrigin, ProjectionRemoval, merge_gone, merge_put, projected_object};

    fn uid(name: &str) -> Uid {
        name.parse().unwrap()
    }

    fn claim(cluster: &str, is_used: bool) -> Value {
        let downstream = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data-db-0", "namespace": "shop-x",
            "uid": format!("down-{cluster}"), "labels": {(annotations::DOWN_CLUSTER): "7"}}, "spec": {"volumeName": cluster}});
        let uid = uid(cluster);
        let mut shown =
            projected_object(&downstream, "shop", None, ProjectionOrigin { name: cluster, uid: &uid }).unwrap();
        if is_used {
            mark_used(&mut shown, &uid);
        }
        shown
    }

    fn volume(claim: &Value) -> &str {
        claim["spec"]["volumeName"].as_str().unwrap()
    }

    #[test]
    fn a_claim_shows_the_physical_cluster_that_runs_its_pod_and_all_are_accounted_for() {
        let east = claim("east", true);
        let both = merge_put(Some(&east), claim("west", true)).unwrap();
        assert_eq!(volume(&both), "east", "while a pod uses it, it stays");
        assert!(!is_next_to_show(&both, &uid("west")));
        let released = merge_put(Some(&both), claim("east", false)).unwrap();
        assert_eq!(volume(&released), "east");
        assert!(is_next_to_show(&released, &uid("west")) && !is_next_to_show(&released, &uid("east")));
        let moved = merge_put(Some(&released), claim("west", true)).unwrap();
        assert_eq!((volume(&moved), object::label(&moved, annotations::PROJECTED_FROM)), ("west", Some("west")));
        let record = PlacementRecord::of(&moved).unwrap();
        assert!(record.clusters.iter().all(|copy| copy.phase == CopyPhase::Projected) && record.clusters.len() == 2);
        assert_eq!(
            ProjectionSource::on(&moved, &uid("east")).unwrap().uid,
            "down-east",
            "the old one is accounted for"
        );
        let ProjectionRemoval::Changed(left) = merge_gone(&moved, &uid("west")) else { panic!("the other is there") };
        assert!(is_next_to_show(&left, &uid("east")), "the one that is left is shown");
        assert_eq!(volume(&merge_put(Some(&left), claim("east", false)).unwrap()), "east");
        assert_eq!(
            merge_gone(&merge_put(Some(&left), claim("east", false)).unwrap(), &uid("east")),
            ProjectionRemoval::Removed
        );
    }
}
