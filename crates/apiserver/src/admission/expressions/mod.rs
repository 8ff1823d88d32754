//! Expressions of webhooks and policies: compiled once per content, kept within bounds, and evaluated on what a request carries.

mod brief;
mod cache;
mod given;
mod rights;

use std::sync::Arc;

use portolan_cel::policy::{
    Change, Effort, MatchConditions, Matched, MutatingPolicy, PolicyVerdict, TooLong, ValidatingPolicy,
};
use portolan_types::Status;
use serde_json::Value;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::Instant,
};

use crate::{
    limits::{FairSeats, Whose, leave_slice},
    metrics::ExpressionMetrics,
};

pub(crate) use brief::Brief;
use cache::Cache;
pub(super) use cache::Source;
pub(super) use given::{Seen, Subject};
pub(super) use rights::Rights;

/// What has been compiled, and who may evaluate for long.
pub(crate) struct Expressions {
    conditions: Cache<MatchConditions>,
    validating: Cache<ValidatingPolicy>,
    mutating: Cache<MutatingPolicy>,
    /// Evaluations that take longer wait for each other: they leave most of the machine to others. Tenants take turns.
    long: FairSeats,
    metrics: ExpressionMetrics,
}

impl Expressions {
    pub(crate) fn new(metrics: ExpressionMetrics) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            conditions: Cache::new(metrics.clone()),
            validating: Cache::new(metrics.clone()),
            mutating: Cache::new(metrics.clone()),
            long: FairSeats::new((cores / 2).max(1)),
            metrics,
        }
    }

    /// Bytes of what is kept compiled, about.
    pub(crate) fn bytes(&self) -> usize {
        self.conditions.bytes() + self.validating.bytes() + self.mutating.bytes()
    }

    /// Whether match conditions hold for what is seen.
    pub(super) async fn matches(&self, source: &Source, seen: &Seen<'_>) -> Result<Matched, Status> {
        let conditions = self.conditions.get(source, |spec| MatchConditions::new(spec, false));
        self.evaluate(seen.brief, || seen.whose(), |effort| seen.with(None, |given| conditions.matches(given, effort)))
            .await
    }

    /// What a validating policy says of what is seen, with parameters.
    pub(super) async fn validates(
        &self,
        source: &Source,
        seen: &Seen<'_>,
        params: Option<&Value>,
    ) -> Result<PolicyVerdict, Status> {
        let policy = self.validating.get(source, ValidatingPolicy::new);
        self.evaluate(seen.brief, || seen.whose(), |effort| seen.with(params, |given| policy.validate(given, effort)))
            .await
    }

    /// A mutating policy, compiled.
    pub(super) fn mutating(&self, source: &Source) -> Arc<MutatingPolicy> {
        self.mutating.get(source, MutatingPolicy::new)
    }

    /// Whether a mutating policy is for what is seen.
    pub(super) async fn applies(
        &self,
        policy: &MutatingPolicy,
        seen: &Seen<'_>,
        params: Option<&Value>,
    ) -> Result<Matched, Status> {
        self.evaluate(seen.brief, || seen.whose(), |effort| seen.with(params, |given| policy.matches(given, effort)))
            .await
    }

    /// What one of its mutations does, or why it cannot be done.
    pub(super) async fn change(
        &self,
        policy: &MutatingPolicy,
        at: usize,
        seen: &Seen<'_>,
        params: Option<&Value>,
    ) -> Result<Result<Option<Change>, String>, Status> {
        self.evaluate(seen.brief, || seen.whose(), |effort| seen.with(params, |given| policy.change(at, given, effort)))
            .await
    }

    /// Evaluates: at once what takes a moment, and on a thread that may be held what takes longer, or comes after much else.
    async fn evaluate<'w, T>(
        &self,
        brief: &Brief,
        whose: impl Fn() -> Whose<'w>,
        run: impl Fn(Effort) -> Result<T, TooLong>,
    ) -> Result<T, Status> {
        if brief.is_left() {
            let started = Instant::now();
            let found = run(Effort::Brief);
            let took = started.elapsed();
            if brief.spend(took) {
                // Of many evaluations in one request others have a part between, and so has its deadline.
                tokio::task::yield_now().await;
            }
            if let Ok(found) = found {
                self.metrics.evaluated(took);
                return Ok(found);
            }
        }
        let _seat = self.long.wait(&whose()).await?;
        leave_slice();
        let started = Instant::now();
        let found = holding(|| run(Effort::Full));
        self.metrics.evaluated(started.elapsed());
        tokio::task::yield_now().await;
        found.map_err(|TooLong| Status::internal("an evaluation gave up"))
    }
}

/// Runs what may take a while; other tasks of this thread go on elsewhere.
fn holding<T>(run: impl FnOnce() -> T) -> T {
    let others = Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if others { tokio::task::block_in_place(run) } else { run() }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use parking_lot::Mutex;
    use portolan_machinery::rbac::User;
    use portolan_types::LogicalClusterId;

    use super::*;

    fn expressions() -> Expressions {
        Expressions::new(crate::metrics::Metrics::new(prometheus::Registry::new()).expressions())
    }

    fn of(tenant: u64, user: &User) -> Whose<'_> {
        let tenant = LogicalClusterId::new(tenant);
        Whose { tenant, cluster: tenant, user }
    }

    #[tokio::test]
    async fn others_have_their_turn_between_short_evaluations() {
        let (expressions, brief, user) = (expressions(), Brief::default(), User::default());
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = turns.clone();
        tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        for _ in 0..10 {
            let short = |_| {
                let started = Instant::now();
                while started.elapsed() < Duration::from_micros(200) {}
                Ok(())
            };
            expressions.evaluate(&brief, || of(5, &user), short).await.unwrap();
        }
        let turns = turns.load(Ordering::Relaxed);
        assert!(turns >= 3, "{turns} turns");
    }

    #[tokio::test]
    async fn what_comes_after_much_else_waits_for_its_turn() {
        let (expressions, brief, user) = (expressions(), Brief::default(), User::default());
        let efforts = Mutex::new(Vec::new());
        let run = |effort| {
            efforts.lock().push(effort);
            Ok(())
        };
        expressions.evaluate(&brief, || of(5, &user), run).await.unwrap();
        brief.spend(Duration::from_secs(1));
        expressions.evaluate(&brief, || of(5, &user), run).await.unwrap();
        assert!(matches!(efforts.into_inner()[..], [Effort::Brief, Effort::Full]));
    }

    #[tokio::test]
    async fn tenants_take_turns_with_long_evaluations() {
        let expressions = Expressions { long: FairSeats::new(1), ..expressions() };
        let (brief, user, order) = (Brief::default(), User::default(), Mutex::new(Vec::new()));
        brief.spend(Duration::from_secs(1));
        let evaluate = |tenant: u64| {
            let (expressions, brief, user, order) = (&expressions, &brief, &user, &order);
            expressions.evaluate(
                brief,
                move || of(tenant, user),
                move |_| {
                    order.lock().push(tenant);
                    Ok(())
                },
            )
        };
        let held = expressions.long.wait(&of(5, &user)).await.unwrap();
        let mut all: futures::stream::FuturesUnordered<_> = [5, 5, 5, 5, 6, 6, 7].into_iter().map(evaluate).collect();
        assert!(futures::FutureExt::now_or_never(futures::StreamExt::next(&mut all)).is_none(), "they wait");
        drop(held);
        while let Some(done) = futures::StreamExt::next(&mut all).await {
            done.unwrap();
        }
        assert_eq!(*order.lock(), [5, 6, 7, 5, 6, 5, 5]);
    }
}
