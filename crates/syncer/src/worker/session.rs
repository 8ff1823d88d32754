//! A connection to the physical cluster, kept for as long as it answers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use portolan_types::{
    GroupResource, annotations,
    placement::Resources,
    upstream::{ClusterReport, public_detail},
};
use serde_json::Value;
use tokio::{task::JoinSet, time::Instant};

use super::{
    Work, Worker, events, health,
    limits::HeldObjects,
    mirror::{Mirror, Observed},
    queue::jitter,
    reflect,
};
use crate::{
    client::{Api, DownstreamError, Schema, Served, discover},
    connector::ConnectError,
    transform::{AcceptedAudiences, may_lack_fields},
};

/// Heartbeats without an answer that end a session.
const SILENT_HEARTBEATS: u32 = 2;
/// A silence of more than this may have made work wait long for its next try.
const LONG_SILENCE: Duration = Duration::from_secs(2);
/// Time between two questions for what the physical cluster serves.
const DISCOVERY: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// Time between two looks at whether a physical cluster has still more than is held of it.
const LIMIT_CHECK: Duration = Duration::from_secs(30);
/// The word for a physical cluster that has more than is held of it.
const LIMIT_EXCEEDED: &str = "LimitExceeded";
/// How long making a connection may take.
const CONNECT: Duration = Duration::from_secs(20);

pub(super) struct Session {
    pub(super) api: Api,
    pub(super) mirror: Mirror,
    /// Of an older physical cluster: which fields its API has.
    pub(super) schema: Option<Schema>,
    served: Mutex<HashMap<GroupResource, Served>>,
    audiences: Mutex<Arc<AcceptedAudiences>>,
}

impl Session {
    pub(super) fn served(&self, resource: &GroupResource) -> Option<Served> {
        self.served.lock().expect("no code panics under this lock").get(resource).cloned()
    }

    /// Audiences of tokens that the API server of the physical cluster accepts.
    pub(super) fn audiences(&self) -> Arc<AcceptedAudiences> {
        self.audiences.lock().expect("no code panics under this lock").clone()
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
        if worker.is_limit_exceeded() {
            pause = pause.max(LIMIT_CHECK);
        }
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
    let mirror = Mirror::new(worker.config.limits);
    let audiences = AcceptedAudiences::read(&api, worker.connector.host().as_deref()).await;
    let audiences = Mutex::new(Arc::new(audiences.map_err(|error| reason_of(&error))?));
    let session = Arc::new(Session { api, mirror, schema, served: Mutex::new(served), audiences });
    if worker.is_limit_exceeded() {
        worker.pay_debts_on(&session);
        measure(worker, &session).await.map_err(|error| reason_of(&error))?;
    }
    worker.report_cluster(Ok(health)).await;
    Ok(session)
}

/// Counts what the physical cluster has, and keeps nothing of it.
///
/// # Errors
/// `Excessive`, when it is more than may be held.
async fn measure(worker: &Worker, session: &Session) -> Result<(), DownstreamError> {
    let limits = worker.config.limits;
    let mut sum = HeldObjects::default();
    for served in session.all_served().into_iter().chain([Served::namespaces()]) {
        let add = |page: Vec<Value>| {
            sum = page.into_iter().fold(sum, |sum, object| sum + Observed::new(object).held());
            if limits.permit(sum) { Ok(true) } else { Err(limits.error()) }
        };
        session.api.pages(&served.path(None, None), annotations::DOWN_CLUSTER, add).await?;
    }
    Ok(())
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
        (DownstreamError::Excessive(_), _) => LIMIT_EXCEEDED,
        (DownstreamError::Refused(_) | DownstreamError::Garbled(_), _) => "NotReady",
    };
    (word.to_owned(), error.to_string())
}

/// Returns when the physical cluster has not answered for several heartbeats.
async fn keep(worker: &Arc<Worker>, session: Arc<Session>) {
    let (mut watches, wrapper) = (JoinSet::new(), &worker.config.tasks);
    watches.spawn(wrapper.wrap(reflect::follow(worker.clone(), session.clone(), Served::namespaces())));
    watches.spawn(wrapper.wrap(events::follow(worker.clone(), session.clone())));
    for served in session.all_served() {
        watches.spawn(wrapper.wrap(reflect::follow(worker.clone(), session.clone(), served)));
    }
    let (mut silent_since, mut discovered) = (None, Instant::now());
    loop {
        tokio::select! {
            () = rest(worker, &session, silent_since) => {}
            () = session.mirror.until_exceeded() => {
                worker.state().is_limit_exceeded = true;
                return worker.report_cluster(Err(reason_of(&worker.config.limits.error()))).await;
            }
        }
        worker.check_newest_quietly().await;
        match health::probe(&session.api.probing()).await {
            Ok(health) => {
                worker.answers_again(silent_since.take());
                worker.report_cluster(unless_unreadable(&session, health)).await;
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
            learn_audiences(worker, &session).await;
            for served in found_since(worker, &session).await {
                watches.spawn(wrapper.wrap(reflect::follow(worker.clone(), session.clone(), served)));
            }
        }
    }
}

/// Returns the health of a physical cluster of which everything can be read.
fn unless_unreadable(session: &Session, health: health::Health) -> Result<health::Health, (String, String)> {
    match session.mirror.unreadable() {
        Some(why) => Err((LIMIT_EXCEEDED.to_owned(), why)),
        None => Ok(health),
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

/// Reads the accepted audiences again. Copies are planned anew when they have changed.
async fn learn_audiences(worker: &Worker, session: &Session) {
    let host = worker.connector.host();
    let Ok(now) = AcceptedAudiences::read(&session.api, host.as_deref()).await else { return };
    let before = {
        let mut audiences = session.audiences.lock().expect("no code panics under this lock");
        std::mem::replace(&mut *audiences, Arc::new(now.clone()))
    };
    if *before != now {
        worker.enqueue_everything();
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
            state.limited_session = None;
            state.is_limit_exceeded = false;
            state.unreachable_since = None;
        }
        self.queue.add(Work::Debts);
        self.queue.add(Work::LeftBehind);
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

    /// Returns true if the last session ended because the physical cluster has more than is held of it.
    fn is_limit_exceeded(&self) -> bool {
        self.state().is_limit_exceeded
    }

    fn pay_debts_on(&self, session: &Arc<Session>) {
        self.state().limited_session = Some(session.clone());
        self.queue.add(Work::Debts);
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
            left_behind: state.left_behind.len() as u64,
        };
        match health {
            Ok(health) => {
                report.version = Some(health.version);
                (report.capacity, report.allocatable) = (health.capacity, health.allocatable);
            }
            Err(why) => {
                state.unreachable_why = public_detail(&why.0, &why.1).to_owned();
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
