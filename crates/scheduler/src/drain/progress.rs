//! Progress of one moving object: the condition that it waits for, and the end of the move.

use std::collections::BTreeSet;

use portolan_types::{
    Uid,
    placement::{DrainMark, DrainStage, PlacementRecord, PlacementStatus, RecordedCopy, StatusCondition},
};
use serde_json::Value;

use crate::drain::part;

/// Reason of a copy on an unreachable physical cluster, as the syncer reports it.
const UNREACHABLE: &str = "Unreachable";
/// Seconds for which a move that does not begin keeps its slot.
const GIVE_UP_AFTER: i64 = 10;

/// Progress of an object under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MoveProgress {
    /// Replicas that were available when the move began and are not now.
    pub(super) unavailable: i64,
    /// Replicas that count against the budget: those that are unavailable, or will be soon.
    pub(super) reserved: i64,
    /// True if the stage has ended.
    pub(super) is_settled: bool,
    /// Reason in one word for which the move does not begin or was taken back, if that is so.
    pub(super) refusal: Option<String>,
    /// Sentence about the condition that it waits for.
    pub(super) message: String,
}

/// Returns the progress of an object with a mark. `replicas` is what its spec asks for, if it counts them.
pub(super) fn progress(
    record: &PlacementRecord,
    mark: &DrainMark,
    replicas: Option<i64>,
    placement: Option<&Value>,
    now: i64,
) -> MoveProgress {
    let status: PlacementStatus = placement.map(|placement| part(placement, "status")).unwrap_or_default();
    let placed = status.conditions.iter().find(|condition| condition.kind == "Placed");
    // Of a kind that counts pods by nodes, other physical clusters may want fewer.
    let wanted = mark.available.min(replicas.unwrap_or_else(|| desired(record, &status)));
    let ends = |placed: &StatusCondition| matches!(&*placed.reason, "Stopped" | "Finished");
    let has_ended = record.clusters.is_empty() && placed.is_some_and(ends);
    let unavailable = if has_ended { 0 } else { (wanted - available(record, &status)).max(0) };
    let is_there = match mark.stage {
        DrainStage::Leaving => record.clusters.iter().all(|copy| !mark.from.contains(&copy.uid)),
        DrainStage::Returning => record.clusters.len() == mark.before.len() && is_split(record, &mark.before),
        DrainStage::Left | DrainStage::Returned => true,
    };
    let moves_on = placed.is_some_and(|placed| placed.reason == "Moving");
    let is_placed = is_there && unavailable == 0 && !moves_on && record.active().next().is_some();
    let is_settled = is_placed || has_ended;
    let has_begun = record.clusters.len() != mark.before.len() || !is_split(record, &mark.before);
    let is_old = now - mark.since >= GIVE_UP_AFTER;
    let refusal = placed.filter(|_| !has_begun && is_old && !moves_on).map(|placed| placed.reason.clone());
    let is_taken_back = record.moving.as_ref().is_some_and(|attempt| attempt.is_returned);
    let refusal = if is_taken_back { Some("TimedOut".to_owned()) } else { refusal };
    let message = match (is_settled, placed) {
        (true, _) | (_, None) => String::new(),
        (false, Some(_)) if !status.waiting_for.is_empty() => status.waiting_for.clone(),
        (false, Some(_)) if is_there => format!("waiting for {unavailable} more replicas to be available"),
        (false, Some(placed)) => placed.message.clone(),
    };
    MoveProgress {
        unavailable,
        reserved: if is_settled { 0 } else { unavailable.max(mark.downtime) },
        is_settled,
        refusal: refusal.filter(|_| mark.stage == DrainStage::Leaving),
        message,
    }
}

/// Returns the available replicas of the active copies. Those that cannot be seen do not count.
pub(super) fn available(record: &PlacementRecord, status: &PlacementStatus) -> i64 {
    record.active().map(|copy| available_on(&copy.uid, status)).sum()
}

/// Returns the available replicas of the active copies on some physical clusters.
pub(super) fn available_among(record: &PlacementRecord, status: &PlacementStatus, among: &BTreeSet<Uid>) -> i64 {
    let copies = record.active().filter(|copy| among.contains(&copy.uid));
    copies.map(|copy| available_on(&copy.uid, status)).sum()
}

/// Returns the replicas that the active copies should have, as their physical clusters count them.
fn desired(record: &PlacementRecord, status: &PlacementStatus) -> i64 {
    let shown = |uid: &Uid| status.clusters.iter().find(|shown| shown.uid == uid.as_str());
    record.active().map(|copy| shown(&copy.uid).and_then(|shown| shown.desired).unwrap_or(1)).sum()
}

fn available_on(uid: &Uid, status: &PlacementStatus) -> i64 {
    let shown = status.clusters.iter().find(|shown| shown.uid == uid.as_str() && shown.reason != UNREACHABLE);
    shown.map_or(0, |shown| shown.available.unwrap_or(shown.ready))
}

/// Returns true if the active copies of a record are a split.
pub(super) fn is_split(record: &PlacementRecord, split: &[RecordedCopy]) -> bool {
    let sorted = |mut copies: Vec<RecordedCopy>| {
        copies.sort_by(|a, b| a.uid.cmp(&b.uid));
        copies.into_iter().map(|copy| (copy.uid, copy.replicas)).collect::<Vec<_>>()
    };
    sorted(record.split()) == sorted(split.to_vec())
}

#[cfg(test)]
mod tests {
    use portolan_types::placement::{CopyPhase, PlacedCopy};
    use serde_json::json;

    use super::*;

    fn uid(name: &str) -> Uid {
        name.parse().unwrap()
    }

    /// `east west-`: active on east, leaving west.
    fn record(words: &str) -> PlacementRecord {
        let copy = |word: &str| {
            let name = word.trim_end_matches('-');
            let phase = if word.ends_with('-') { CopyPhase::Leaving } else { CopyPhase::Active };
            PlacedCopy { name: name.into(), uid: uid(name), phase, replicas: None, epoch: 1 }
        };
        let clusters = words.split_whitespace().map(copy).collect();
        PlacementRecord { clusters, ..PlacementRecord::default() }
    }

    fn mark(stage: DrainStage, downtime: i64) -> DrainMark {
        DrainMark {
            cluster: "root".into(),
            home: "root".into(),
            name: "d".into(),
            uid: uid("d"),
            stage,
            from: vec![uid("west")],
            force: false,
            since: 100,
            available: 3,
            downtime,
            before: record("west").split(),
            divided_by: None,
            after: Vec::new(),
            earlier: None,
        }
    }

    fn placement(reason: &str, ready: &[(&str, i64)]) -> Value {
        let clusters: Vec<Value> =
            ready.iter().map(|(on, ready)| json!({"name": on, "uid": on, "ready": ready})).collect();
        json!({"status": {"clusters": clusters, "conditions": [{"type": "Placed", "reason": reason, "message": "m"}]}})
    }

    #[test]
    fn a_move_settles_once_all_that_was_available_is_again() {
        let (leaving, returning) = (DrainStage::Leaving, DrainStage::Returning);
        for (case, stage, downtime, words, seen, unavailable, reserved, settled) in [
            ("it has not begun", leaving, 0, "west", placement("Placed", &[("west", 3)]), 0, 0, false),
            ("both copies", leaving, 0, "east west", placement("Moving", &[("east", 1), ("west", 3)]), 0, 0, false),
            (
                "the old copy goes",
                leaving,
                0,
                "east west-",
                placement("Placed", &[("east", 3), ("west", 3)]),
                0,
                0,
                false,
            ),
            ("it is gone", leaving, 0, "east", placement("Placed", &[("east", 3)]), 0, 0, true),
            ("too few are available", leaving, 0, "east", placement("Placed", &[("east", 1)]), 2, 2, false),
            ("one at a time, before", leaving, 3, "west", placement("Placed", &[("west", 3)]), 0, 3, false),
            ("one at a time, between", leaving, 3, "", placement("Moving", &[]), 3, 3, false),
            ("one at a time, after", leaving, 3, "east", placement("Placed", &[("east", 3)]), 0, 0, true),
            (
                "unreachable",
                leaving,
                0,
                "east",
                json!({"status": {"clusters": [
                {"uid": "east", "ready": 3, "reason": "Unreachable"}]}}),
                3,
                3,
                false,
            ),
            ("back", returning, 0, "west", placement("Placed", &[("west", 3)]), 0, 0, true),
            ("not back yet", returning, 0, "east- west", placement("Placed", &[("west", 3)]), 0, 0, false),
        ] {
            let found = progress(&record(words), &mark(stage, downtime), Some(3), Some(&seen), 101);
            assert_eq!(
                (found.unavailable, found.reserved, found.is_settled),
                (unavailable, reserved, settled),
                "{case}"
            );
            assert_eq!(found.refusal, None, "{case}");
        }
    }

    #[test]
    fn a_move_that_does_not_begin_gives_up_its_slot() {
        let refused = placement("QuotaExceeded", &[("west", 3)]);
        let at = |now, words: &str, seen: &Value| {
            progress(&record(words), &mark(DrainStage::Leaving, 0), Some(3), Some(seen), now).refusal
        };
        assert_eq!(at(105, "west", &refused), None, "it may not have been tried yet");
        assert_eq!(at(110, "west", &refused), Some("QuotaExceeded".into()));
        assert_eq!(at(110, "east west", &refused), None, "it has begun");
    }

    #[test]
    fn fewer_replicas_are_enough_once_fewer_are_wanted() {
        let seen = placement("Placed", &[("east", 1)]);
        let found = progress(&record("east"), &mark(DrainStage::Leaving, 0), Some(1), Some(&seen), 101);
        assert_eq!((found.unavailable, found.is_settled), (0, true));
    }
}
