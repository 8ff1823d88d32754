//! Pass back: marked objects return to the splits of before.

use portolan_types::{
    ObjectKey,
    placement::{DrainRow, DrainRowState, DrainStage, MAX_DRAIN_ROWS, PlacementRecord, WhenBlocked},
};

use super::{
    budget::{self, BudgetAnswer},
    marks::change_mark,
    objects::{DrainObject, MarkedObject, read_marked},
    preview::BlockedReason,
    progress::available,
    returns::{ReturnObstacle, obstacle},
    rows::{row, with_reason},
    scan::DrainScan,
    tally::PassTally,
};
use crate::{
    context::SchedulerContext,
    inputs::{DecisionInputs, read_inputs},
    scheduler::SchedulerError,
};

/// Pass back.
pub(super) struct ReturnPass<'a> {
    ctx: &'a SchedulerContext,
    drain: &'a DrainObject,
    /// No further object returns.
    aborts: bool,
    scan: DrainScan,
    tally: PassTally,
    /// True while objects that have left are examined. Their verdicts are kept for the next passes; each pass examines
    /// the returning ones.
    keeps_verdicts: bool,
}

impl<'a> ReturnPass<'a> {
    pub(super) fn new(ctx: &'a SchedulerContext, drain: &'a DrainObject, aborts: bool) -> Self {
        let (scan, tally) = (DrainScan::new(ctx, drain), PassTally::default());
        Self { ctx, drain, aborts, scan, tally, keeps_verdicts: false }
    }

    /// Completes finished returns, and starts more. Objects that were changed since the drain stay where they are.
    ///
    /// # Errors
    /// The errors of the store, and if a fact that a decision needs cannot be read.
    pub(super) async fn run(mut self) -> Result<PassTally, SchedulerError> {
        let (ctx, uid) = (self.ctx, &self.drain.uid);
        let known = ctx.drain_scans.take(ctx, self.drain);
        let is_known = known.is_some();
        self.scan = known.unwrap_or_else(|| DrainScan::new(ctx, self.drain));
        let (moving, back, all_back, superseded) = {
            let drains = &ctx.facts().drains;
            let unseen = self.scan.unseen(|key| drains.stage(uid, key) == Some(DrainStage::Returning));
            let mut moving = drains.page(uid, DrainStage::Leaving, None, usize::MAX);
            moving.extend(drains.page(uid, DrainStage::Returning, None, usize::MAX));
            moving.extend(unseen.into_iter().filter(|key| drains.stage(uid, key) == Some(DrainStage::Left)));
            let back = drains.page(uid, DrainStage::Returned, None, MAX_DRAIN_ROWS);
            (moving, back, drains.number_in(uid, DrainStage::Returned), drains.superseded(uid))
        };
        // Before those under way, which may add to the objects that have left.
        if !is_known {
            self.look_at_all();
        }
        // Objects under way come first: they hold the slots.
        for key in moving.iter().chain(&back) {
            self.observe(key).await?;
        }
        self.tally.omit(DrainRowState::Restored, all_back.saturating_sub(back.len()));
        let goes_on = !self.scan.pending.is_empty() || self.tally.counts.moving > 0;
        if is_known && !goes_on {
            self.look_at_all();
        }
        self.keeps_verdicts = true;
        self.scan.begin();
        while self.is_open() {
            let Some(key) = self.scan.next() else { break };
            self.observe(&key).await?;
        }
        self.add_superseded(&superseded).await?;
        self.scan.count(ctx, &mut self.tally).await;
        ctx.drain_scans.put(ctx, self.drain, self.scan);
        Ok(self.tally)
    }

    /// Forgets all verdicts, so that each object that has left is examined again.
    fn look_at_all(&mut self) {
        let left = self.ctx.facts().drains.page(&self.drain.uid, DrainStage::Left, None, usize::MAX);
        let pending = left.into_iter().filter(|key| !self.scan.admitted.contains(key)).collect();
        self.scan.restart(self.ctx, self.drain, pending);
    }

    fn is_open(&self) -> bool {
        let spec = &self.drain.spec;
        !spec.paused && !self.aborts && !budget::is_used_up(&spec.budget, self.tally.used)
    }

    /// Lists the objects that another drain has moved since.
    async fn add_superseded(&mut self, keys: &[ObjectKey]) -> Result<(), SchedulerError> {
        let shown = keys.len().min(MAX_DRAIN_ROWS);
        for key in &keys[..shown] {
            let found = self.ctx.objects.get_value(key).await.ok().flatten();
            let record = found.and_then(|(object, _)| PlacementRecord::of(&object)).unwrap_or_default();
            let by = record.drain.as_ref().map_or_else(|| "another drain".to_owned(), |mark| mark.title());
            let moved = BlockedReason::new("MovedSince", format!("{by} has moved it since: undo that one first"));
            self.tally.add(with_reason(row(self.ctx, key, &record, DrainRowState::Changed), &moved));
        }
        self.tally.omit(DrainRowState::Changed, keys.len() - shown);
        Ok(())
    }

    async fn observe(&mut self, key: &ObjectKey) -> Result<(), SchedulerError> {
        let ctx = self.ctx;
        let found = match read_marked(ctx, &self.drain.uid, key).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()),
            Err(error) => return self.wait_for_readable(key, &PlacementRecord::default(), error),
        };
        match found.mark.stage {
            DrainStage::Returned => self.tally.add(row(ctx, key, &found.record, DrainRowState::Restored)),
            DrainStage::Returning if found.progress.is_settled => {
                let now = ctx.now();
                change_mark(ctx, key, &found.mark, |mark| (mark.stage, mark.since) = (DrainStage::Returned, now))
                    .await?;
                self.tally.add(row(ctx, key, &found.record, DrainRowState::Restored));
            }
            DrainStage::Returning => self.wait_for(&found),
            DrainStage::Leaving if self.drain.spec.paused || self.aborts => self.let_leave(&found).await?,
            DrainStage::Leaving | DrainStage::Left => self.consider(found).await?,
        }
        Ok(())
    }

    /// Lets an object finish its move forth, since none may return now.
    async fn let_leave(&mut self, found: &MarkedObject) -> Result<(), SchedulerError> {
        if !found.progress.is_settled {
            self.wait_for(found);
            return Ok(());
        }
        let (after, now) = (found.record.split(), self.ctx.now());
        change_mark(self.ctx, &found.key, &found.mark, |mark| {
            (mark.stage, mark.after, mark.since) = (DrainStage::Left, after.clone(), now);
        })
        .await?;
        self.scan.pending.push_back(found.key.clone());
        Ok(())
    }

    fn wait_for(&mut self, found: &MarkedObject) {
        self.tally.take_slot(&found.progress);
        let returning = row(self.ctx, &found.key, &found.record, DrainRowState::Returning);
        self.tally.add(DrainRow { message: found.progress.message.clone(), ..returning });
    }

    /// Notes an object that cannot be read now, which does not keep the others waiting.
    fn wait_for_readable(
        &mut self,
        key: &ObjectKey,
        record: &PlacementRecord,
        error: SchedulerError,
    ) -> Result<(), SchedulerError> {
        let unreadable = BlockedReason::of_unreadable(error)?;
        self.wait(key, record, &unreadable);
        Ok(())
    }

    /// Notes an object that cannot return now. It is skipped if the drain skips what is blocked.
    fn wait(&mut self, key: &ObjectKey, record: &PlacementRecord, blocked: &BlockedReason) {
        let skips = self.drain.spec.when_blocked == WhenBlocked::Skip;
        let state = if skips { DrainRowState::Changed } else { DrainRowState::Blocked };
        self.add_verdict(with_reason(row(self.ctx, key, record, state), blocked));
    }

    fn add_verdict(&mut self, row: DrainRow) {
        let tally = if self.keeps_verdicts { &mut self.scan.others } else { &mut self.tally };
        tally.add(row);
    }

    async fn consider(&mut self, found: MarkedObject) -> Result<(), SchedulerError> {
        let (ctx, spec) = (self.ctx, &self.drain.spec);
        let MarkedObject { key, object, revision, record, mark, .. } = &found;
        let inputs = match read_inputs(ctx, key, object.clone(), *revision).await {
            Ok(inputs) => inputs,
            Err(error) => return self.wait_for_readable(key, record, error),
        };
        let found = match &inputs {
            Some(inputs) => obstacle(ctx, inputs, mark),
            None => {
                let message = "it is not placed by itself any more";
                Some(ReturnObstacle::Lasting(BlockedReason::new("NotPlaced", message)))
            }
        };
        let inputs = match (&inputs, found) {
            (Some(inputs), None) => inputs,
            (_, Some(ReturnObstacle::Passing(blocked))) => {
                self.wait(key, record, &blocked);
                return Ok(());
            }
            (_, Some(ReturnObstacle::Lasting(changed))) => {
                self.add_verdict(with_reason(row(ctx, key, record, DrainRowState::Changed), &changed));
                return Ok(());
            }
            (None, None) => return Ok(()),
        };
        let (now, downtime) = (ctx.now(), downtime(inputs));
        let answer = match mark.stage {
            // It has a slot.
            DrainStage::Leaving => BudgetAnswer::Now,
            _ => budget::ask(&spec.budget, spec.when_blocked, self.tally.used, downtime),
        };
        match answer {
            BudgetAnswer::Never => {
                let most = spec.budget.max_unavailable();
                let message =
                    format!("its return makes {downtime} replicas unavailable: spec.budget.maxUnavailable is {most}");
                let blocked = BlockedReason::new("Budget", message);
                self.wait(key, record, &blocked);
            }
            BudgetAnswer::Now if !spec.paused && !self.aborts => {
                let seen = available_now(inputs);
                change_mark(ctx, key, mark, |mark| {
                    (mark.stage, mark.since, mark.downtime) = (DrainStage::Returning, now, downtime);
                    mark.available = seen;
                })
                .await?;
                self.scan.admit(key);
                self.tally.used.moving += 1;
                self.tally.used.unavailable += downtime;
                self.tally.add(row(ctx, key, record, DrainRowState::Returning));
            }
            BudgetAnswer::Now | BudgetAnswer::Later => self.scan.pending.push_back(key.clone()),
        }
        Ok(())
    }
}

fn available_now(inputs: &DecisionInputs) -> i64 {
    let placement = inputs.placement.as_ref().map(|(placement, _)| placement);
    available(&inputs.record, &placement.map(|placement| super::part(placement, "status")).unwrap_or_default())
}

/// Returns the replicas that a return makes unavailable for a while.
fn downtime(inputs: &DecisionInputs) -> i64 {
    if inputs.workload.moves.one_at_a_time() { available_now(inputs) } else { 0 }
}
