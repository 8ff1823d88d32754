//! Merge rules for the counts of custom kinds, at the fields of their subresource `scale`.

use portolan_types::ScaleFields;
use serde_json::{Map, Value};

use super::CopyStatus;

/// Counts of pods beside the observed replicas, as custom kinds commonly name them. They are summed with them.
const COMMON: [&str; 5] =
    ["readyReplicas", "availableReplicas", "updatedReplicas", "currentReplicas", "unavailableReplicas"];

/// Returns the replicas that a copy has; all of them count.
pub(super) fn observed(scale: &ScaleFields, copy: &CopyStatus) -> i64 {
    scale.observed(&copy.status).unwrap_or(0)
}

/// Sets the counts of replicas: the sum where the copies share them, within `wanted` while shares overlap in a move;
/// else the least of the copies, each of which has all.
pub(super) fn set_counts(scale: &ScaleFields, wanted: i64, copies: &[CopyStatus], status: &mut Map<String, Value>) {
    let shares = copies.iter().filter_map(|copy| copy.replicas).reduce(i64::saturating_add);
    let worst = copies.iter().min_by_key(|copy| (observed(scale, copy), count_beside(scale, copy, COMMON[0])));
    let Some((part, field)) = scale.observed_in(status) else { return };
    let overlap = shares.is_some_and(|shares| shares > wanted);
    let counted: Vec<&CopyStatus> = match shares {
        Some(_) => copies.iter().collect(),
        None => worst.into_iter().collect(),
    };
    for name in std::iter::once(field).chain(COMMON.into_iter().filter(|name| *name != field)) {
        let counts = counted.iter().filter_map(|copy| count_beside(scale, copy, name));
        if let Some(sum) = counts.reduce(i64::saturating_add) {
            part.insert(name.to_owned(), if overlap { sum.min(wanted).into() } else { sum.into() });
        }
    }
}

/// Returns the number in the field `name` beside the observed replicas of a copy.
fn count_beside(scale: &ScaleFields, copy: &CopyStatus, name: &str) -> Option<i64> {
    let mut status = copy.status.as_object().cloned()?;
    let (part, _) = scale.observed_in(&mut status)?;
    part.get(name)?.as_i64()
}

/// Maps `observedGeneration` of the conditions of a copy to the generation of its upstream object: conditions about the
/// present state of the copy are about `stamp`, older ones about a generation before it.
pub fn map_generations(status: &mut Value, generation: i64, stamp: i64) {
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten();
    for observed in conditions.filter_map(|condition| condition.get_mut("observedGeneration")) {
        let is_current = observed.as_i64().is_some_and(|observed| observed >= generation);
        *observed = (if is_current { stamp } else { stamp.saturating_sub(1).max(0) }).into();
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::GroupKind;
    use serde_json::json;

    use super::{
        super::{StatusShape, merge_as},
        *,
    };

    fn copy(name: &str, replicas: Option<i64>, status: Value) -> CopyStatus {
        let uid = name.parse().unwrap();
        CopyStatus { stamp: 2, is_current: true, status, ..CopyStatus::unreported(name, uid, replicas) }
    }

    fn merged(copies: &[CopyStatus], is_scaled: bool) -> Value {
        let kind = GroupKind { group: "example.com".into(), kind: "Widget".into() };
        let scale = ScaleFields::new(".spec.workers", ".status.pods.total").unwrap();
        let shape = StatusShape { kind: &kind, scale: is_scaled.then_some(&scale) };
        let upstream = json!({"metadata": {"generation": 2}, "spec": {"workers": 5}, "status": {}});
        merge_as(shape, &upstream, copies)
    }

    #[test]
    fn a_generation_that_is_forged_there_stays_in_bounds() {
        let mut status = json!({"conditions": [{"observedGeneration": 1}]});
        map_generations(&mut status, 2, i64::MIN);
        assert_eq!(status["conditions"][0]["observedGeneration"], 0);
    }

    #[test]
    fn the_counts_of_custom_kinds() {
        let status = |total: i64, ready: i64| json!({"pods": {"total": total, "readyReplicas": ready}, "url": "u"});
        for (case, copies, expected) in [
            ("one copy as it is", vec![copy("east", None, status(5, 4))], status(5, 4)),
            (
                "shares add up",
                vec![copy("east", Some(3), status(3, 2)), copy("west", Some(2), status(2, 2))],
                status(5, 4),
            ),
            (
                "shares that overlap in a move stay within what is wanted",
                vec![copy("east", Some(5), status(5, 5)), copy("west", Some(5), status(4, 4))],
                status(5, 5),
            ),
            (
                "of copies that each have all, the least counts",
                vec![copy("east", None, status(5, 5)), copy("west", None, status(2, 2))],
                status(2, 2),
            ),
        ] {
            assert_eq!(merged(&copies, true), expected, "{case}");
        }
        let unscaled = merged(&[copy("east", None, status(1, 1)), copy("west", None, status(4, 4))], false);
        assert_eq!(unscaled, status(1, 1), "without a scale nothing is counted: the first of equals is shown");
    }

    #[test]
    fn conditions_of_several_copies_name_the_worst_physical_cluster() {
        let ready = |status: &str, message: &str| {
            json!({"observedGeneration": 7, "conditions": [
                {"type": "Ready", "status": status, "reason": "R", "message": message, "lastTransitionTime": "T"}]})
        };
        let one = merged(&[copy("east", None, ready("False", "no disk"))], true);
        assert_eq!(one["conditions"][0]["message"], "no disk");
        assert_eq!(one["observedGeneration"], 2, "that of the upstream object");
        let two =
            merged(&[copy("east", None, ready("True", "fine")), copy("west", None, ready("False", "no disk"))], true);
        let condition = &two["conditions"][0];
        assert_eq!((&condition["status"], &condition["message"]), (&json!("False"), &json!("west: no disk")));
    }

    #[test]
    fn a_number_at_an_unexpected_place_harms_nothing() {
        for status in [json!({"pods": "many"}), json!({"pods": {"total": "3"}}), json!({"pods": [1]}), json!({})] {
            let shares = [copy("east", Some(3), status.clone()), copy("west", Some(2), status.clone())];
            assert_eq!(merged(&shares, true), status);
        }
    }

    #[test]
    fn generations_in_conditions_are_those_of_the_upstream_object() {
        let condition = |observed: i64| json!({"type": "Ready", "observedGeneration": observed});
        let mut status = json!({"conditions": [condition(9), condition(8), {"type": "Plain"}]});
        map_generations(&mut status, 9, 4);
        assert_eq!(status, json!({"conditions": [condition(4), condition(3), {"type": "Plain"}]}));
        let mut none = json!({"conditions": "x"});
        map_generations(&mut none, 1, 1);
        assert_eq!(none, json!({"conditions": "x"}));
    }
}
