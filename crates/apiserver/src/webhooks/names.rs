//! Addresses of names that tenants chose. The system's resolver takes a thread for as long as it waits, and nothing ends that:
//! these threads are few and serve nothing else, and tenants take turns for them.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, ToSocketAddrs as _},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use portolan_types::{LogicalClusterId, turns::Turns};
use tokio::sync::oneshot;

/// Names that are looked up at once, and of those the ones of one tenant.
const THREADS: usize = 16;
const SHARE: usize = 3;
/// Look-ups that wait for one tenant.
const MAX_WAITING: usize = 256;
/// How long what was found is remembered, also that nothing was.
const REMEMBERED: Duration = Duration::from_secs(5);
const MAX_REMEMBERED: usize = 1024;
/// A thread that has had nothing to do for so long ends.
const UNUSED: Duration = Duration::from_secs(60);

/// What a name leads to; `None` when nothing was found.
pub(super) type Found = Option<Arc<[IpAddr]>>;
type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// All names of all tenants.
#[derive(Clone)]
pub(super) struct Names(Arc<Shared>);

struct Shared {
    lookup: Box<Lookup>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    turns: Turns<LogicalClusterId, Job>,
    threads: usize,
    unused: usize,
    remembered: HashMap<String, (Instant, Found)>,
}

struct Job {
    name: String,
    reply: oneshot::Sender<Found>,
}

impl Names {
    /// As the system finds them.
    pub(super) fn of_system() -> Self {
        Self::new(|name| Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect()))
    }

    fn new(lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Self {
        let shared = Shared { lookup: Box::new(lookup), state: Mutex::new(State::new()), changed: Condvar::new() };
        Self(Arc::new(shared))
    }

    /// The addresses of a name that a tenant has chosen. Who does not wait any more leaves the line.
    pub(super) async fn addresses(&self, tenant: LogicalClusterId, name: &str) -> Found {
        if let Ok(address) = name.parse() {
            return Some([address].into());
        }
        let answer = {
            let mut state = self.0.state.lock();
            if let Some(found) = state.recall(name) {
                return found;
            }
            let (reply, answer) = oneshot::channel();
            state.wait(tenant, Job { name: name.to_owned(), reply })?;
            if state.unused == 0 && state.threads < THREADS {
                state.threads += usize::from(self.0.start());
            }
            answer
        };
        self.0.changed.notify_one();
        answer.await.ok().flatten()
    }
}

impl State {
    fn new() -> Self {
        Self { turns: Turns::new(SHARE), threads: 0, unused: 0, remembered: HashMap::new() }
    }

    fn recall(&self, name: &str) -> Option<Found> {
        let (until, found) = self.remembered.get(name)?;
        (Instant::now() < *until).then(|| found.clone())
    }

    fn remember(&mut self, name: String, found: Found) {
        let now = Instant::now();
        if self.remembered.len() >= MAX_REMEMBERED {
            self.remembered.retain(|_, (until, _)| now < *until);
        }
        if self.remembered.len() < MAX_REMEMBERED {
            self.remembered.insert(name, (now + REMEMBERED, found));
        }
    }

    /// `None` when too many wait.
    fn wait(&mut self, tenant: LogicalClusterId, job: Job) -> Option<()> {
        if self.turns.waiting_of(&tenant) >= MAX_WAITING {
            self.turns.retain(&tenant, |job| !job.reply.is_closed());
        }
        if self.turns.waiting_of(&tenant) >= MAX_WAITING {
            return None;
        }
        self.turns.push(tenant, job);
        Some(())
    }

    /// The next look-up that somebody waits for, to be ended with `turns.done`.
    fn take(&mut self) -> Option<(LogicalClusterId, Job)> {
        loop {
            let (tenant, job) = self.turns.take()?;
            if !job.reply.is_closed() {
                return Some((tenant, job));
            }
            self.turns.done(&tenant);
        }
    }
}

impl Shared {
    /// Whether there is one thread more.
    fn start(self: &Arc<Self>) -> bool {
        let shared = self.clone();
        let started = thread::Builder::new().name("webhook-names".to_owned()).spawn(move || shared.work());
        if let Err(error) = &started {
            tracing::error!(%error, "there is no thread to look up the names of webhooks");
        }
        started.is_ok()
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let Some((tenant, job)) = state.take() else {
                state.unused += 1;
                let waited = self.changed.wait_for(&mut state, UNUSED);
                state.unused -= 1;
                if waited.timed_out() {
                    state.threads -= 1;
                    return;
                }
                continue;
            };
            let found = match state.recall(&job.name) {
                Some(found) => found,
                None => {
                    drop(state);
                    let found: Found = (self.lookup)(&job.name).ok().map(Into::into);
                    state = self.state.lock();
                    state.remember(job.name, found.clone());
                    found
                }
            };
            state.turns.done(&tenant);
            // Whoever has gone does not need it.
            let _ = job.reply.send(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const A: LogicalClusterId = LogicalClusterId::ROOT;

    fn b() -> LogicalClusterId {
        LogicalClusterId::new(7)
    }

    /// Names of which `slow…` are found when told so. Tells which are looked up.
    fn names() -> (Names, mpsc::Receiver<String>, mpsc::Sender<()>) {
        let ((asked, told), (go, wait)) = (mpsc::channel(), mpsc::channel::<()>());
        let wait = Mutex::new(wait);
        let names = Names::new(move |name: &str| {
            asked.send(name.to_owned()).map_err(io::Error::other)?;
            if name.starts_with("slow") {
                wait.lock().recv().map_err(io::Error::other)?;
            }
            match name.starts_with("none") {
                true => Err(io::ErrorKind::NotFound.into()),
                false => Ok(vec![[192, 0, 2, 1].into()]),
            }
        });
        (names, told, go)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn names_that_are_not_found_in_time_keep_no_other_tenant_waiting() {
        let (names, told, go) = names();
        let slow: Vec<_> = (0..50)
            .map(|n| {
                let names = names.clone();
                tokio::spawn(async move { names.addresses(A, &format!("slow{n}")).await })
            })
            .collect();
        let begun: Vec<String> = (0..SHARE).map(|_| told.recv().unwrap()).collect();
        assert_eq!(names.addresses(b(), "quick").await.map(|found| found.len()), Some(1));
        assert_eq!(told.recv().unwrap(), "quick");
        assert!(told.try_recv().is_err(), "a tenant has no more than its share: {begun:?}");
        // Nobody waits for them any more, and none but those that have begun is looked up.
        for task in &slow {
            task.abort();
        }
        for task in slow {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        (0..SHARE).for_each(|_| go.send(()).unwrap());
        assert!(names.addresses(A, "after").await.is_some());
        assert_eq!(told.recv().unwrap(), "after");
        let state = names.0.state.lock();
        assert!(state.threads <= THREADS && state.turns.waiting() == 0);
    }

    #[tokio::test]
    async fn what_was_found_is_remembered_and_that_nothing_was() {
        let (names, told, _go) = names();
        for _ in 0..3 {
            assert_eq!(names.addresses(A, "here").await.as_deref(), Some(&[IpAddr::from([192, 0, 2, 1])][..]));
            assert_eq!(names.addresses(A, "none").await, None);
            assert_eq!(names.addresses(A, "::1").await.as_deref(), Some(&[IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])][..]));
        }
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["here", "none"]);
    }

    #[test]
    fn as_many_wait_as_there_is_room_for() {
        let mut state = State::new();
        let mut kept = Vec::new();
        let wait = |state: &mut State, kept: &mut Vec<oneshot::Receiver<Found>>| {
            let (reply, answer) = oneshot::channel();
            kept.push(answer);
            state.wait(A, Job { name: "x".into(), reply })
        };
        (0..MAX_WAITING).for_each(|_| assert!(wait(&mut state, &mut kept).is_some()));
        assert!(wait(&mut state, &mut kept).is_none());
        kept.truncate(MAX_WAITING / 2);
        assert!(wait(&mut state, &mut kept).is_some(), "who has gone makes room");
    }
}
