//! Hash of a plan. Rows are hashed by the names of physical clusters, so that the plan of an object that does not exist
//! yet has the hash of the plan of its creation.

use portolan_types::{ObjectKey, fingerprint};
use serde_json::{Value, json};

use super::rows::{PlanRow, PlannedPlace, RefusedRow};

/// Rows whose hashes are hashed together: a plan of many rows needs no tree of all of them.
const CHUNK: usize = 1_000;

/// Returns the hash of moves, splits and refusals, each sorted by key.
pub(super) fn hash_of(moves: &[PlanRow], splits: &[PlanRow], refused: &[RefusedRow]) -> String {
    let of_rows = |rows: &[PlanRow]| chunks(rows, &|row| json!([object(&row.key), places(&row.from), places(&row.to)]));
    let of_refused = chunks(refused, &|row| json!([object(&row.key), places(&row.stays), row.reason]));
    fingerprint(&json!([of_rows(moves), of_rows(splits), of_refused]))
}

fn chunks<T>(rows: &[T], value: &dyn Fn(&T) -> Value) -> Vec<String> {
    rows.chunks(CHUNK).map(|chunk| fingerprint(&Value::Array(chunk.iter().map(value).collect()))).collect()
}

fn object(key: &ObjectKey) -> String {
    key.to_string()
}

fn places(places: &[PlannedPlace]) -> Value {
    places.iter().map(|place| json!([place.name, place.replicas])).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_types::{GroupResource, GroupVersionKind, LogicalClusterId};

    use super::*;

    fn key(name: &str) -> ObjectKey {
        let resource = GroupResource::new("apps", "deployments");
        ObjectKey::namespaced(LogicalClusterId::ROOT, resource, "shop".parse().unwrap(), name.parse().unwrap())
    }

    fn row(name: &str, to: &str, replicas: i64) -> PlanRow {
        let place = |on: &str| PlannedPlace {
            name: on.into(),
            uid: format!("uid-{on}").parse().unwrap(),
            replicas: Some(replicas),
        };
        PlanRow {
            key: key(name),
            kind: Arc::new(GroupVersionKind::new("apps", "v1", "Deployment")),
            from: vec![place("east")],
            to: vec![place(to)],
            reason: format!("because of {name}"),
            follows: false,
        }
    }

    #[test]
    fn only_object_events_count() {
        let refused = |reason, message: &str| RefusedRow {
            key: key("r"),
            kind: Arc::new(GroupVersionKind::new("apps", "v1", "Deployment")),
            stays: Vec::new(),
            reason,
            message: message.into(),
        };
        let plan = |row: PlanRow| hash_of(&[row], &[], &[refused("NoClusterFits", "0/1 fit")]);
        let same = plan(row("a", "west", 2));
        assert_eq!(same.len(), 20);
        assert_eq!(same, plan(PlanRow { reason: "by pin".into(), ..row("a", "west", 2) }), "not the reason");
        assert_eq!(same, hash_of(&[row("a", "west", 2)], &[], &[refused("NoClusterFits", "0/2 fit")]), "nor the words");
        for (case, other) in [
            ("another object", plan(row("b", "west", 2))),
            ("another physical cluster", plan(row("a", "north", 2))),
            ("other replicas", plan(row("a", "west", 3))),
            ("another refusal", hash_of(&[row("a", "west", 2)], &[], &[refused("MoveRefused", "0/1 fit")])),
            ("a split", hash_of(&[], &[row("a", "west", 2)], &[refused("NoClusterFits", "0/1 fit")])),
            ("nothing", hash_of(&[], &[], &[])),
        ] {
            assert_ne!(same, other, "{case}");
        }
        let many: Vec<_> = (0..2 * CHUNK + 1).map(|n| row(&format!("a{n}"), "west", 1)).collect();
        assert_ne!(hash_of(&many, &[], &[]), hash_of(&many[1..], &[], &[]));
    }
}
