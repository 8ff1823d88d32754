//! Custom kinds that may be synced to the physical cluster: the kinds that upstream allows, the served ones, and their
//! report.

use std::{sync::Arc, time::Duration};

use portolan_types::{
    GroupResource,
    placement::{CustomKindStatus, MAX_CUSTOM_KINDS},
    upstream::SyncedDefinition,
};
use tokio::{sync::Notify, task::JoinSet, time::Instant};

use super::{SyncError, Worker, reflector, session::Session};
use crate::{
    client::{Discovery, ServedResource, discover},
    rules::{SyncRules, is_custom},
};

/// Interval of discovery.
const INTERVAL: Duration = Duration::from_secs(60);
/// Interval of discovery while a kind that is allowed is not served.
const INTERVAL_UNSERVED: Duration = Duration::from_secs(10);
/// Minimum time between two requested discoveries.
const SHORTEST: Duration = Duration::from_millis(500);
/// First interval after a definition was written, which doubles until its kind is served.
const INTERVAL_WRITTEN: Duration = Duration::from_millis(250);

/// Time of the next discovery.
#[derive(Debug)]
pub(super) struct DiscoverySchedule {
    due: Instant,
    done: Instant,
    interval: Duration,
}

impl DiscoverySchedule {
    /// Handles a new discovery. Pending definitions are sent at once.
    pub(super) fn after_opening(has_definitions: bool, is_whole: bool) -> Self {
        let interval = match (has_definitions, is_whole) {
            (true, _) => Duration::ZERO,
            (false, false) => INTERVAL_UNSERVED,
            (false, true) => INTERVAL,
        };
        let done = Instant::now();
        Self { due: done + interval, done, interval }
    }

    /// Waits until a discovery is due. It comes sooner when `refresh` is notified, at most once a second.
    pub(super) async fn wait(&mut self, refresh: &Notify) {
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(self.due) => return,
                () = refresh.notified() => self.due = self.due.min(self.done + SHORTEST),
            }
        }
    }

    fn next(&mut self, outcome: RefreshOutcome) {
        let longest = if outcome.is_unserved { INTERVAL_UNSERVED } else { INTERVAL };
        let later = (self.interval * 2).clamp(INTERVAL_WRITTEN, longest);
        self.interval = if outcome.is_written { INTERVAL_WRITTEN } else { later };
        self.done = Instant::now();
        self.due = self.done + self.interval;
    }
}

/// Outcome of a discovery.
#[derive(Clone, Copy, Debug, Default)]
struct RefreshOutcome {
    /// A definition was written.
    is_written: bool,
    /// A kind that is allowed is not served, or a definition is in the way.
    is_unserved: bool,
}

/// Repeats discovery at intervals, and follows the served kinds. It runs independently of the heartbeats: API groups
/// with slow servers must not make the physical cluster look lost.
pub(super) async fn discover_forever(worker: Arc<Worker>, session: Arc<Session>, mut schedule: DiscoverySchedule) {
    let mut watches = JoinSet::new();
    loop {
        schedule.wait(&session.refresh).await;
        session.api.wait_until_trusted().await;
        for served in worker.refresh_discovery(&session, &mut schedule).await {
            watches.spawn(worker.config.tasks.wrap(reflector::follow(worker.clone(), session.clone(), served)));
        }
        session.discovered.notify_one();
        // Followers of removed kinds have ended.
        while watches.try_join_next().is_some() {}
    }
}

impl Worker {
    /// Reads which custom kinds upstream allows. Returns the definitions that are to go to the physical cluster.
    pub(super) async fn read_custom_rules(&self) -> Result<Vec<SyncedDefinition>, SyncError> {
        let upstream = self.upstream.custom_kinds(&self.config.uid).await?;
        let known = self.rules();
        let rules = SyncRules::clone(&known).with_kinds(&upstream.allowed);
        if !rules.kinds().eq(known.kinds()) {
            *self.rules.lock().expect("no code panics under this lock") = Arc::new(rules);
            self.enqueue_everything();
        }
        Ok(upstream.definitions)
    }

    /// Records which of the allowed custom kinds the physical cluster serves. Returns true if it serves all.
    pub(super) fn note_custom_kinds(&self, found: &Discovery) -> bool {
        let kinds = custom_kinds(&self.rules(), found);
        let is_whole = kinds.iter().all(|kind| !kind.versions.is_empty() || kind.kind == "*");
        self.state().custom_kinds = Some(kinds);
        is_whole
    }

    /// Discovers again, when it is time. Returns the resources that are served now and are not followed.
    async fn refresh_discovery(&self, session: &Session, schedule: &mut DiscoverySchedule) -> Vec<ServedResource> {
        let refreshed = match self.read_custom_rules().await {
            Ok(definitions) => self.discover_with(session, &definitions).await,
            Err(error) => Err(error),
        };
        match refreshed {
            Ok((new, outcome)) => {
                schedule.next(outcome);
                new
            }
            Err(error) => {
                tracing::debug!(cluster = %self.config.name, %error, "discovery failed, it will be retried");
                schedule.next(RefreshOutcome { is_unserved: true, ..RefreshOutcome::default() });
                Vec::new()
            }
        }
    }

    async fn discover_with(
        &self,
        session: &Session,
        definitions: &[SyncedDefinition],
    ) -> Result<(Vec<ServedResource>, RefreshOutcome), SyncError> {
        let is_written = match self.sync_definitions(session, definitions).await {
            Ok(is_written) => is_written,
            Err(error) => {
                tracing::debug!(cluster = %self.config.name, %error, "definitions cannot be synced, they will be retried");
                false
            }
        };
        let found = discover(&session.api, &self.rules()).await?;
        // A definition that is to go waits for the end of its objects.
        let is_unserved = !self.note_custom_kinds(&found) || !self.state().definition_conflicts.is_empty();
        let changed = session.update_served(found);
        if changed.is_any {
            self.enqueue_everything();
        }
        Ok((changed.new, RefreshOutcome { is_written, is_unserved }))
    }
}

/// Returns an entry for each custom kind that may go to the physical cluster, sorted.
fn custom_kinds(rules: &SyncRules, found: &Discovery) -> Vec<CustomKindStatus> {
    let entry = |resource: &GroupResource, kind: &str| CustomKindStatus {
        group: resource.group.to_string(),
        kind: kind.to_owned(),
        resource: resource.resource.to_string(),
        ..CustomKindStatus::default()
    };
    let served = found.served.values().filter(|served| is_custom(&served.resource));
    let mut kinds: Vec<CustomKindStatus> = served
        .map(|served| CustomKindStatus {
            versions: served.versions.clone(),
            ..entry(&served.resource, &served.kind.kind)
        })
        .collect();
    kinds.extend(found.cluster_scoped.iter().map(|(resource, kind)| CustomKindStatus {
        message: "it is cluster-scoped there".into(),
        ..entry(resource, kind)
    }));
    let unserved: Vec<_> = rules
        .allowed()
        .filter(|resource| is_custom(resource) && !kinds.iter().any(|kind| is_of(kind, resource)))
        .map(|resource| entry(resource, ""))
        .collect();
    let unnamed = rules.kinds().filter(|allowed| {
        let is_it = |kind: &CustomKindStatus| *kind.group == *allowed.group && *kind.kind == *allowed.kind;
        !kinds.iter().any(is_it)
    });
    let unnamed: Vec<_> = unnamed
        .map(|kind| CustomKindStatus {
            group: kind.group.to_string(),
            kind: kind.kind.to_string(),
            ..CustomKindStatus::default()
        })
        .collect();
    kinds.extend(unserved.into_iter().chain(unnamed));
    for kind in kinds.iter_mut().filter(|kind| kind.versions.is_empty() && found.unknown.contains(&kind.group)) {
        kind.message = "the server of its group fails there".into();
    }
    kinds.sort_by(|a, b| (&a.group, &a.resource, &a.kind).cmp(&(&b.group, &b.resource, &b.kind)));
    kinds.truncate(MAX_CUSTOM_KINDS);
    kinds
}

fn is_of(kind: &CustomKindStatus, resource: &GroupResource) -> bool {
    *kind.group == *resource.group && *kind.resource == *resource.resource
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupKind, GroupVersionKind};

    use super::*;

    #[test]
    fn status_of_custom_kinds() {
        let resource = |text: &str| {
            let (resource, group) = text.split_once('.').unwrap();
            GroupResource::new(group, resource)
        };
        let allowed =
            ["Widget", "Gadget", "Bolt"].map(|kind| GroupKind { group: "example.com".into(), kind: kind.into() });
        let rules = SyncRules::new(&[]).with_kinds(&allowed);
        let widgets = ServedResource {
            versions: vec!["v2".into(), "v1".into()],
            ..ServedResource::new(
                resource("widgets.example.com"),
                GroupVersionKind::new("example.com", "v2", "Widget"),
                true,
            )
        };
        let deployments =
            ServedResource::new(resource("deployments.apps"), GroupVersionKind::new("apps", "v1", "Deployment"), true);
        let mut found = Discovery::default();
        for served in [widgets, deployments] {
            found.served.insert(served.resource.clone(), served);
        }
        found.cluster_scoped.insert(resource("bolts.example.com"), "Bolt".into());
        let line = |kind: CustomKindStatus| {
            format!("{} {} {} {}", kind.kind, kind.resource, kind.versions.join(","), kind.message)
        };
        let lines: Vec<String> = custom_kinds(&rules, &found).into_iter().map(line).collect();
        assert_eq!(lines, ["Gadget   ", "Bolt bolts  it is cluster-scoped there", "Widget widgets v2,v1 "]);
        let named = SyncRules::new(&["things.example.com".into(), "pods".into()]);
        let lines: Vec<String> = custom_kinds(&named, &Discovery::default()).into_iter().map(line).collect();
        assert_eq!(lines, [" things  "], "of a resource that is not served its kind is not known");
    }
}
