//! Resolver of names that tenants chose. The system's resolver blocks a thread without a time limit, so lookups run on
//! a few separate threads, and tenants take turns.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, ToSocketAddrs as _},
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use portolan_types::{LogicalClusterId, MonotonicInstant, round_robin::RoundRobinQueue};
use tokio::sync::oneshot;

/// Concurrent look-ups: in all, and of one tenant.
const THREADS: usize = 16;
const THREADS_PER_TENANT: usize = 3;
/// Limit of queued look-ups of one tenant.
const MAX_WAITING: usize = 256;
/// Time for which a result is cached, including a negative one.
const CACHE_TIME: Duration = Duration::from_secs(5);
const MAX_CACHED: usize = 1024;
/// Idle time after which a thread ends.
const IDLE_TIME: Duration = Duration::from_secs(60);

/// Addresses of a name; `None` if it has none.
pub(super) type ResolvedAddresses = Option<Arc<[IpAddr]>>;
type LookupFn = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// Resolver of all tenants.
#[derive(Clone)]
pub(super) struct TenantResolver(Arc<ResolverShared>);

struct ResolverShared {
    lookup: Box<LookupFn>,
    state: Mutex<ResolverState>,
    changed: Condvar,
}

struct ResolverState {
    turns: RoundRobinQueue<LogicalClusterId, LookupJob>,
    threads: usize,
    unused: usize,
    cache: HashMap<String, (MonotonicInstant, ResolvedAddresses)>,
}

struct LookupJob {
    name: String,
    reply: oneshot::Sender<ResolvedAddresses>,
}

impl TenantResolver {
    /// Creates a resolver that asks the system.
    pub(super) fn with_system_resolver() -> Self {
        Self::new(|name| Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect()))
    }

    fn new(lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Self {
        let shared = ResolverShared {
            lookup: Box::new(lookup),
            state: Mutex::new(ResolverState::new()),
            changed: Condvar::new(),
        };
        Self(Arc::new(shared))
    }

    /// Resolves a name of a tenant. Dropping the future removes it from the queue.
    pub(super) async fn addresses(&self, tenant: LogicalClusterId, name: &str) -> ResolvedAddresses {
        if let Ok(address) = name.parse() {
            return Some([address].into());
        }
        let answer = {
            let mut state = self.0.state.lock();
            if let Some(found) = state.cached(name) {
                return found;
            }
            let (reply, answer) = oneshot::channel();
            state.enqueue(tenant, LookupJob { name: name.to_owned(), reply })?;
            if state.unused == 0 && state.threads < THREADS {
                state.threads += usize::from(self.0.start());
            }
            answer
        };
        self.0.changed.notify_one();
        answer.await.ok().flatten()
    }
}

impl ResolverState {
    fn new() -> Self {
        Self { turns: RoundRobinQueue::new(THREADS_PER_TENANT), threads: 0, unused: 0, cache: HashMap::new() }
    }

    fn cached(&self, name: &str) -> Option<ResolvedAddresses> {
        let (until, found) = self.cache.get(name)?;
        (MonotonicInstant::now() < *until).then(|| found.clone())
    }

    fn insert(&mut self, name: String, found: ResolvedAddresses) {
        let now = MonotonicInstant::now();
        if self.cache.len() >= MAX_CACHED {
            self.cache.retain(|_, (until, _)| now < *until);
        }
        if self.cache.len() < MAX_CACHED {
            self.cache.insert(name, (now + CACHE_TIME, found));
        }
    }

    /// Queues a look-up; `None` if the tenant's queue is full.
    fn enqueue(&mut self, tenant: LogicalClusterId, job: LookupJob) -> Option<()> {
        if self.turns.waiting_of(&tenant) >= MAX_WAITING {
            self.turns.retain(&tenant, |job| !job.reply.is_closed());
        }
        if self.turns.waiting_of(&tenant) >= MAX_WAITING {
            return None;
        }
        self.turns.push(tenant, job);
        Some(())
    }

    /// Takes the next look-up with a waiting caller; the caller of this reports its end with `turns.done`.
    fn take(&mut self) -> Option<(LogicalClusterId, LookupJob)> {
        loop {
            let (tenant, job) = self.turns.take()?;
            if !job.reply.is_closed() {
                return Some((tenant, job));
            }
            self.turns.done(&tenant);
        }
    }
}

impl ResolverShared {
    /// Starts a thread if one more is allowed; returns true if it did.
    fn start(self: &Arc<Self>) -> bool {
        let shared = self.clone();
        let started = thread::Builder::new().name("webhook-names".to_owned()).spawn(move || shared.work());
        if let Err(error) = &started {
            tracing::error!(%error, "no thread for looking up webhook names");
        }
        started.is_ok()
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let Some((tenant, job)) = state.take() else {
                state.unused += 1;
                let waited = self.changed.wait_for(&mut state, IDLE_TIME);
                state.unused -= 1;
                if waited.timed_out() {
                    state.threads -= 1;
                    return;
                }
                continue;
            };
            let found = match state.cached(&job.name) {
                Some(found) => found,
                None => {
                    drop(state);
                    let found: ResolvedAddresses = (self.lookup)(&job.name).ok().map(Into::into);
                    state = self.state.lock();
                    state.insert(job.name, found.clone());
                    found
                }
            };
            state.turns.done(&tenant);
            // A caller that has left does not need the result.
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

    /// Returns a resolver in which names like `slow…` wait for a signal, and a channel that reports each look-up.
    fn names() -> (TenantResolver, mpsc::Receiver<String>, mpsc::Sender<()>) {
        let ((asked, told), (go, proceed)) = (mpsc::channel(), mpsc::channel::<()>());
        let proceed = Mutex::new(proceed);
        let names = TenantResolver::new(move |name: &str| {
            asked.send(name.to_owned()).map_err(io::Error::other)?;
            if name.starts_with("slow") {
                proceed.lock().recv().map_err(io::Error::other)?;
            }
            if name.starts_with("none") { Err(io::ErrorKind::NotFound.into()) } else { Ok(vec![[192, 0, 2, 1].into()]) }
        });
        (names, told, go)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn slow_lookups_delay_no_other_tenant() {
        let (names, told, go) = names();
        let slow: Vec<_> = (0..50)
            .map(|n| {
                let names = names.clone();
                tokio::spawn(async move { names.addresses(A, &format!("slow{n}")).await })
            })
            .collect();
        let begun: Vec<String> = (0..THREADS_PER_TENANT).map(|_| told.recv().unwrap()).collect();
        assert_eq!(names.addresses(b(), "quick").await.map(|found| found.len()), Some(1));
        assert_eq!(told.recv().unwrap(), "quick");
        assert!(told.try_recv().is_err(), "a tenant has no more than its share: {begun:?}");
        // No request waits for the queued ones, so only those already started are looked up.
        for task in &slow {
            task.abort();
        }
        for task in slow {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        (0..THREADS_PER_TENANT).for_each(|_| go.send(()).unwrap());
        assert!(names.addresses(A, "after").await.is_some());
        assert_eq!(told.recv().unwrap(), "after");
        let state = names.0.state.lock();
        assert!(state.threads <= THREADS && state.turns.waiting() == 0);
    }

    #[tokio::test]
    async fn results_are_cached_including_negative_ones() {
        let (names, told, _go) = names();
        for _ in 0..3 {
            assert_eq!(names.addresses(A, "here").await.as_deref(), Some(&[IpAddr::from([192, 0, 2, 1])][..]));
            assert_eq!(names.addresses(A, "none").await, None);
            assert_eq!(names.addresses(A, "::1").await.as_deref(), Some(&[IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])][..]));
        }
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["here", "none"]);
    }

    #[test]
    fn the_lookup_queue_is_bounded() {
        let mut state = ResolverState::new();
        let mut kept = Vec::new();
        let enqueue = |state: &mut ResolverState, kept: &mut Vec<oneshot::Receiver<ResolvedAddresses>>| {
            let (reply, answer) = oneshot::channel();
            kept.push(answer);
            state.enqueue(A, LookupJob { name: "x".into(), reply })
        };
        (0..MAX_WAITING).for_each(|_| assert!(enqueue(&mut state, &mut kept).is_some()));
        assert!(enqueue(&mut state, &mut kept).is_none());
        kept.truncate(MAX_WAITING / 2);
        assert!(enqueue(&mut state, &mut kept).is_some(), "who has gone makes room");
    }
}
