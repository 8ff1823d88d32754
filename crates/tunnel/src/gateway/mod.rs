//! Server's end of the tunnels: one session per agent.
//!
//! The caller authenticates agents. A newer session of an agent replaces the older one. An agent that breaks the
//! protocol loses its session and waits [`PENALTY`] for the next.

mod connector;

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderValue, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use jiff::Timestamp;
use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, Seams, Uid, agent::AgentId};
use tokio::{sync::Notify, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{
    Streaming,
    codec::{Codec as _, EncodeBody, SingleMessageCompressionOverride},
};

use crate::{
    session::{Keepalive, OpenError, OutgoingFrames, Session, SessionEnd, SessionRole, TunnelStream},
    wire::{self, Frame, GoodbyeCode, Hello, MAX_SERVERS, MAX_STREAMS, PROTOCOL, Welcome, frame::Kind},
};

pub use connector::TunnelConnector;

/// Error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Body of the response to an agent: the frames of the server.
pub type FrameBody = UnsyncBoxBody<Bytes, BodyError>;

/// Most agents with a session.
pub const MAX_SESSIONS: usize = 4_096;
/// Most agents of one tenant with a session, a quarter of all. Registrations in root have no such bound.
pub const MAX_TENANT_SESSIONS: usize = MAX_SESSIONS / 4;
/// Most log lines about the sessions of one agent within [`LOG_WINDOW`].
const MAX_LOG_LINES: u32 = 10;
/// Time over which log lines about one agent are counted.
const LOG_WINDOW: Duration = Duration::from_secs(60);
/// Most connections of an agent that have not greeted yet.
const MAX_GREETINGS: usize = 8;
/// Time for the agent's first frame.
const GREETING: Duration = Duration::from_secs(10);
/// Time after a broken rule in which the agent gets no session.
pub const PENALTY: Duration = Duration::from_secs(10);

/// Reason of the end of a revoked session.
const DELETED: &str = "the physical cluster was deleted";

/// Refusal of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedSession {
    /// Too many agents have a session.
    #[error("too many agents are connected")]
    Full,
    /// Too many agents of the tenant have a session.
    #[error("too many agents of this workspace and those beside it are connected")]
    TenantFull,
    /// Too many connections of the agent have not greeted yet.
    #[error("too many connections of this agent have not greeted yet")]
    Silent,
    /// The agent broke the protocol a moment ago.
    #[error("the agent broke the protocol, and may connect again in {} s", .0.as_secs())]
    Penalty(Duration),
    /// The server stops.
    #[error("the server stops")]
    Stopping,
}

/// State of an agent, as this server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentState {
    /// It has a session.
    Connected {
        /// Version that it claims.
        version: String,
        /// Start of the session.
        since: Timestamp,
        /// Open streams.
        streams: usize,
    },
    /// It had a session.
    Disconnected(SessionEnd),
    /// It had none since the start of this server.
    Unknown,
}

/// Lookup of the workspace below root that a logical cluster belongs to.
pub type TenantLookup = Box<dyn Fn(LogicalClusterId) -> LogicalClusterId + Send + Sync>;

/// Server's end of all tunnels.
pub struct TunnelGateway {
    /// Lookup of tenants; without one, each workspace is its own.
    tenants: OnceLock<TenantLookup>,
    /// Identity of this server.
    server: String,
    /// Servers that share the store.
    servers: AtomicU32,
    seams: Seams,
    agents: Mutex<HashMap<AgentId, AgentEntry>>,
    /// Notified when an agent connects.
    arrivals: Notify,
    tasks: TaskTracker,
    keepalive: Keepalive,
    closing: CancellationToken,
}

/// Session of an agent, or the end of the last one.
#[derive(Default)]
struct AgentEntry {
    /// Connections that have not greeted yet.
    greetings: usize,
    current: Option<CurrentSession>,
    last_end: Option<SessionEnd>,
    /// End of the penalty for a broken rule.
    not_before: Option<Instant>,
    /// Tenant that the session is charged to.
    tenant: Option<LogicalClusterId>,
    log: LogBudget,
}

/// Count of log lines about one agent, which reconnects as often as it likes.
#[derive(Debug, Default)]
struct LogBudget {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl LogBudget {
    /// Counts a line. Returns the number of lines left out before it; `None` if it is left out itself.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= LOG_WINDOW) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines >= MAX_LOG_LINES {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

struct CurrentSession {
    session: Session,
    version: String,
    since: Timestamp,
}

impl TunnelGateway {
    /// Creates a gateway. Its sessions end when `closing` is cancelled.
    pub fn new(seams: Seams, keepalive: Keepalive, closing: CancellationToken) -> Arc<Self> {
        let server = seams.uid().to_string();
        let (agents, tasks, servers) = (Mutex::default(), TaskTracker::new(), AtomicU32::new(1));
        let (tenants, arrivals) = (OnceLock::new(), Notify::new());
        Arc::new(Self { tenants, server, servers, seams, agents, arrivals, tasks, keepalive, closing })
    }

    /// Sets the lookup of tenants, once.
    pub fn set_tenants(&self, lookup: TenantLookup) {
        drop(self.tenants.set(lookup));
    }

    /// Returns the identity of this server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Returns the number of servers that share the store.
    pub fn servers(&self) -> u32 {
        self.servers.load(Ordering::Relaxed)
    }

    /// Sets the number of servers that share the store, and tells the agents.
    pub fn set_servers(&self, count: u32) {
        if self.servers.swap(count.max(1), Ordering::Relaxed) == count.max(1) {
            return;
        }
        for entry in self.agents.lock().values() {
            if let Some(current) = &entry.current {
                current.session.say(Kind::Servers(count.max(1)));
            }
        }
    }

    /// Starts a session with an authenticated agent over the body of its request. It ends after `valid_for`, the rest
    /// of the life of its credential.
    ///
    /// # Errors
    /// [`RefusedSession`].
    pub fn accept<B>(
        self: &Arc<Self>,
        agent: AgentId,
        valid_for: Option<Duration>,
        body: B,
    ) -> Result<Response<FrameBody>, RefusedSession>
    where
        B: http_body::Body + Send + 'static,
        B::Error: Into<BodyError>,
    {
        self.admit(&agent)?;
        let mut epoch = [0; 8];
        self.seams.entropy.fill(&mut epoch);
        // No session has the number zero.
        let (session, outgoing) = Session::new(SessionRole::Server, u64::from_le_bytes(epoch) | 1);
        let incoming = wire::decode_request(body);
        let gateway = self.clone();
        self.tasks.spawn(async move { gateway.serve(agent, session, incoming, valid_for).await });
        Ok(response(outgoing))
    }

    /// Counts a connection that has to greet, if the agent may have one more.
    fn admit(&self, agent: &AgentId) -> Result<(), RefusedSession> {
        if self.closing.is_cancelled() {
            return Err(RefusedSession::Stopping);
        }
        let mut agents = self.agents.lock();
        let entry = agents.get(agent);
        let left = entry.and_then(|entry| entry.not_before).map(|end| end.saturating_duration_since(Instant::now()));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            return Err(RefusedSession::Penalty(left));
        }
        let connected = agents.values().filter(|entry| entry.current.is_some()).count();
        if connected >= MAX_SESSIONS && entry.is_none_or(|entry| entry.current.is_none()) {
            return Err(RefusedSession::Full);
        }
        let tenant = self.tenants.get().map_or(agent.workspace, |lookup| lookup(agent.workspace));
        let is_counted = |entry: &AgentEntry| entry.tenant == Some(tenant) && entry.current.is_some();
        if tenant != LogicalClusterId::ROOT
            && entry.is_none_or(|entry| entry.current.is_none())
            && agents.values().filter(|entry| is_counted(entry)).count() >= MAX_TENANT_SESSIONS
        {
            return Err(RefusedSession::TenantFull);
        }
        if entry.is_some_and(|entry| entry.greetings >= MAX_GREETINGS) {
            return Err(RefusedSession::Silent);
        }
        let entry = agents.entry(agent.clone()).or_default();
        (entry.greetings, entry.tenant) = (entry.greetings + 1, Some(tenant));
        Ok(())
    }

    async fn serve(
        &self,
        agent: AgentId,
        session: Session,
        mut incoming: Streaming<Frame>,
        valid_for: Option<Duration>,
    ) {
        let greeted = self.greeting(&mut incoming).await;
        self.note_greeting(&agent);
        let hello = match greeted {
            Ok(hello) => hello,
            Err(end) => {
                if let SessionEnd::Violation(_) = end {
                    self.note_end(&agent, &session, end.clone());
                }
                return session.abort(end);
            }
        };
        if !self.register(&agent, &session, &hello) {
            return;
        }
        let expiry = async {
            match valid_for {
                Some(rest) => tokio::time::sleep(rest).await,
                None => std::future::pending().await,
            }
        };
        let ending = async {
            tokio::select! {
                () = self.closing.cancelled() => session.finish(GoodbyeCode::GoodbyeStopping, "the server stops"),
                () = expiry => session.finish(GoodbyeCode::GoodbyeRevoked, "its certificate has expired"),
            }
            std::future::pending().await
        };
        let end = tokio::select! {
            end = session.run(incoming, self.keepalive) => end,
            end = ending => end,
        };
        self.note_end(&agent, &session, end);
    }

    /// Waits for the agent's first frame.
    ///
    /// # Errors
    /// The reason that there will be no session.
    async fn greeting(&self, incoming: &mut Streaming<Frame>) -> Result<Hello, SessionEnd> {
        let greeted = tokio::select! {
            greeted = tokio::time::timeout(GREETING, incoming.next()) => greeted,
            () = self.closing.cancelled() => {
                return Err(SessionEnd::Ended(GoodbyeCode::GoodbyeStopping, "the server stops".into()));
            }
        };
        match greeted {
            Err(_) => Err(SessionEnd::Silent),
            Ok(None | Some(Err(_))) => Err(SessionEnd::Closed),
            Ok(Some(Ok(frame))) => check_hello(frame).map_err(SessionEnd::Violation),
        }
    }

    /// Records that a connection no longer waits for its greeting.
    fn note_greeting(&self, agent: &AgentId) {
        if let Some(entry) = self.agents.lock().get_mut(agent) {
            entry.greetings = entry.greetings.saturating_sub(1);
        }
    }

    /// Makes `session` the agent's, in place of an earlier one. Returns false if the agent has one with this server
    /// and did not mean to replace it, or was revoked since it connected.
    fn register(&self, agent: &AgentId, session: &Session, hello: &Hello) -> bool {
        let mut agents = self.agents.lock();
        let Some(entry) = agents.get_mut(agent) else {
            session.finish(GoodbyeCode::GoodbyeRevoked, DELETED);
            return false;
        };
        if entry.current.is_some() && hello.servers.contains(&self.server) {
            session.finish(GoodbyeCode::GoodbyeConnected, "");
            return false;
        }
        session.say(Kind::Welcome(Welcome {
            protocol: PROTOCOL,
            server: self.server.clone(),
            servers: self.servers.load(Ordering::Relaxed),
            streams: u32::try_from(MAX_STREAMS).unwrap_or(u32::MAX),
            window: wire::INITIAL_WINDOW,
        }));
        let (version, since) = (wire::printable(&hello.version), self.seams.clock.now());
        let replaced = entry.current.replace(CurrentSession { session: session.clone(), version, since });
        entry.last_end = None;
        let has_replaced = replaced.is_some();
        if let Some(older) = replaced {
            older.session.finish(GoodbyeCode::GoodbyeReplaced, "");
        }
        let (workspace, cluster, version) = (agent.workspace, agent.name.as_str(), wire::printable(&hello.version));
        if let Some(left_out) = entry.log.take(Instant::now()) {
            let epoch = session.epoch();
            tracing::info!(%workspace, cluster, version, epoch, has_replaced, left_out, "an agent is connected");
        }
        self.arrivals.notify_waiters();
        true
    }

    /// Records the end of a session.
    fn note_end(&self, agent: &AgentId, session: &Session, end: SessionEnd) {
        let (workspace, cluster, reason) = (agent.workspace, agent.name.as_str(), end.to_string());
        let mut agents = self.agents.lock();
        let broken = matches!(end, SessionEnd::Violation(_));
        // A revoked agent has no entry any more.
        let left_out = agents.get_mut(agent).map_or(Some(0), |entry| entry.log.take(Instant::now()));
        if let Some(left_out) = left_out {
            let epoch = session.epoch();
            tracing::info!(%workspace, cluster, epoch, reason, left_out, "the session of an agent ended");
        }
        let Some(entry) = agents.get_mut(agent) else { return };
        if broken {
            entry.not_before = Some(Instant::now() + PENALTY);
        }
        let is_current = entry.current.as_ref().is_some_and(|current| current.session.epoch() == session.epoch());
        if is_current {
            entry.current = None;
        }
        if is_current || broken {
            entry.last_end = Some(end);
        }
    }

    /// Waits until an agent is connected.
    pub async fn connected(&self, agent: &AgentId) {
        loop {
            let mut arrival = pin!(self.arrivals.notified());
            // From here on no arrival is missed.
            arrival.as_mut().enable();
            if self.agents.lock().get(agent).is_some_and(|entry| entry.current.is_some()) {
                return;
            }
            arrival.await;
        }
    }

    /// Opens a stream to an agent.
    ///
    /// # Errors
    /// The agent is not connected to this server, or its session is full.
    pub fn open(&self, agent: &AgentId) -> Result<TunnelStream, OpenError> {
        let session = {
            let agents = self.agents.lock();
            let entry = agents.get(agent).ok_or(OpenError::NotConnected)?;
            let ended = || entry.last_end.clone().map_or(OpenError::NotConnected, OpenError::Ended);
            entry.current.as_ref().ok_or_else(ended)?.session.clone()
        };
        session.open()
    }

    /// Ends the session of an agent whose physical cluster was deleted, and forgets the agent.
    pub fn revoke(&self, agent: &AgentId) {
        let removed = self.agents.lock().remove(agent);
        if let Some(current) = removed.and_then(|entry| entry.current) {
            current.session.finish(GoodbyeCode::GoodbyeRevoked, DELETED);
        }
    }

    /// Ends the sessions of all agents at this address whose uid is not `stays`.
    pub fn revoke_others(&self, workspace: LogicalClusterId, name: &str, stays: Option<&Uid>) {
        let is_other =
            |agent: &&AgentId| agent.workspace == workspace && agent.name.as_str() == name && stays != Some(&agent.uid);
        let others: Vec<AgentId> = self.agents.lock().keys().filter(is_other).cloned().collect();
        others.iter().for_each(|agent| self.revoke(agent));
    }

    /// Returns the state of an agent.
    pub fn state(&self, agent: &AgentId) -> AgentState {
        let agents = self.agents.lock();
        let Some(entry) = agents.get(agent) else { return AgentState::Unknown };
        match (&entry.current, &entry.last_end) {
            (Some(current), _) => AgentState::Connected {
                version: current.version.clone(),
                since: current.since,
                streams: current.session.streams(),
            },
            (None, Some(end)) => AgentState::Disconnected(end.clone()),
            (None, None) => AgentState::Unknown,
        }
    }

    /// Returns the number of sessions, and of their streams.
    pub fn count(&self) -> (usize, usize) {
        let agents = self.agents.lock();
        let sessions = agents.values().filter_map(|entry| entry.current.as_ref());
        sessions.fold((0, 0), |(sessions, streams), current| (sessions + 1, streams + current.session.streams()))
    }

    /// Waits until all sessions have ended, after `closing` was cancelled.
    pub async fn ended(&self) {
        self.closing.cancelled().await;
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn check_hello(frame: Frame) -> Result<Hello, &'static str> {
    let Some(Kind::Hello(hello)) = frame.kind else { return Err("the first frame is not a hello") };
    if hello.protocol != PROTOCOL {
        return Err("the agent speaks another version of the protocol");
    }
    if hello.servers.len() > MAX_SERVERS {
        return Err("a hello with too many servers");
    }
    Ok(hello)
}

/// Returns the response that carries the frames of the server.
fn response(outgoing: OutgoingFrames) -> Response<FrameBody> {
    let frames = outgoing.map(Ok::<_, tonic::Status>);
    let encoder = wire::codec().encoder();
    let body = EncodeBody::new_server(encoder, frames, None, SingleMessageCompressionOverride::default(), None);
    let mut response = Response::new(body.map_err(BodyError::from).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(workspace: u64, name: String) -> AgentId {
        let uid = name.parse().unwrap();
        AgentId { workspace: LogicalClusterId::new(workspace), name: name.parse().unwrap(), uid }
    }

    #[tokio::test]
    async fn sessions_are_charged_to_tenants() {
        let gateway = TunnelGateway::new(Seams::system(), Keepalive::default(), CancellationToken::new());
        // Workspaces 20 and up are below 7.
        let tenant = |workspace: LogicalClusterId| {
            if workspace.get() >= 20 { LogicalClusterId::new(7) } else { workspace }
        };
        gateway.set_tenants(Box::new(tenant));
        let connect = |agent: &AgentId| {
            gateway.admit(agent)?;
            let (session, _outgoing) = Session::new(SessionRole::Server, 1);
            assert!(gateway.register(agent, &session, &Hello::default()));
            gateway.note_greeting(agent);
            Ok::<_, RefusedSession>(())
        };
        for number in 0..MAX_TENANT_SESSIONS {
            connect(&agent(20 + number as u64 % 3, format!("a{number}"))).unwrap();
        }
        for (case, agent, expected) in [
            ("one more below the tenant", agent(21, "more".into()), Err(RefusedSession::TenantFull)),
            ("one that is connected comes again", agent(20, "a0".into()), Ok(())),
            ("another tenant", agent(8, "b".into()), Ok(())),
            ("root", agent(LogicalClusterId::ROOT.get(), "c".into()), Ok(())),
        ] {
            assert_eq!(connect(&agent), expected, "{case}");
        }
    }

    #[test]
    fn lines_about_an_agent_are_bounded() {
        let (start, mut log) = (Instant::now(), LogBudget::default());
        let lines = (0..1000).filter(|_| log.take(start).is_some()).count();
        assert_eq!(lines, MAX_LOG_LINES as usize);
        assert_eq!(log.take(start + LOG_WINDOW), Some(990), "the next window says how many were left out");
        assert_eq!(log.take(start + LOG_WINDOW), Some(0));
    }
}
