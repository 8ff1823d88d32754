//! Sessions of an agent: one with each server that shares the store.
//!
//! Behind one address may be several servers. The agent dials until it has a session with as many as the servers say
//! there are; a server that it reached before refuses the second session.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use futures::StreamExt as _;
use jiff::Timestamp;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    session::{Session, SessionEnd, SessionRole},
    wire::{GoodbyeCode, Hello, PROTOCOL, frame::Kind},
};

use super::{
    AgentConfig, AgentCredential, AgentError,
    backoff::Backoff,
    credential,
    dial::ServerConnection,
    proxy::{self, MemberServices},
    tls::{ServerTrust, client_config},
};

/// Time for the greeting of the server.
const GREETING: Duration = Duration::from_secs(10);
/// Life of a session after which the backoff starts again.
const STABLE: Duration = Duration::from_secs(30);
/// Bound of the pause before the next server is looked for.
const NEXT_SERVER: Duration = Duration::from_secs(1);
/// Bound of the pause after a newer session of the same agent took over: two agents share a credential.
const REPLACED: Duration = Duration::from_secs(30);
/// Bound of the pause before a renewal is tried again.
const RENEWAL_RETRY: Duration = Duration::from_secs(600);
/// Interval of looks at the number of servers.
const LOOK: Duration = Duration::from_secs(1);
/// Time for the last frames of a session.
const LAST: Duration = Duration::from_millis(100);
/// Most servers that the agent connects to.
const MAX_SERVERS: u32 = 16;

/// Session with one server.
struct ServerSession {
    session: Session,
    since: Instant,
    /// True if it began under a certificate that has been renewed since.
    is_outdated: bool,
}

/// End of the session with a server.
struct EndedSession {
    server: String,
    epoch: u64,
    end: SessionEnd,
}

/// Sessions with all servers. After a renewal of the certificate they are replaced one after the other.
pub(super) struct SessionSet<'a> {
    config: &'a AgentConfig,
    credential: AgentCredential,
    live: HashMap<String, ServerSession>,
    tasks: JoinSet<EndedSession>,
    backoff: Backoff,
    next_dial: Instant,
}

impl<'a> SessionSet<'a> {
    pub(super) fn new(config: &'a AgentConfig, credential: AgentCredential) -> Self {
        Self {
            config,
            credential,
            live: HashMap::new(),
            tasks: JoinSet::new(),
            backoff: Backoff::new(config.seams.clone()),
            next_dial: Instant::now(),
        }
    }

    /// Keeps the sessions until `shutdown`, or until the certificate has ended without a renewal.
    ///
    /// # Errors
    /// A server refuses the certificate.
    pub(super) async fn run(mut self, shutdown: &CancellationToken) -> Result<(), AgentError> {
        let seams = self.config.seams.clone();
        let renewal = credential::sleep_until(&seams, self.renewal());
        tokio::pin!(renewal);
        let mut looks = tokio::time::interval(LOOK);
        let ended = loop {
            tokio::select! {
                () = shutdown.cancelled() => break Ok(()),
                () = &mut renewal => match shutdown.run_until_cancelled(self.renew()).await {
                    Some(true) => renewal.set(credential::sleep_until(&seams, self.renewal())),
                    Some(false) | None => break Ok(()),
                },
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => match ended {
                    Ok(ended) => self.note_end(&ended),
                    Err(error) => tracing::error!(%error, "a session panicked"),
                },
                () = sleep_until(self.next_dial), if self.misses_servers() => match self.dial().await {
                    Err(error) if error.is_final() => break Err(error),
                    Ok(()) | Err(_) => {}
                },
                _ = looks.tick() => {}
            }
        };
        for server in self.live.values() {
            server.session.finish(GoodbyeCode::GoodbyeStopping, "the agent stops or renews its certificate");
        }
        let _ = timeout(Duration::from_secs(1), async { while self.tasks.join_next().await.is_some() {} }).await;
        ended
    }

    /// Renews the certificate while the sessions continue. Returns false if it has ended.
    async fn renew(&mut self) -> bool {
        match super::renew(self.config, &self.credential).await {
            Ok(renewed) => {
                self.credential = renewed;
                self.live.values_mut().for_each(|server| server.is_outdated = true);
                self.next_dial = Instant::now() + self.backoff.within(NEXT_SERVER);
                true
            }
            Err(error) => {
                let now = self.config.seams.clock.now();
                let validity = self.credential.validity().ok().flatten().filter(|validity| !validity.is_over(now));
                let until = validity.map(|validity| validity.until.to_string());
                tracing::warn!(%error, until, "the certificate is not renewed yet");
                until.is_some()
            }
        }
    }

    /// Returns the time of the next renewal. One that was missed is tried again after a while.
    fn renewal(&self) -> Timestamp {
        let now = self.config.seams.clock.now();
        let validity = self.credential.validity().ok().flatten();
        let Some(validity) = validity else { return now };
        if now < validity.renewal() {
            return validity.renewal();
        }
        now.saturating_add(self.backoff.within(RENEWAL_RETRY)).map_or(validity.until, |retry| retry.min(validity.until))
    }

    /// Returns true if there is a server to dial: one without a session, or with one under an earlier certificate.
    fn misses_servers(&self) -> bool {
        if self.live.values().any(|server| server.is_outdated) {
            return true;
        }
        let wanted = self.live.values().map(|server| server.session.servers()).max().unwrap_or(1);
        self.live.len() < wanted.clamp(1, MAX_SERVERS) as usize
    }

    /// Connects to one more server.
    async fn dial(&mut self) -> Result<(), AgentError> {
        match self.establish().await {
            Ok(()) => {
                self.next_dial = Instant::now() + self.backoff.within(NEXT_SERVER);
                Ok(())
            }
            Err(error) => {
                let pause = self.backoff.pause();
                self.next_dial = Instant::now() + pause;
                let pause_ms = pause.as_millis();
                tracing::warn!(server = %self.config.server, %error, pause_ms, "no session with the server");
                Err(error)
            }
        }
    }

    async fn establish(&mut self) -> Result<(), AgentError> {
        let trust = ServerTrust::Authority(self.credential.authority.clone());
        let tls = client_config(&trust, Some(&self.credential))?;
        let mut connection = ServerConnection::open(&self.config.server, tls).await?;
        let (session, outgoing) = Session::new(SessionRole::Agent, 0);
        // A server replaces a session that the greeting does not name.
        let current = self.live.iter().filter(|(_, server)| !server.is_outdated);
        let servers = current.map(|(id, _)| id.clone()).collect();
        session.say(Kind::Hello(Hello { protocol: PROTOCOL, version: self.config.version.clone(), servers }));
        let mut incoming = connection.tunnel(outgoing).await?;
        let greeting = timeout(GREETING, incoming.next()).await;
        let greeting = greeting.map_err(|_| AgentError::Unreachable("it does not greet".into()))?;
        let frame = match greeting {
            Some(Ok(frame)) => frame,
            Some(Err(status)) => return Err(AgentError::Unreachable(status.to_string())),
            None => return Err(AgentError::Unreachable("it closed the connection".into())),
        };
        let welcome = match frame.kind {
            Some(Kind::Welcome(welcome)) if welcome.protocol == PROTOCOL => welcome,
            Some(Kind::Goodbye(goodbye)) => {
                let end = SessionEnd::Left(goodbye.code(), goodbye.reason.into());
                return Err(AgentError::Unreachable(end.to_string()));
            }
            _ => return Err(AgentError::Unreachable("it speaks another version of the protocol".into())),
        };
        session.begin(frame.epoch, welcome.servers);
        tracing::info!(server = %self.config.server, id = welcome.server, epoch = frame.epoch, "connected");
        let live = ServerSession { session: session.clone(), since: Instant::now(), is_outdated: false };
        self.live.insert(welcome.server.clone(), live);
        let (member, server, keepalive) = (self.config.member.clone(), welcome.server, self.config.keepalive);
        self.tasks.spawn(async move {
            let (end, ()) = tokio::join!(session.run(incoming, keepalive), serve_streams(&session, &member));
            // The goodbye leaves.
            tokio::time::sleep(LAST).await;
            drop(connection);
            EndedSession { server, epoch: session.epoch(), end }
        });
        Ok(())
    }

    /// Forgets a session, unless a newer one with the same server has taken its place: a server may notice the loss of
    /// a session before the agent does.
    fn note_end(&mut self, ended: &EndedSession) {
        let Entry::Occupied(live) = self.live.entry(ended.server.clone()) else { return };
        if live.get().session.epoch() != ended.epoch {
            return;
        }
        if live.remove().since.elapsed() > STABLE {
            self.backoff.reset();
        }
        let pause = match ended.end {
            SessionEnd::Left(GoodbyeCode::GoodbyeReplaced, _) => self.backoff.within(REPLACED),
            _ => self.backoff.pause(),
        };
        self.next_dial = Instant::now() + pause;
        let (server, reason, pause_ms) = (&self.config.server, ended.end.to_string(), pause.as_millis());
        tracing::warn!(%server, id = ended.server, reason, pause_ms, "the session with the server ended");
    }
}

/// Serves the streams that the server opens until the session ends, which ends them.
async fn serve_streams(session: &Session, member: &MemberServices) {
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            stream = session.accept() => match stream {
                Some(stream) => drop(streams.spawn(proxy::serve(stream, member.clone()))),
                None => return,
            },
            Some(_) = streams.join_next(), if !streams.is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_types::Seams;
    use tower::util::BoxCloneSyncService;

    use super::*;
    use crate::{
        agent::{CredentialFile, MemberBody},
        gateway::BodyError,
        session::Keepalive,
    };

    #[tokio::test]
    async fn the_end_of_an_older_session_leaves_the_newer_one() {
        let unreachable = |_: http::Request<MemberBody>| {
            std::future::ready(Err::<http::Response<MemberBody>, BodyError>("none".into()))
        };
        let config = AgentConfig {
            server: "https://127.0.0.1:1".parse().unwrap(),
            token_file: "token".into(),
            credentials: Arc::new(CredentialFile::new("credential.json".into())),
            member: MemberServices {
                own: BoxCloneSyncService::new(tower::service_fn(unreachable)),
                access: BoxCloneSyncService::new(tower::service_fn(unreachable)),
            },
            keepalive: Keepalive::default(),
            version: "v1".into(),
            seams: Seams::system(),
        };
        let mut sessions = SessionSet::new(&config, AgentCredential::default());
        let (session, _outgoing) = Session::new(SessionRole::Agent, 2);
        sessions.live.insert("a".into(), ServerSession { session, since: Instant::now(), is_outdated: false });
        for (server, epoch, misses) in [("b", 2, false), ("a", 1, false), ("a", 2, true), ("a", 2, true)] {
            sessions.note_end(&EndedSession { server: server.into(), epoch, end: SessionEnd::Silent });
            assert_eq!(sessions.misses_servers(), misses, "{server} {epoch}");
        }
    }
}
