//! Session: a connection to the physical cluster, kept for as long as it answers.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use portolan_types::{GroupResource, annotations, placement::ResourceAmounts};
use serde_json::Value;
use tokio::{sync::Notify, task::JoinSet, time::Instant};

use super::{
    Work, Worker,
    cluster_report::{LIMIT_EXCEEDED, reason_of},
    custom_kinds::{self, DiscoverySchedule},
    events, health,
    limits::HeldObjects,
    pod_views::PodAddresses,
    queue::jitter,
    reflector,
    reflector_cache::{ObservedObject, ReflectorCache},
};
use crate::{
    client::{Discovery, DownstreamClient, DownstreamError, OpenApiFields, ServedResource, discover},
    connector::ConnectError,
    memory::MemoryExcess,
    rules::is_custom,
    transform::{AcceptedAudiences, may_lack_fields},
};

/// Heartbeats without an answer that end a session.
const SILENT_HEARTBEATS: u32 = 2;
/// Silence after which failed work is retried at once.
const LONG_SILENCE: Duration = Duration::from_secs(2);
/// Interval at which the accepted audiences are read.
const AUDIENCES: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// Interval of checks of a physical cluster that exceeds a limit.
const LIMIT_CHECK: Duration = Duration::from_secs(30);
/// Deadline of making a connection.
const CONNECT: Duration = Duration::from_secs(20);

pub(super) struct Session {
    pub(super) api: DownstreamClient,
    pub(super) cache: ReflectorCache,
    /// Fields of the API of an older physical cluster.
    pub(super) schema: Option<OpenApiFields>,
    served: Mutex<ServedState>,
    /// Wakes the discovery of custom kinds.
    pub(super) refresh: Notify,
    /// Notified after a discovery, so that it is reported.
    pub(super) discovered: Notify,
    /// True while the physical cluster may have definitions that Portolan created.
    are_definitions_there: AtomicBool,
    audiences: Mutex<Arc<AcceptedAudiences>>,
    pod_addresses: Mutex<Arc<PodAddresses>>,
}

/// Resources that the physical cluster serves, and those that are followed.
#[derive(Default)]
struct ServedState {
    served: HashMap<GroupResource, ServedResource>,
    followed: HashSet<GroupResource>,
}

/// Change of the served resources.
#[derive(Debug, Default)]
pub(super) struct ServedChange {
    /// Resources that are not followed yet.
    pub(super) new: Vec<ServedResource>,
    /// True if a resource was added, changed or removed.
    pub(super) is_any: bool,
}

impl Session {
    fn served_state(&self) -> MutexGuard<'_, ServedState> {
        self.served.lock().expect("no code panics under this lock")
    }

    pub(super) fn served(&self, resource: &GroupResource) -> Option<ServedResource> {
        self.served_state().served.get(resource).cloned()
    }

    /// Returns a resource for its follower; `None` ends that.
    pub(super) fn followed(&self, resource: &GroupResource) -> Option<ServedResource> {
        let mut state = self.served_state();
        let served = state.served.get(resource).cloned();
        if served.is_none() {
            state.followed.remove(resource);
        }
        served
    }

    /// Applies a discovery. A custom kind that is no longer served is removed, because only a deleted definition can be
    /// the cause. The absence of any other resource proves nothing.
    pub(super) fn update_served(&self, found: Discovery) -> ServedChange {
        let mut state = self.served_state();
        let Discovery { served: now, unknown, .. } = found;
        let is_gone = |resource: &GroupResource| {
            is_custom(resource) && !now.contains_key(resource) && !unknown.contains(&*resource.group)
        };
        let gone: Vec<GroupResource> = state.served.keys().filter(|resource| is_gone(resource)).cloned().collect();
        gone.iter().for_each(|resource| drop(state.served.remove(resource)));
        let mut change = ServedChange { new: Vec::new(), is_any: !gone.is_empty() };
        for (resource, served) in now {
            // A version whose server fails may be missing.
            let is_partial = unknown.contains(&*resource.group) && state.served.contains_key(&resource);
            if is_partial {
                continue;
            }
            let is_known = state.served.get(&resource).is_some_and(|known| *known == served || !is_custom(&resource));
            if is_known {
                continue;
            }
            change.is_any = true;
            if state.followed.insert(resource.clone()) {
                change.new.push(served.clone());
            }
            state.served.insert(resource, served);
        }
        drop(state);
        for resource in gone {
            // An empty list exceeds no limit.
            drop(self.cache.replace(&resource, self.cache.arriving_list()));
        }
        change
    }

    /// Returns true while the physical cluster may have definitions that Portolan created.
    pub(super) fn are_definitions_there(&self) -> bool {
        self.are_definitions_there.load(Ordering::Relaxed)
    }

    pub(super) fn note_definitions(&self, are_there: bool) {
        self.are_definitions_there.store(are_there, Ordering::Relaxed);
    }

    /// Audiences of tokens that the API server of the physical cluster accepts.
    pub(super) fn audiences(&self) -> Arc<AcceptedAudiences> {
        self.audiences.lock().expect("no code panics under this lock").clone()
    }

    /// Addresses by which pods there reach Portolan.
    pub(super) fn pod_addresses(&self) -> Arc<PodAddresses> {
        self.pod_addresses.lock().expect("no code panics under this lock").clone()
    }

    /// Replaces these addresses. Returns true if they have changed.
    pub(super) fn replace_pod_addresses(&self, now: PodAddresses) -> bool {
        let mut addresses = self.pod_addresses.lock().expect("no code panics under this lock");
        let is_changed = **addresses != now;
        *addresses = Arc::new(now);
        is_changed
    }

    pub(super) fn all_served(&self) -> Vec<ServedResource> {
        self.served_state().served.values().cloned().collect()
    }

    pub(super) fn all_watched(&self) -> Vec<(GroupResource, Arc<ObservedObject>)> {
        let resources = self.all_served().into_iter().map(|served| served.resource);
        resources
            .flat_map(|resource| {
                let objects = self.cache.all(&resource, None);
                objects.into_iter().map(move |observed| (resource.clone(), observed))
            })
            .collect()
    }
}

/// Connects, keeps the connection, and connects again, forever.
pub(super) async fn connect_forever(worker: Arc<Worker>) {
    let mut pause = FIRST_PAUSE;
    loop {
        // A physical cluster is connected, or away, for long: neither state takes the room of the other.
        match Box::pin(open(&worker)).await {
            Ok((session, schedule)) => {
                pause = FIRST_PAUSE;
                worker.session_opened(&session);
                Box::pin(run_session(&worker, session, schedule)).await;
                worker.session_lost();
            }
            Err(why) => {
                worker.note_failure(&why.0).await;
                worker.report_cluster(Err(why)).await;
            }
        }
        worker.check_newest_quietly().await;
        if worker.is_limit_exceeded() {
            pause = pause.max(LIMIT_CHECK);
        }
        tokio::time::sleep(jitter(&worker.seams, pause)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

async fn open(worker: &Worker) -> Result<(Arc<Session>, DiscoverySchedule), (String, String)> {
    let client = match tokio::time::timeout(CONNECT, worker.connector.connect()).await {
        Ok(Ok(client)) => client,
        Ok(Err(error @ ConnectError::Refused(_))) => return Err(("InvalidConnection".into(), error.to_string())),
        Ok(Err(error @ ConnectError::Failed(_))) => return Err(("Unreachable".into(), error.to_string())),
        Err(_) => return Err(("Unreachable".into(), format!("no connection within {} s", CONNECT.as_secs()))),
    };
    let api = DownstreamClient::new(client, worker.config.request_timeout).charging(worker.memory.clone());
    // One that has just started answers before it serves all that it has.
    api.ready().await.map_err(|error| reason_of(&error))?;
    let health = health::probe(&api).await.map_err(|error| reason_of(&error))?;
    // If upstream cannot answer now, discovery assumes definitions: nothing else depends on it.
    let has_definitions = worker.read_custom_rules().await.map_or(true, |definitions| !definitions.is_empty());
    let found = discover(&api, &worker.rules()).await.map_err(|error| reason_of(&error))?;
    let schedule = DiscoverySchedule::after_opening(has_definitions, worker.note_custom_kinds(&found));
    let served = found.served;
    let schema = schema(&api, &health.version, &served).await.map_err(|error| reason_of(&error))?;
    let cache = ReflectorCache::new(worker.memory.clone());
    let audiences = AcceptedAudiences::read(&api, worker.connector.host().as_deref()).await;
    let audiences = Mutex::new(Arc::new(audiences.map_err(|error| reason_of(&error))?));
    let followed = served.keys().cloned().collect();
    let addresses = worker.read_pod_addresses(&api).await.map_err(|error| reason_of(&error))?;
    let session = Arc::new(Session {
        api,
        cache,
        schema,
        served: Mutex::new(ServedState { served, followed }),
        refresh: Notify::new(),
        discovered: Notify::new(),
        are_definitions_there: AtomicBool::new(true),
        audiences,
        pod_addresses: Mutex::new(Arc::new(addresses)),
    });
    if worker.is_limit_exceeded() {
        worker.pay_debts_on(&session);
        measure(worker, &session).await.map_err(|error| reason_of(&error))?;
    }
    worker.note_answer().await;
    worker.report_cluster(Ok(health)).await;
    Ok((session, schedule))
}

/// Measures the objects of the physical cluster, and caches none of them.
///
/// # Errors
/// `Excessive` if they exceed the limits of the cache.
async fn measure(worker: &Worker, session: &Session) -> Result<(), DownstreamError> {
    let limits = worker.config.limits;
    let mut sum = HeldObjects::default();
    let check = |sum: HeldObjects| {
        if limits.permit(sum) { worker.memory.check(sum.bytes) } else { Err(MemoryExcess::Registration(limits)) }
    };
    for served in session.all_served().into_iter().chain([ServedResource::namespaces()]) {
        let add = |page: Vec<Value>| {
            sum = page.into_iter().fold(sum, |sum, object| sum + ObservedObject::new(object).held());
            check(sum).map(|()| true).map_err(MemoryExcess::error)
        };
        session.api.pages(&served.path(None, None), annotations::DOWN_CLUSTER, add).await?;
    }
    Ok(())
}

/// Reads the fields of an older physical cluster. Without an answer all fields count as known.
async fn schema(
    api: &DownstreamClient,
    version: &str,
    served: &HashMap<GroupResource, ServedResource>,
) -> Result<Option<OpenApiFields>, DownstreamError> {
    if !may_lack_fields(version) {
        return Ok(None);
    }
    // Unknown fields of custom kinds are refused on write.
    let fixed = served.values().filter(|served| !is_custom(&served.resource)).cloned();
    match OpenApiFields::read(api, fixed).await {
        Ok(schema) => Ok(Some(schema)),
        Err(error) if matches!(error.code(), 403 | 404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns when the physical cluster has not answered for several heartbeats.
async fn run_session(worker: &Arc<Worker>, session: Arc<Session>, schedule: DiscoverySchedule) {
    let (mut watches, wrapper) = (JoinSet::new(), &worker.config.tasks);
    watches.spawn(wrapper.wrap(reflector::follow(worker.clone(), session.clone(), ServedResource::namespaces())));
    watches.spawn(wrapper.wrap(events::follow(worker.clone(), session.clone())));
    watches.spawn(wrapper.wrap(custom_kinds::discover_forever(worker.clone(), session.clone(), schedule)));
    for served in session.all_served() {
        watches.spawn(wrapper.wrap(reflector::follow(worker.clone(), session.clone(), served)));
    }
    let (mut silent_since, mut audiences_read) = (None, Instant::now());
    loop {
        tokio::select! {
            () = wait_for_heartbeat(worker, &session, silent_since) => {}
            () = session.discovered.notified(), if silent_since.is_none() => {}
            excess = session.cache.until_exceeded() => {
                worker.state().is_limit_exceeded = true;
                return worker.report_cluster(Err(reason_of(&excess.error()))).await;
            }
        }
        worker.check_newest_quietly().await;
        match health::probe(&session.api.probing()).await {
            Ok(health) => {
                worker.note_answer().await;
                worker.resume_after_silence(silent_since.take());
                worker.report_cluster(check_readable(&session, health)).await;
            }
            Err(error) => {
                worker.note_failure(&reason_of(&error).0).await;
                let since = *silent_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= worker.config.heartbeat * SILENT_HEARTBEATS {
                    return worker.report_cluster(Err(reason_of(&error))).await;
                }
            }
        }
        if audiences_read.elapsed() >= AUDIENCES && silent_since.is_none() {
            audiences_read = Instant::now();
            refresh_audiences(worker, &session).await;
            worker.refresh_pod_addresses(&session).await;
        }
    }
}

/// Returns the health of a physical cluster of which everything can be read.
fn check_readable(session: &Session, health: health::ClusterHealth) -> Result<health::ClusterHealth, (String, String)> {
    match session.cache.unreadable() {
        Some(why) => Err((LIMIT_EXCEEDED.to_owned(), why)),
        None => Ok(health),
    }
}

/// Waits for the next heartbeat, or until the physical cluster is in doubt. During a silence the next check comes
/// sooner, but never immediately.
async fn wait_for_heartbeat(worker: &Worker, session: &Session, silent_since: Option<Instant>) {
    let heartbeat = jitter(&worker.seams, worker.config.heartbeat);
    match silent_since {
        None => session.api.rest_or_doubt(heartbeat).await,
        Some(since) => tokio::time::sleep(heartbeat.min(since.elapsed().max(FIRST_PAUSE))).await,
    }
}

/// Reads the accepted audiences again. Copies are planned again when they have changed.
async fn refresh_audiences(worker: &Worker, session: &Session) {
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

impl Worker {
    fn session_opened(&self, session: &Arc<Session>) {
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

    fn session_lost(&self) {
        {
            let mut state = self.state();
            state.session = None;
            state.unreachable_since = Some(state.heartbeats.silent_since(Instant::now()));
        }
        self.enqueue_everything();
    }

    /// Returns true if the last session ended because the physical cluster has more data than the cache may hold.
    fn is_limit_exceeded(&self) -> bool {
        self.state().is_limit_exceeded
    }

    fn pay_debts_on(&self, session: &Arc<Session>) {
        self.state().limited_session = Some(session.clone());
        self.queue.add(Work::Debts);
    }

    /// Enqueues everything after a long silence: failed work would else wait long for its next try.
    fn resume_after_silence(&self, silent_since: Option<Instant>) {
        if silent_since.is_some_and(|since| since.elapsed() >= LONG_SILENCE) {
            self.enqueue_everything();
        }
    }

    async fn check_newest_quietly(&self) {
        if let Err(error) = self.check_newest().await {
            tracing::debug!(cluster = %self.config.name, %error, "the newest syncer cannot be read");
        }
    }
}

/// Amounts that a physical cluster has or gives.
pub(super) type NodeAmounts = Option<ResourceAmounts>;

/// Bounds a text from a physical cluster.
pub(super) fn bounded_text(value: &Value) -> String {
    crate::status::bounds_text(value.as_str().unwrap_or_default())
}
