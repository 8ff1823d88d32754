//! A connection to the physical cluster, kept for as long as it answers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use portolan_types::{GroupResource, placement::Resources, upstream::ClusterReport};
use serde_json::Value;
use tokio::{task::JoinSet, time::Instant};

use super::{
    Work, Worker, events, health,
    mirror::{Mirror, Observed},
    queue::jitter,
    reflect,
};
use crate::{
    client::{Api, DownstreamError, Schema, Served, discover},
    connector::ConnectError,
    transform::may_lack_fields,
};

/// Heartbeats without an answer that end a session.
const SILENT_HEARTBEATS: u32 = 2;
/// A silence of more than this may have made work wait long for its next try.
const LONG_SILENCE: Duration = Duration::from_secs(2);
/// Time between two questions for what the physical cluster serves.
const DISCOVERY: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// How long making a connection may take.
const CONNECT: Duration = Duration::from_secs(20);

pub(super) struct Session {
    pub(super) api: Api,
    pub(super) mirror: Mirror,
    /// Of an older physical cluster: which fields its API has.
    pub(super) schema: Option<Schema>,
    served: Mutex<HashMap<GroupResource, Served>>,
}

impl Session {
    pub(super) fn served(&self, resource: &GroupResource) -> Option<Served> {
        self.served.lock().expect("no code panics under this lock").get(resource).cloned()
    }

    pub(super) fn all_served(&self) -> Vec<Served> {
        self.served.lock().expect("no code panics under this lock").values().cloned().collect()
    }

    pub(super) fn all_watched(&self) -> Vec<(GroupResource, Arc<Observed>)> {
        let resources = self.all_served().into_iter().map(|served| served.resource);
        resources
            .flat_map(|resource| {
                let objects = self.mirror.all(&resource, None);
                objects.into_iter().map(move |observed| (resource.clone(), observed))
            })
            .collect()
    }
}

/// Connects, keeps the connection, and connects again, for ever.
pub(super) async fn supervise(worker: Arc<Worker>) {
    let mut pause = FIRST_PAUSE;
    loop {
        match open(&worker).await {
            Ok(session) => {
                pause = FIRST_PAUSE;
                worker.opened(&session);
                keep(&worker, session).await;
                worker.lost();
            }
            Err(why) => worker.report_cluster(Err(why)).await,
        }
        worker.check_newest_quietly().await;
        tokio::time::sleep(jitter(&worker.seams, pause)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

async fn open(worker: &Worker) -> Result<Arc<Session>, (String, String)> {
    let client = match tokio::time::timeout(CONNECT, worker.connector.connect()).await {
        Ok(Ok(client)) => client,
        Ok(Err(error @ ConnectError::Refused(_))) => return Err(("InvalidConnection".into(), error.to_string())),
        Ok(Err(error @ ConnectError::Failed(_))) => return Err(("Unreachable".into(), error.to_string())),
        Err(_) => return Err(("Unreachable".into(), format!("no connection within {} s", CONNECT.as_secs()))),
    };
    let api = Api::new(client, worker.config.request_timeout);
    // One that has just started answers before it serves all that it has.
    api.ready().await.map_err(|error| reason_of(&error))?;
    let health = health::probe(&api).await.map_err(|error| reason_of(&error))?;
    let served = discover(&api, &worker.rules).await.map_err(|error| reason_of(&error))?;
    let schema = schema(&api, &health.version, &served).await.map_err(|error| reason_of(&error))?;
    worker.report_cluster(Ok(health)).await;
    Ok(Arc::new(Session { api, mirror: Mirror::default(), schema, served: Mutex::new(served) }))
}

/// The fields of an older physical cluster. One that does not tell them is not judged.
async fn schema(
    api: &Api,
    version: &str,
    served: &HashMap<GroupResource, Served>,
) -> Result<Option<Schema>, DownstreamError> {
    if !may_lack_fields(version) {
        return Ok(None);
    }
    match Schema::read(api, served.values().cloned()).await {
        Ok(schema) => Ok(Some(schema)),
        Err(error) if matches!(error.code(), 403 | 404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The word and the sentence for people.
fn reason_of(error: &DownstreamError) -> (String, String) {
    let word = match (error, error.code()) {
        (_, 401) => "Unauthorized",
        (_, 403) => "Forbidden",
        (DownstreamError::Unreachable(_), _) => "Unreachable",
        (DownstreamError::Refused(_) | DownstreamError::Garbled(_), _) => "NotReady",
    };
    (word.to_owned(), error.to_string())
}

/// Returns when the physical cluster has not answered for several heartbeats.
async fn keep(worker: &Arc<Worker>, session: Arc<Session>) {
    let mut watches = JoinSet::new();
    watches.spawn(reflect::follow(worker.clone(), session.clone(), Served::namespaces()));
    watches.spawn(events::follow(worker.clone(), session.clone()));
    for served in session.all_served() {
        watches.spawn(reflect::follow(worker.clone(), session.clone(), served));
    }
    let (mut silent_since, mut discovered) = (None, Instant::now());
    loop {
        rest(worker, &session, silent_since).await;
        worker.check_newest_quietly().await;
        match health::probe(&session.api.probing()).await {
            Ok(health) => {
                worker.answers_again(silent_since.take());
                worker.report_cluster(Ok(health)).await;
            }
            Err(error) => {
                let since = *silent_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= worker.config.heartbeat * SILENT_HEARTBEATS {
                    return worker.report_cluster(Err(reason_of(&error))).await;
                }
            }
        }
        if discovered.elapsed() >= DISCOVERY && silent_since.is_none() {
            discovered = Instant::now();
            for served in found_since(worker, &session).await {
                watches.spawn(reflect::follow(worker.clone(), session.clone(), served));
            }
        }
    }
}

/// Until the next heartbeat, or the next doubt. In a silence the next look comes sooner, but never at once.
async fn rest(worker: &Worker, session: &Session, silent_since: Option<Instant>) {
    let heartbeat = jitter(&worker.seams, worker.config.heartbeat);
    match silent_since {
        None => session.api.rest_or_doubt(heartbeat).await,
        Some(since) => tokio::time::sleep(heartbeat.min(since.elapsed().max(FIRST_PAUSE))).await,
    }
}

/// Resources that were not served before. What is not served any more stays: the lack of it proves nothing.
async fn found_since(worker: &Worker, session: &Session) -> Vec<Served> {
    let Ok(now) = discover(&session.api, &worker.rules).await else { return Vec::new() };
    let mut served = session.served.lock().expect("no code panics under this lock");
    let new: Vec<Served> = now.into_values().filter(|one| !served.contains_key(&one.resource)).collect();
    served.extend(new.iter().map(|one| (one.resource.clone(), one.clone())));
    new
}

impl Worker {
    fn opened(&self, session: &Arc<Session>) {
        {
            let mut state = self.state();
            state.session = Some(session.clone());
            state.unreachable_since = None;
        }
        self.queue.add(Work::Debts);
        self.enqueue_everything();
    }

    fn lost(&self) {
        {
            let mut state = self.state();
            state.session = None;
            state.unreachable_since = Some(Instant::now());
        }
        self.enqueue_everything();
    }

    /// What failed in a long silence waits long for its next try: it comes now.
    fn answers_again(&self, silent_since: Option<Instant>) {
        if silent_since.is_some_and(|since| since.elapsed() >= LONG_SILENCE) {
            self.enqueue_everything();
        }
    }

    async fn check_newest_quietly(&self) {
        if let Err(error) = self.check_newest().await {
            tracing::debug!(cluster = %self.config.name, %error, "upstream does not say which syncer is the newest");
        }
    }

    async fn report_cluster(&self, health: Result<health::Health, (String, String)>) {
        let report = self.cluster_report(health);
        let before = self.state().cluster_report.clone();
        if before.as_ref() == Some(&report) {
            return;
        }
        self.log_turn(before.as_ref(), &report);
        match self.upstream.report_cluster(&self.config.uid, report.clone()).await {
            Ok(()) => self.state().cluster_report = Some(report),
            Err(error) => {
                tracing::warn!(cluster = %self.config.name, %error, "the state of a physical cluster cannot be stored")
            }
        }
    }

    fn cluster_report(&self, health: Result<health::Health, (String, String)>) -> ClusterReport {
        let namespace_conflicts = self.namespace_conflicts();
        let mut state = self.state();
        let mut report = ClusterReport {
            ready: Ok(()),
            version: None,
            capacity: None,
            allocatable: None,
            deletions_held: state.held(),
            forged: state.forged(),
            namespace_conflicts,
        };
        match health {
            Ok(health) => {
                report.version = Some(health.version);
                (report.capacity, report.allocatable) = (health.capacity, health.allocatable);
            }
            Err(why) => {
                state.unreachable_why = why.1.clone();
                report.ready = Err(why);
            }
        }
        report
    }

    /// One line per change, however often it is tried.
    fn log_turn(&self, before: Option<&ClusterReport>, now: &ClusterReport) {
        let cluster = &self.config.name;
        let word = |report: &ClusterReport| report.ready.as_ref().err().map(|(reason, _)| reason.clone());
        match (before.map(word), &now.ready) {
            (Some(None), Ok(())) => {}
            (_, Ok(())) => tracing::info!(%cluster, "the physical cluster answers"),
            (Some(Some(known)), Err((reason, _))) if known == *reason => {}
            (_, Err((reason, message))) => {
                tracing::warn!(%cluster, %reason, %message, "the physical cluster does not answer")
            }
        }
    }
}

/// Amounts that a physical cluster has or gives.
pub(super) type Amounts = Option<Resources>;

/// Bounds what is read as text from a physical cluster.
pub(super) fn short(value: &Value) -> String {
    crate::status::bounds_text(value.as_str().unwrap_or_default())
}
