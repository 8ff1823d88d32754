//! CEL expressions of webhooks and policies: compiled once per content, cached within bounds, evaluated on a request.

mod cache;
mod input;
mod rights;

use std::sync::Arc;

use portolan_cel::policy::{
    ConditionMatch, EvaluationEffort, EvaluationTooLong, MatchConditions, MutatingPolicy, MutationPatch, PolicyVerdict,
    ValidatingPolicy,
};
use portolan_types::Status;
use serde_json::Value;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::Instant,
};

use crate::{
    hooks::InlineBudget,
    limits::{FairSeats, FlowKey, leave_slice},
    metrics::ExpressionMetrics,
};

use cache::CompiledCache;
pub(super) use cache::ExpressionSource;
pub(super) use input::{ExpressionInput, ExpressionSubject};
pub(super) use rights::ExpressionRights;

/// Compiled expressions, and the queue of long evaluations.
pub(crate) struct Expressions {
    conditions: CompiledCache<MatchConditions>,
    validating: CompiledCache<ValidatingPolicy>,
    mutating: CompiledCache<MutatingPolicy>,
    /// Long evaluations run one after another, so that most of the machine stays free. Tenants take turns.
    long_evaluations: FairSeats,
    metrics: ExpressionMetrics,
}

impl Expressions {
    pub(crate) fn new(metrics: ExpressionMetrics) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            conditions: CompiledCache::new(metrics.clone()),
            validating: CompiledCache::new(metrics.clone()),
            mutating: CompiledCache::new(metrics.clone()),
            long_evaluations: FairSeats::new((cores / 2).max(1)),
            metrics,
        }
    }

    /// Returns the approximate number of cached bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.conditions.bytes() + self.validating.bytes() + self.mutating.bytes()
    }

    /// Evaluates match conditions.
    pub(super) async fn matches(
        &self,
        source: &ExpressionSource,
        seen: &ExpressionInput<'_>,
    ) -> Result<ConditionMatch, Status> {
        let conditions = self.conditions.get(source, |spec| MatchConditions::new(spec, false));
        self.evaluate(
            seen.inline_budget,
            || seen.flow_key(),
            |effort| seen.with(None, |input_data| conditions.matches(input_data, effort)),
        )
        .await
    }

    /// Evaluates a validating policy with parameters.
    pub(super) async fn validates(
        &self,
        source: &ExpressionSource,
        seen: &ExpressionInput<'_>,
        params: Option<&Value>,
    ) -> Result<PolicyVerdict, Status> {
        let policy = self.validating.get(source, ValidatingPolicy::new);
        self.evaluate(
            seen.inline_budget,
            || seen.flow_key(),
            |effort| seen.with(params, |input_data| policy.validate(input_data, effort)),
        )
        .await
    }

    /// Returns a compiled mutating policy.
    pub(super) fn mutating(&self, source: &ExpressionSource) -> Arc<MutatingPolicy> {
        self.mutating.get(source, MutatingPolicy::new)
    }

    /// Returns true if the match conditions of a mutating policy hold.
    pub(super) async fn applies(
        &self,
        policy: &MutatingPolicy,
        seen: &ExpressionInput<'_>,
        params: Option<&Value>,
    ) -> Result<ConditionMatch, Status> {
        self.evaluate(
            seen.inline_budget,
            || seen.flow_key(),
            |effort| seen.with(params, |input_data| policy.matches(input_data, effort)),
        )
        .await
    }

    /// Evaluates one mutation. Returns the change, or the reason why it fails.
    pub(super) async fn change(
        &self,
        policy: &MutatingPolicy,
        at: usize,
        seen: &ExpressionInput<'_>,
        params: Option<&Value>,
    ) -> Result<Result<Option<MutationPatch>, String>, Status> {
        self.evaluate(
            seen.inline_budget,
            || seen.flow_key(),
            |effort| seen.with(params, |input_data| policy.change(at, input_data, effort)),
        )
        .await
    }

    /// Evaluates expressions: inline while the budget lasts, otherwise in the queue of long evaluations.
    async fn evaluate<'w, T>(
        &self,
        inline_budget: &InlineBudget,
        flow_key: impl Fn() -> FlowKey<'w>,
        run: impl Fn(EvaluationEffort) -> Result<T, EvaluationTooLong>,
    ) -> Result<T, Status> {
        if inline_budget.has_time() {
            let started = Instant::now();
            let found = run(EvaluationEffort::Brief);
            let took = started.elapsed();
            if inline_budget.record(took) {
                // Yields, so that many evaluations in one request delay neither other requests nor its own deadline.
                tokio::task::yield_now().await;
            }
            if let Ok(found) = found {
                self.metrics.evaluated(took);
                return Ok(found);
            }
        }
        let _seat = self.long_evaluations.wait(&flow_key()).await?;
        leave_slice();
        let started = Instant::now();
        let found = run_blocking(|| run(EvaluationEffort::Full));
        self.metrics.evaluated(started.elapsed());
        tokio::task::yield_now().await;
        found.map_err(|EvaluationTooLong| Status::internal("an evaluation gave up"))
    }
}

/// Runs long work on this thread; the runtime moves other tasks elsewhere.
fn run_blocking<T>(run: impl FnOnce() -> T) -> T {
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
    use portolan_strategy::rbac::User;
    use portolan_types::LogicalClusterId;

    use super::*;

    fn expressions() -> Expressions {
        Expressions::new(crate::metrics::Metrics::new(prometheus::Registry::new()).expressions())
    }

    fn of(tenant: u64, user: &User) -> FlowKey<'_> {
        let tenant = LogicalClusterId::new(tenant);
        FlowKey { tenant, cluster: tenant, user }
    }

    #[tokio::test]
    async fn short_evaluations_yield_to_other_tasks() {
        let (expressions, inline_budget, user) = (expressions(), InlineBudget::default(), User::default());
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
            expressions.evaluate(&inline_budget, || of(5, &user), short).await.unwrap();
        }
        let turns = turns.load(Ordering::Relaxed);
        assert!(turns >= 3, "{turns} turns");
    }

    #[tokio::test]
    async fn evaluations_beyond_the_budget_are_queued() {
        let (expressions, inline_budget, user) = (expressions(), InlineBudget::default(), User::default());
        let efforts = Mutex::new(Vec::new());
        let run = |effort| {
            efforts.lock().push(effort);
            Ok(())
        };
        expressions.evaluate(&inline_budget, || of(5, &user), run).await.unwrap();
        inline_budget.record(Duration::from_secs(1));
        expressions.evaluate(&inline_budget, || of(5, &user), run).await.unwrap();
        assert!(matches!(efforts.into_inner()[..], [EvaluationEffort::Brief, EvaluationEffort::Full]));
    }

    #[tokio::test]
    async fn tenants_alternate_in_the_queue_of_long_evaluations() {
        let expressions = Expressions { long_evaluations: FairSeats::new(1), ..expressions() };
        let (inline_budget, user, order) = (InlineBudget::default(), User::default(), Mutex::new(Vec::new()));
        inline_budget.record(Duration::from_secs(1));
        let evaluate = |tenant: u64| {
            let (expressions, inline_budget, user, order) = (&expressions, &inline_budget, &user, &order);
            expressions.evaluate(
                inline_budget,
                move || of(tenant, user),
                move |_| {
                    order.lock().push(tenant);
                    Ok(())
                },
            )
        };
        let held = expressions.long_evaluations.wait(&of(5, &user)).await.unwrap();
        let mut all: futures::stream::FuturesUnordered<_> = [5, 5, 5, 5, 6, 6, 7].into_iter().map(evaluate).collect();
        assert!(futures::FutureExt::now_or_never(futures::StreamExt::next(&mut all)).is_none(), "they wait");
        drop(held);
        while let Some(done) = futures::StreamExt::next(&mut all).await {
            done.unwrap();
        }
        assert_eq!(*order.lock(), [5, 6, 7, 5, 6, 5, 5]);
    }
}
