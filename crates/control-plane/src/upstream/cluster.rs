//! Status of a `PhysicalCluster`, from the reports of its workers.

use portolan_store::{Expect, StoreError, Transaction, Write};
use portolan_types::{
    LogicalClusterId, ObjectKey, Record, Seams, Uid, annotations,
    event_draft::EventDraft,
    object,
    placement::{GROUP, PhysicalClusterStatus, StatusCondition},
    seams::seconds_text,
    upstream::{ClusterReport, PodAccessReport, UpstreamError, public_detail},
};
use serde_json::Value;

use super::{StoreUpstream, failed, store_failed};

/// Condition type: deletions are held back.
pub(crate) const DELETIONS_HELD: &str = "DeletionsHeld";
/// Condition type: copies of a former registration are there.
const LEFT_BEHIND: &str = "LeftBehind";
const FOREIGN_SYNCER: &str = "ForeignSyncer";
const NAMESPACE_CONFLICTS: &str = "NamespaceConflicts";
const DEFINITION_CONFLICTS: &str = "DefinitionConflicts";
const IN_THE_WAY: &str = "NamespaceInTheWay";
/// Condition type: pods get tokens of their logical cluster, and an address of its API.
const PODS_REACH_SERVER: &str = "PodsReachServer";
/// Condition type: pods resolve the names of their logical cluster.
const PODS_RESOLVE_NAMES: &str = "PodsResolveNames";
/// Annotation of objects that workspaces may mount; kcp's.
const IS_MOUNT: &str = "experimental.tenancy.kcp.io/is-mount";

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
    let mut after = PhysicalClusterStatus { url: mount_url(upstream, &key), ..status(&before, report, &now) };
    observe(&mut after, upstream.observed_generation(physical));
    let is_marked = object::annotation(&current, IS_MOUNT).is_some();
    let mut txn = Transaction::default();
    let change = StatusChange { key: &key, physical: &current, before: &before, after: &after };
    let mut events: Vec<Write> = change.conflict_event(upstream, report).await?.into_iter().collect();
    if after != before || !is_marked {
        events.extend(change.condition_events(upstream.plane.seams(), administrators_detail(&key, report)));
        object::set_annotation(&mut current, IS_MOUNT, Some("true".into()));
        current["status"] = serde_json::to_value(after).map_err(|error| failed(&error))?;
        txn.writes.push(Write { key, expect: Expect::At(revision), record: Some(Record::of(&current)) });
    }
    upstream.commit_with_notes(txn, events).await
}

/// Change of a `PhysicalCluster`'s status by a report.
struct StatusChange<'a> {
    key: &'a ObjectKey,
    physical: &'a Value,
    before: &'a PhysicalClusterStatus,
    after: &'a PhysicalClusterStatus,
}

impl StatusChange<'_> {
    /// Returns the Event that names the conflicting namespaces; `None` if it would be the same as before. It is in the
    /// workspace of the registration, while all that may use the physical cluster read the condition.
    async fn conflict_event(
        &self,
        upstream: &StoreUpstream,
        report: &ClusterReport,
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
        let note = EventDraft { component, name: &name, is_warning: true, reason, message: &message };
        let Some((key, event)) = note.about(upstream.plane.seams(), self.key, self.physical) else { return Ok(None) };
        let was_written =
            self.before.conditions.iter().any(|known| known.kind == NAMESPACE_CONFLICTS && is_wrong(known));
        let stored = if was_written { upstream.plane.store().get(&key).await } else { Ok(None) };
        let stored = match stored {
            // A damaged Event cannot be replaced.
            Err(StoreError::Damaged { .. }) => return Ok(None),
            read => read.and_then(|stored| stored.map(|stored| stored.to_value()).transpose()).map_err(store_failed)?,
        };
        if stored.is_some_and(|stored| stored["message"] == event["message"]) {
            return Ok(None);
        }
        Ok(Some(Write { key, expect: Expect::Anything, record: Some(Record::of(&event)) }))
    }

    /// Returns Events about changed conditions: new problems, and `Ready` again. `details` is the cause of a failure.
    fn condition_events(&self, seams: &Seams, details: Option<&str>) -> Vec<Write> {
        let Self { key, physical, before, after } = *self;
        let is_new = |condition: &&StatusCondition| {
            let known = before.conditions.iter().find(|known| known.kind == condition.kind);
            known.is_none_or(|known| (&known.status, &known.reason) != (&condition.status, &condition.reason))
        };
        let note = |condition: &StatusCondition| {
            let is_warning = is_wrong(condition);
            let has_own_event = condition.kind == NAMESPACE_CONFLICTS;
            if has_own_event || (!is_warning && condition.kind != "Ready") {
                return None;
            }
            let name = format!("syncer-{}", condition.reason.to_lowercase());
            let detail = details.filter(|_| condition.kind == "Ready" && is_warning);
            let (reason, message) = (condition.reason.as_str(), detail.unwrap_or(&condition.message));
            let note = EventDraft { component: "portolan-syncer", name: &name, is_warning, reason, message };
            let (key, event) = note.about(seams, key, physical)?;
            Some(Write { key, expect: Expect::Anything, record: Some(Record::of(&event)) })
        };
        after.conditions.iter().filter(is_new).filter_map(note).collect()
    }
}

/// Returns the cause of a failed connection, for the Event about a physical cluster in root. Elsewhere users read these
/// Events, and only the server's log has it.
fn administrators_detail<'a>(key: &ObjectKey, report: &'a ClusterReport) -> Option<&'a str> {
    let (_, detail) = report.ready.as_ref().err()?;
    (key.cluster == LogicalClusterId::ROOT).then_some(detail)
}

fn is_wrong(condition: &StatusCondition) -> bool {
    match condition.kind.as_str() {
        "Ready" => condition.status != "True",
        // Pods that keep the view of the physical cluster are no failure.
        PODS_REACH_SERVER | PODS_RESOLVE_NAMES => false,
        _ => condition.status == "True",
    }
}

/// Returns the status after a report. Fields that the report leaves out stay.
fn status(before: &PhysicalClusterStatus, report: &ClusterReport, now: &str) -> PhysicalClusterStatus {
    let mut after = before.clone();
    set(&mut after, ready(report), now);
    // These conditions appear with the first problem.
    let problems =
        [held_condition(report), forged(report), conflicts(report), left_behind(report), definition_conflicts(report)];
    if let Some(pods) = &report.pods {
        set(&mut after, pods_reach_server(pods), now);
        set(&mut after, pods_resolve_names(pods), now);
    }
    for condition in problems {
        if is_wrong(&condition) || before.conditions.iter().any(|known| known.kind == condition.kind) {
            set(&mut after, condition, now);
        }
    }
    after.version = report.version.clone().unwrap_or(after.version);
    after.capacity = report.capacity.clone().unwrap_or(after.capacity);
    after.allocatable = report.allocatable.clone().unwrap_or(after.allocatable);
    after.custom_kinds = report.custom_kinds.clone().unwrap_or(after.custom_kinds);
    after.phase = phase(report).into();
    after
}

/// Sets the generation that `Ready` is about. Returns true if it was another.
pub(crate) fn observe(status: &mut PhysicalClusterStatus, generation: i64) -> bool {
    let ready = status.conditions.iter_mut().find(|condition| condition.kind == "Ready");
    ready.is_some_and(|ready| std::mem::replace(&mut ready.observed_generation, generation) != generation)
}

/// Returns the phase of a mount, in kcp's words.
fn phase(report: &ClusterReport) -> &'static str {
    match &report.ready {
        Ok(()) => "Ready",
        Err((reason, _)) if reason == "Unreachable" => "Unknown",
        Err(_) => "Connecting",
    }
}

/// Returns the address of the proxy, for clients that follow kcp's mounts; empty without an address of this server.
fn mount_url(upstream: &StoreUpstream, key: &ObjectKey) -> String {
    let Some(base) = upstream.address() else { return String::new() };
    format!("{base}/clusters/{}/apis/{GROUP}/v1alpha1/physicalclusters/{}/proxy", key.cluster, key.name)
}

fn set(status: &mut PhysicalClusterStatus, condition: StatusCondition, now: &str) {
    let known = status.conditions.iter().position(|known| known.kind == condition.kind);
    let same = known.map(|at| &status.conditions[at]).filter(|known| known.status == condition.status);
    let since = same.map_or_else(|| now.to_owned(), |known| known.last_transition_time.clone());
    let condition = StatusCondition { last_transition_time: since, ..condition };
    match known {
        Some(at) => status.conditions[at] = condition,
        None => status.conditions.push(condition),
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: String) -> StatusCondition {
    let (kind, status, reason) = (kind.to_owned(), status.to_owned(), reason.to_owned());
    StatusCondition { kind, status, reason, message, ..StatusCondition::default() }
}

/// Returns `Ready`: `Unknown` without a response, as for nodes; `False` with the reason if it responds, or cannot be
/// asked.
fn ready(report: &ClusterReport) -> StatusCondition {
    match &report.ready {
        Ok(()) => condition("Ready", "True", "Reachable", "the API server answers".into()),
        Err((reason, message)) => {
            let status = if reason == "Unreachable" { "Unknown" } else { "False" };
            condition("Ready", status, reason, public_detail(reason, message).to_owned())
        }
    }
}

fn held_condition(report: &ClusterReport) -> StatusCondition {
    match report.deletions_held {
        0 => condition(DELETIONS_HELD, "False", "NoneHeld", "no deletion is held back".into()),
        count => {
            let how = annotations::RELEASE_DELETIONS;
            let message = format!(
                "{count} copies have no upstream object, too many to delete them without confirmation; to delete them, \
                 annotate this object with {how}={count}, which allows that many deletions within a minute"
            );
            condition(DELETIONS_HELD, "True", "TooManyAtOnce", message)
        }
    }
}

fn forged(report: &ClusterReport) -> StatusCondition {
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

fn left_behind(report: &ClusterReport) -> StatusCondition {
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

/// Most definitions that the condition names.
const MAX_DEFINITIONS_NAMED: usize = 5;

fn definition_conflicts(report: &ClusterReport) -> StatusCondition {
    let all = &report.definition_conflicts;
    if all.is_empty() {
        return condition(
            DEFINITION_CONFLICTS,
            "False",
            "NoneFound",
            "every definition that goes there is there".into(),
        );
    }
    let named: Vec<&str> = all.iter().take(MAX_DEFINITIONS_NAMED).map(String::as_str).collect();
    let more = all.len().saturating_sub(named.len());
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    condition(DEFINITION_CONFLICTS, "True", "DefinitionInTheWay", format!("{}{more}", named.join("; ")))
}

fn pods_reach_server(pods: &PodAccessReport) -> StatusCondition {
    match &pods.server {
        Ok(address) => {
            let message = format!("pods get tokens of their logical cluster, and reach its API by {address}");
            condition(PODS_REACH_SERVER, "True", "AddressKnown", message)
        }
        Err((reason, message)) => condition(PODS_REACH_SERVER, "False", reason, message.clone()),
    }
}

fn pods_resolve_names(pods: &PodAccessReport) -> StatusCondition {
    let (status, reason, message) = if pods.are_names_resolved {
        ("True", "ResponderKnown", "<service>.<namespace>.svc of the logical cluster resolves")
    } else {
        ("False", "NoResponder", "only <service> of the own namespace resolves: there is no DNS responder")
    };
    condition(PODS_RESOLVE_NAMES, status, reason, message.to_owned())
}

/// Most namespaces that the Event names.
const MAX_NAMED: usize = 3;

fn conflicts(report: &ClusterReport) -> StatusCondition {
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
            custom_kinds: None,
            definition_conflicts: Vec::new(),
            pods: None,
        }
    }

    /// Formats conditions as `Ready=True Reachable`, …
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
                "a definition is in the way",
                ClusterReport { definition_conflicts: vec!["a.b: x".into(); 7], ..report(Ok(()), 0, 0) },
                vec!["Ready=True Reachable", "DefinitionConflicts=True DefinitionInTheWay"],
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
                let notes = StatusChange { key: &key, physical: &physical, before: &before, after: &after }
                    .condition_events(&seams, details);
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
