//! What a report makes of the `.status` of a `PhysicalCluster`.

use portolan_store::{Expect, StoreError, Transaction, Write};
use portolan_types::{
    LogicalClusterId, ObjectKey, Record, Seams, Uid, annotations,
    note::Note,
    object,
    placement::{Condition, PhysicalClusterStatus},
    seams::seconds_text,
    upstream::{ClusterReport, UpstreamError, public_detail},
};
use serde_json::Value;

use super::{StoreUpstream, failed, store_failed};

/// Type of the condition that says that deletions are held back.
pub(crate) const DELETIONS_HELD: &str = "DeletionsHeld";
/// Type of the condition that says that copies of a registration that is gone are there.
const LEFT_BEHIND: &str = "LeftBehind";
const FOREIGN_SYNCER: &str = "ForeignSyncer";
const NAMESPACE_CONFLICTS: &str = "NamespaceConflicts";
const IN_THE_WAY: &str = "NamespaceInTheWay";

pub(super) async fn write(
    upstream: &StoreUpstream,
    physical: &Uid,
    report: &ClusterReport,
) -> Result<(), UpstreamError> {
    let Some(key) = upstream.registered(physical) else { return Ok(()) };
    let Some((mut current, revision)) = upstream.read(&key).await? else { return Ok(()) };
    if object::uid(&current).as_ref() != Some(physical) {
        return Ok(());
    }
    let now = seconds_text(upstream.plane.seams().clock.now());
    let before: PhysicalClusterStatus =
        current.get("status").and_then(|s| serde_json::from_value(s.clone()).ok()).unwrap_or_default();
    let after = status(&before, report, &now);
    let mut txn = Transaction::default();
    let mut told: Vec<Write> = conflicts_told(upstream, &key, &current, (&before, report)).await?.into_iter().collect();
    if after != before {
        let details = administrators_detail(&key, report);
        told.extend(notes(upstream.plane.seams(), &key, &current, (&before, &after, details)));
        current["status"] = serde_json::to_value(after).map_err(|error| failed(&error))?;
        txn.writes.push(Write { key, expect: Expect::At(revision), record: Some(Record::of(&current)) });
    }
    upstream.commit_noting(txn, told).await
}

/// The Event that names the namespaces in the way, for those who care for the physical cluster: it is in the workspace that
/// this is registered in, while the condition is read by all that may use it. `None` when there is nothing new to tell.
async fn conflicts_told(
    upstream: &StoreUpstream,
    key: &ObjectKey,
    physical: &Value,
    (before, report): (&PhysicalClusterStatus, &ClusterReport),
) -> Result<Option<Write>, UpstreamError> {
    let all = &report.namespace_conflicts;
    if all.is_empty() {
        return Ok(None);
    }
    let named: Vec<_> = all.iter().take(MAX_NAMED).map(String::as_str).collect();
    let more = if all.len() > MAX_NAMED { format!("; and {} more", all.len() - MAX_NAMED) } else { String::new() };
    let message = format!("{}{more}", named.join("; "));
    let (component, reason) = ("portolan-syncer", IN_THE_WAY);
    let name = format!("syncer-{}", reason.to_lowercase());
    let note = Note { component, name: &name, is_warning: true, reason, message: &message };
    let Some((key, event)) = note.about(upstream.plane.seams(), key, physical) else { return Ok(None) };
    let was_told = before.conditions.iter().any(|known| known.kind == NAMESPACE_CONFLICTS && is_wrong(known));
    let told = if was_told { upstream.plane.store().get(&key).await } else { Ok(None) };
    let told = match told {
        // Whatever it says, nothing can be said in its place.
        Err(StoreError::Damaged { .. }) => return Ok(None),
        told => told.and_then(|told| told.map(|told| told.to_value()).transpose()).map_err(store_failed)?,
    };
    if told.is_some_and(|told| told["message"] == event["message"]) {
        return Ok(None);
    }
    Ok(Some(Write { key, expect: Expect::Anything, record: Some(Record::of(&event)) }))
}

/// Returns the cause of a failed connection for the Event beside a physical cluster in root. Elsewhere users read such Events, and the
/// server's log alone has it.
fn administrators_detail<'a>(key: &ObjectKey, report: &'a ClusterReport) -> Option<&'a str> {
    let (_, detail) = report.ready.as_ref().err()?;
    (key.cluster == LogicalClusterId::ROOT).then_some(detail)
}

/// Events about conditions that turned: what is wrong from now on, and that it answers.
fn notes(
    seams: &Seams,
    key: &ObjectKey,
    physical: &Value,
    (before, after, details): (&PhysicalClusterStatus, &PhysicalClusterStatus, Option<&str>),
) -> Vec<Write> {
    let is_new = |condition: &&Condition| {
        let known = before.conditions.iter().find(|known| known.kind == condition.kind);
        known.is_none_or(|known| (&known.status, &known.reason) != (&condition.status, &condition.reason))
    };
    let note = |condition: &Condition| {
        let is_warning = is_wrong(condition);
        let is_told_apart = condition.kind == NAMESPACE_CONFLICTS;
        if is_told_apart || (!is_warning && condition.kind != "Ready") {
            return None;
        }
        let name = format!("syncer-{}", condition.reason.to_lowercase());
        let detail = details.filter(|_| condition.kind == "Ready" && is_warning);
        let (reason, message) = (condition.reason.as_str(), detail.unwrap_or(&condition.message));
        let note = Note { component: "portolan-syncer", name: &name, is_warning, reason, message };
        let (key, event) = note.about(seams, key, physical)?;
        Some(Write { key, expect: Expect::Anything, record: Some(Record::of(&event)) })
    };
    after.conditions.iter().filter(is_new).filter_map(note).collect()
}

fn is_wrong(condition: &Condition) -> bool {
    match condition.kind.as_str() {
        "Ready" => condition.status != "True",
        _ => condition.status == "True",
    }
}

/// The status after a report; what a report does not know stays.
fn status(before: &PhysicalClusterStatus, report: &ClusterReport, now: &str) -> PhysicalClusterStatus {
    let mut after = before.clone();
    set(&mut after, ready(report), now);
    // These are only there where something has ever been wrong.
    for condition in [held(report), forged(report), conflicts(report), left_behind(report)] {
        if is_wrong(&condition) || before.conditions.iter().any(|known| known.kind == condition.kind) {
            set(&mut after, condition, now);
        }
    }
    after.version = report.version.clone().unwrap_or(after.version);
    after.capacity = report.capacity.clone().unwrap_or(after.capacity);
    after.allocatable = report.allocatable.clone().unwrap_or(after.allocatable);
    after
}

fn set(status: &mut PhysicalClusterStatus, condition: Condition, now: &str) {
    let known = status.conditions.iter().position(|known| known.kind == condition.kind);
    let same = known.map(|at| &status.conditions[at]).filter(|known| known.status == condition.status);
    let since = same.map_or_else(|| now.to_owned(), |known| known.last_transition_time.clone());
    let condition = Condition { last_transition_time: since, ..condition };
    match known {
        Some(at) => status.conditions[at] = condition,
        None => status.conditions.push(condition),
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: String) -> Condition {
    let (kind, status, reason) = (kind.to_owned(), status.to_owned(), reason.to_owned());
    Condition { kind, status, reason, message, ..Condition::default() }
}

/// `Unknown` when nothing is heard, as of nodes; `False` when it answers, or cannot even be asked, and says why.
fn ready(report: &ClusterReport) -> Condition {
    match &report.ready {
        Ok(()) => condition("Ready", "True", "Reachable", "the API server answers".into()),
        Err((reason, message)) => {
            let status = if reason == "Unreachable" { "Unknown" } else { "False" };
            condition("Ready", status, reason, public_detail(reason, message).to_owned())
        }
    }
}

fn held(report: &ClusterReport) -> Condition {
    match report.deletions_held {
        0 => condition(DELETIONS_HELD, "False", "NoneHeld", "no deletion is held back".into()),
        count => {
            let how = annotations::RELEASE_DELETIONS;
            let message = format!(
                "{count} copies are there that upstream does not account for, too many at once to delete them unasked; when \
                 they may go, annotate this object with {how}={count}, which lets that many go within a minute"
            );
            condition(DELETIONS_HELD, "True", "TooManyAtOnce", message)
        }
    }
}

fn forged(report: &ClusterReport) -> Condition {
    match report.forged {
        0 => condition(
            FOREIGN_SYNCER,
            "False",
            "NoneSeen",
            "no copy names a syncer or a stay that upstream does not know".into(),
        ),
        count => {
            let message = format!(
                "{count} copies named a newer syncer, or a later stay, than upstream knows and were written over or deleted as \
                 upstream says: somebody else writes Portolan's annotations there, or this control plane was restored from \
                 an older state"
            );
            condition(FOREIGN_SYNCER, "True", "NewerSyncerNamed", message)
        }
    }
}

fn left_behind(report: &ClusterReport) -> Condition {
    match report.left_behind {
        0 => condition(LEFT_BEHIND, "False", "NoneFound", "no copy of a registration that is gone is there".into()),
        count => {
            let how = annotations::LEFT_BEHIND;
            let message = format!(
                "namespaces with copies of a registration of this physical cluster that is gone, which may still run there: {count}; \
                 annotate this object with {how}=adopt to take them over, which keeps what is placed here and deletes the rest, or \
                 with {how}=delete to delete them with all that is in them"
            );
            condition(LEFT_BEHIND, "True", "GoneRegistration", message)
        }
    }
}

/// Namespaces named by the Event.
const MAX_NAMED: usize = 3;

fn conflicts(report: &ClusterReport) -> Condition {
    let all = &report.namespace_conflicts;
    if all.is_empty() {
        return condition(
            NAMESPACE_CONFLICTS,
            "False",
            "NoneFound",
            "every namespace that is needed can be used".into(),
        );
    }
    let count = all.len();
    let message = format!(
        "namespaces that objects are to go to and that cannot be used: {count}; an Event in the workspace where this is \
         registered names them"
    );
    condition(NAMESPACE_CONFLICTS, "True", IN_THE_WAY, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ready: Result<(), (&str, &str)>, deletions_held: u64, forged: u64) -> ClusterReport {
        let ready = ready.map_err(|(reason, message)| (reason.to_owned(), message.to_owned()));
        let namespace_conflicts = Vec::new();
        ClusterReport {
            ready,
            version: None,
            capacity: None,
            allocatable: None,
            deletions_held,
            forged,
            namespace_conflicts,
            left_behind: 0,
        }
    }

    /// `Ready=True Reachable`, …
    fn words(status: &PhysicalClusterStatus) -> Vec<String> {
        status.conditions.iter().map(|c| format!("{}={} {}", c.kind, c.status, c.reason)).collect()
    }

    #[test]
    fn a_physical_cluster_says_how_it_is() {
        for (case, report, expected) in [
            ("all is well", report(Ok(()), 0, 0), vec!["Ready=True Reachable"]),
            ("nothing is heard", report(Err(("Unreachable", "x")), 0, 0), vec!["Ready=Unknown Unreachable"]),
            ("it says no", report(Err(("Unauthorized", "x")), 0, 0), vec!["Ready=False Unauthorized"]),
            (
                "deletions are held",
                report(Ok(()), 3, 0),
                vec!["Ready=True Reachable", "DeletionsHeld=True TooManyAtOnce"],
            ),
            (
                "namespaces are in the way",
                ClusterReport { namespace_conflicts: vec!["the namespace a is there".into()], ..report(Ok(()), 0, 0) },
                vec!["Ready=True Reachable", "NamespaceConflicts=True NamespaceInTheWay"],
            ),
            (
                "a registration that is gone left copies",
                ClusterReport { left_behind: 2, ..report(Ok(()), 0, 0) },
                vec!["Ready=True Reachable", "LeftBehind=True GoneRegistration"],
            ),
            (
                "somebody forges copies",
                report(Ok(()), 0, 1),
                vec!["Ready=True Reachable", "ForeignSyncer=True NewerSyncerNamed"],
            ),
        ] {
            assert_eq!(words(&status(&PhysicalClusterStatus::default(), &report, "t")), expected, "{case}");
        }
    }

    #[test]
    fn failures_of_a_connection_read_alike_and_only_root_has_an_event_with_the_cause() {
        let seams = Seams::seeded(1, jiff::Timestamp::UNIX_EPOCH);
        let physical = serde_json::json!({"metadata": {"name": "east", "uid": "u-1"}});
        let key = |home: LogicalClusterId| {
            let resource = portolan_types::GroupResource::new(portolan_types::placement::GROUP, "physicalclusters");
            ObjectKey::cluster_scoped(home, resource, "east".parse().unwrap())
        };
        let mut messages = std::collections::BTreeSet::new();
        for detail in ["tcp connect error: Connection refused", "dns error", "invalid peer certificate: UnknownIssuer"]
        {
            let report = report(Err(("Unreachable", detail)), 0, 0);
            let (before, after) =
                (PhysicalClusterStatus::default(), status(&PhysicalClusterStatus::default(), &report, "t"));
            messages.insert(after.conditions[0].message.clone());
            for (home, is_told) in [(LogicalClusterId::ROOT, true), (LogicalClusterId::new(7), false)] {
                let key = key(home);
                let details = administrators_detail(&key, &report);
                let notes = notes(&seams, &key, &physical, (&before, &after, details));
                let event = notes[0].record.as_ref().unwrap().to_value(portolan_types::ResourceVersion::FIRST).unwrap();
                assert_eq!(event["message"].as_str().unwrap().contains(detail), is_told, "{home}: {event}");
            }
        }
        assert_eq!(messages.len(), 1, "{messages:?}");
    }

    #[test]
    fn a_condition_keeps_its_time_and_place_until_it_turns() {
        let mut known = PhysicalClusterStatus::default();
        known.conditions.push(condition("Drained", "False", "ObjectsLeft", String::new()));
        let held = status(&known, &report(Ok(()), 3, 0), "t1");
        let fewer = status(&held, &report(Ok(()), 2, 0), "t2");
        let times = |status: &PhysicalClusterStatus| -> Vec<String> {
            status.conditions.iter().map(|c| c.last_transition_time.clone()).collect()
        };
        assert_eq!((times(&fewer), times(&held)), (times(&held), vec!["".into(), "t1".into(), "t1".into()]));
        assert!(fewer.conditions[2].message.contains("release-deletions=2"), "{}", fewer.conditions[2].message);
        let released = status(&fewer, &report(Ok(()), 0, 0), "t3");
        assert_eq!(words(&released)[2], "DeletionsHeld=False NoneHeld");
        assert_eq!(times(&released)[2], "t3");
    }
}
