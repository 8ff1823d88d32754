//! Pass over the objects of a drain: those in progress, and those that may start to move.

use std::collections::{BTreeSet, VecDeque};

use portolan_store::{RangeRequest, RangeScope, StoredObject};
use portolan_types::{
    ObjectKey, ResourceVersion, Uid, object,
    placement::{DrainMark, DrainRow, DrainRowState, DrainStage, MAX_DRAIN_ROWS, PlacementRecord, WhenBlocked},
};
use serde_json::Value;

use super::{
    budget::{self, BudgetAnswer},
    marks::{change_mark, change_record, remove_mark},
    objects::{DrainObject, read_marked},
    preview::{BlockedReason, FRESH, JudgedState, LeaveVerdict, MarkTemplate, preview_leave},
    rows::{row, with_reason},
    scan::DrainScan,
    tally::PassTally,
};
use crate::{context::SchedulerContext, kinds, queue::rescan::placed_from_here, scheduler::SchedulerError};

/// Objects that are read at once.
const PAGE: usize = 500;
/// Seconds after which a move is tried again that did not begin, or was taken back.
const TRY_AGAIN: i64 = 120;
/// Maximum objects that one pass examines although the budget is used up, so that the status can report what blocks
/// them.
const MAX_LOOKS: usize = 500;

/// Pass forth: objects leave.
pub(super) struct LeavePass<'a> {
    ctx: &'a SchedulerContext,
    drain: &'a DrainObject,
    from: BTreeSet<Uid>,
    scan: DrainScan,
    /// Objects that have lost their mark, but whose event has not arrived.
    unmarked: BTreeSet<ObjectKey>,
    seen: BTreeSet<ObjectKey>,
    looks: usize,
    tally: PassTally,
}

impl<'a> LeavePass<'a> {
    pub(super) fn new(ctx: &'a SchedulerContext, drain: &'a DrainObject) -> Self {
        Self {
            ctx,
            drain,
            from: drain.clusters(),
            scan: DrainScan::new(ctx, drain),
            unmarked: BTreeSet::new(),
            seen: BTreeSet::new(),
            looks: MAX_LOOKS,
            tally: PassTally::default(),
        }
    }

    /// Completes finished moves, and starts more. All objects are examined only from time to time, and before the end.
    ///
    /// # Errors
    /// The errors of the store, and if a fact that a decision needs cannot be read.
    pub(super) async fn run(mut self) -> Result<PassTally, SchedulerError> {
        let ctx = self.ctx;
        let known = ctx.drain_scans.take(ctx, self.drain);
        let is_known = known.is_some();
        self.scan = known.unwrap_or_else(|| DrainScan::new(ctx, self.drain));
        let (moved, all) = self.observe_moving().await?;
        for key in &moved {
            self.observe_marked(key, DrainStage::Left).await?;
        }
        self.tally.omit(DrainRowState::Moved, all.saturating_sub(moved.len()));
        let goes_on = !self.scan.pending.is_empty() || self.tally.counts.moving > 0;
        if is_known && goes_on {
            self.admit_waiting().await?;
        } else {
            self.look_at_all().await?;
        }
        self.scan.count(ctx, &mut self.tally).await;
        ctx.drain_scans.put(ctx, self.drain, self.scan);
        Ok(self.tally)
    }

    /// Looks at the objects under way, also at those whose mark no event has shown yet. Returns the first objects that
    /// had moved before, and the number of all of them: one view of the marks, so that each object counts once.
    async fn observe_moving(&mut self) -> Result<(Vec<ObjectKey>, usize), SchedulerError> {
        let (ctx, uid) = (self.ctx, &self.drain.uid);
        let (moving, unseen, moved) = {
            let facts = ctx.facts();
            let unseen = self.scan.unseen(|key| facts.drains.stage(uid, key).is_some());
            let moved = facts.drains.page(uid, DrainStage::Left, None, MAX_DRAIN_ROWS);
            let number = facts.drains.number_in(uid, DrainStage::Left);
            (facts.drains.page(uid, DrainStage::Leaving, None, usize::MAX), unseen, (moved, number))
        };
        for key in moving.iter().chain(&unseen) {
            self.observe_marked(key, DrainStage::Leaving).await?;
        }
        Ok(moved)
    }

    /// Starts moves of waiting objects, within the budget.
    async fn admit_waiting(&mut self) -> Result<(), SchedulerError> {
        self.scan.begin();
        while self.is_open() {
            let Some(key) = self.scan.next() else { break };
            self.ctx.drain_scans.note_looks(1);
            let stored = self.ctx.objects.store().get(&key).await?;
            if let Some(stored) = stored {
                let object = stored.to_value()?;
                let record = PlacementRecord::of(&object).unwrap_or_default();
                self.consider_waiting(&key, stored.revision, (&object, &record)).await?;
            }
        }
        Ok(())
    }

    /// Looks at all objects on the physical clusters.
    async fn look_at_all(&mut self) -> Result<(), SchedulerError> {
        self.scan.restart(self.ctx, self.drain, VecDeque::new());
        self.scan.unmarked = self.unmarked.clone();
        for physical in self.from.clone() {
            self.admit_from(&physical).await?;
        }
        self.ctx.verdicts.retain(&self.drain.uid, &self.seen);
        Ok(())
    }

    fn is_open(&self) -> bool {
        let spec = &self.drain.spec;
        !spec.paused && !spec.abort && !budget::is_used_up(&spec.budget, self.tally.used)
    }

    fn is_marked(&self, key: &ObjectKey) -> bool {
        let is_known =
            self.ctx.facts().drains.stage(&self.drain.uid, key).is_some() || self.scan.admitted.contains(key);
        is_known && !self.unmarked.contains(key)
    }

    async fn observe_marked(&mut self, key: &ObjectKey, stage: DrainStage) -> Result<(), SchedulerError> {
        let ctx = self.ctx;
        if stage == DrainStage::Left && !self.tally.rows.has_room(DrainRowState::Moved) {
            self.tally.omit(DrainRowState::Moved, 1);
            return Ok(());
        }
        let found = match read_marked(ctx, &self.drain.uid, key).await {
            Ok(Some(found)) => found,
            // The object is gone, is being deleted, or has lost its mark. It is then treated as an object without a
            // mark.
            Ok(None) => {
                self.unmark(key);
                return Ok(());
            }
            Err(error) => {
                let unreadable = BlockedReason::of_unreadable(error)?;
                self.tally.used.moving += 1;
                let blocked = row(ctx, key, &PlacementRecord::default(), DrainRowState::Blocked);
                self.tally.add(with_reason(blocked, &unreadable));
                return Ok(());
            }
        };
        if found.mark.stage != DrainStage::Leaving {
            self.tally.add(row(ctx, key, &found.record, DrainRowState::Moved));
            return Ok(());
        }
        if found.progress.is_settled {
            let (after, now) = (found.record.split(), ctx.now());
            change_mark(ctx, key, &found.mark, |mark| {
                (mark.stage, mark.after, mark.since) = (DrainStage::Left, after.clone(), now);
            })
            .await?;
            self.tally.add(row(ctx, key, &found.record, DrainRowState::Moved));
            return Ok(());
        }
        if let Some(reason) = &found.progress.refusal {
            remove_mark(ctx, key, &found.mark).await?;
            let blocked = BlockedReason::new(reason, found.progress.message.clone());
            let state = JudgedState { split: found.record.split(), revision: None, epoch: 0 };
            ctx.verdicts.put(&self.drain.uid, (key, state), Some(blocked), ctx.now() + TRY_AGAIN);
            self.unmark(key);
            return Ok(());
        }
        self.tally.take_slot(&found.progress);
        let moving = row(ctx, key, &found.record, DrainRowState::Moving);
        self.tally.add(DrainRow { message: found.progress.message, ..moving });
        Ok(())
    }

    /// Notes that an object has lost its mark: it waits again.
    fn unmark(&mut self, key: &ObjectKey) {
        self.scan.admitted.remove(key);
        self.unmarked.insert(key.clone());
        if self.scan.unmarked.insert(key.clone()) {
            self.scan.pending.push_back(key.clone());
        }
    }

    /// Looks at the objects on a physical cluster, page by page.
    async fn admit_from(&mut self, physical: &Uid) -> Result<(), SchedulerError> {
        let scope = RangeScope::PlacedOn(physical.to_string());
        let labels = placed_from_here();
        let mut request = RangeRequest { limit: Some(PAGE), labels, ..RangeRequest::slices(scope).skip_damaged() };
        loop {
            let page = self.ctx.objects.store().range(request.clone()).await?;
            self.scan.others.revision = self.scan.others.revision.max(Some(page.revision));
            self.ctx.drain_scans.note_looks(page.objects.len());
            for stored in page.objects {
                self.consider(physical, &stored).await?;
            }
            for damaged in page.damaged {
                let blocked = BlockedReason::new("Unreadable", "it cannot be read");
                self.block(&damaged.key, &PlacementRecord::default(), &blocked);
            }
            if !page.more {
                return Ok(());
            }
            request.after = page.last;
            // Reads of a store in memory never wait.
            tokio::task::yield_now().await;
        }
    }

    async fn consider(&mut self, physical: &Uid, stored: &StoredObject) -> Result<(), SchedulerError> {
        let object = stored.to_value()?;
        let record = PlacementRecord::of(&object).unwrap_or_default();
        if record.is_projected() {
            return Ok(());
        }
        let key = &stored.key;
        // An object on several of them is examined once.
        let first = record.clusters.iter().map(|copy| &copy.uid).filter(|uid| self.from.contains(uid)).min();
        if first != Some(physical) {
            return Ok(());
        }
        *self.scan.others.left.entry(key.resource.to_string()).or_default() += 1;
        if kinds::is_follower(&key.resource) || self.is_marked(key) {
            return Ok(());
        }
        self.consider_waiting(key, stored.revision, (&object, &record)).await
    }

    async fn consider_waiting(
        &mut self,
        key: &ObjectKey,
        revision: ResourceVersion,
        (object, record): (&Value, &PlacementRecord),
    ) -> Result<(), SchedulerError> {
        let is_deleting = object::is_deleting(object);
        // No event has shown the mark yet. A second mark would record the half-moved state as the split before the
        // drain.
        let own = record.drain.as_ref().filter(|mark| mark.uid == self.drain.uid && !is_deleting);
        if let Some(mark) = own
            && !self.unmarked.contains(key)
        {
            self.scan.admit(key);
            return self.observe_marked(key, mark.stage).await;
        }
        if !record.clusters.iter().any(|copy| self.from.contains(&copy.uid)) {
            return Ok(());
        }
        self.seen.insert(key.clone());
        let leaves = !record.active().any(|copy| self.from.contains(&copy.uid)) || is_deleting;
        if leaves {
            let pending = row(self.ctx, key, record, DrainRowState::Pending);
            self.scan.others.add(DrainRow { message: "waiting for its copy to be gone".into(), ..pending });
            return Ok(());
        }
        let epoch = self.ctx.verdicts.epoch();
        let state = JudgedState { split: record.split(), revision: Some(revision), epoch };
        self.decide(key, record, state).await
    }

    async fn decide(
        &mut self,
        key: &ObjectKey,
        record: &PlacementRecord,
        state: JudgedState,
    ) -> Result<(), SchedulerError> {
        let (ctx, drain) = (self.ctx, self.drain);
        let is_open = self.is_open();
        let known = ctx.verdicts.fresh(&drain.uid, (key, &state), ctx.now());
        match known {
            Some(Some(blocked)) => {
                self.block(key, record, &blocked);
                return Ok(());
            }
            Some(None) if !is_open => {
                self.scan.pending.push_back(key.clone());
                return Ok(());
            }
            None if !is_open && self.looks == 0 => {
                self.scan.pending.push_back(key.clone());
                return Ok(());
            }
            None if !is_open => self.looks -= 1,
            _ => {}
        }
        let template = MarkTemplate {
            cluster: &drain.key.cluster.to_string(),
            home: &drain.home,
            name: &drain.key.name,
            uid: &drain.uid,
            from: &self.from,
            force: drain.spec.when_blocked == WhenBlocked::Force,
        };
        let verdict = match preview_leave(ctx, key, &template).await {
            Ok(verdict) => verdict,
            // It may be readable again soon: it is not skipped, and the others continue.
            Err(error) => {
                let unreadable = BlockedReason::of_unreadable(error)?;
                self.scan.others.add(with_reason(row(ctx, key, record, DrainRowState::Blocked), &unreadable));
                return Ok(());
            }
        };
        let (blocked, mark) = match verdict {
            LeaveVerdict::NotConcerned => return Ok(()),
            LeaveVerdict::Blocked(blocked) => (Some(blocked), None),
            LeaveVerdict::Leaves(mark) => (None, Some(mark)),
        };
        ctx.verdicts.put(&drain.uid, (key, state), blocked.clone(), ctx.now() + FRESH);
        match (blocked, mark) {
            (Some(blocked), _) => self.block(key, record, &blocked),
            (None, Some(mark)) => self.admit(key, record, *mark, is_open).await?,
            (None, None) => {}
        }
        Ok(())
    }

    /// Lets an object move if the budget permits it.
    async fn admit(
        &mut self,
        key: &ObjectKey,
        record: &PlacementRecord,
        mark: DrainMark,
        is_open: bool,
    ) -> Result<(), SchedulerError> {
        let (ctx, spec) = (self.ctx, &self.drain.spec);
        match budget::ask(&spec.budget, spec.when_blocked, self.tally.used, mark.downtime) {
            BudgetAnswer::Never => {
                let (downtime, most) = (mark.downtime, spec.budget.max_unavailable());
                let message = format!(
                    "two must not run at once, and its move makes {downtime} replicas unavailable for a while: \
                     spec.budget.maxUnavailable is {most}"
                );
                self.block(key, record, &BlockedReason::new("Budget", message));
            }
            BudgetAnswer::Now if is_open => {
                portolan_types::failpoint!("scheduler/drain-admits");
                change_record(ctx, key, |now| {
                    let is_taken = now.drain.as_ref().is_some_and(|other| other.uid != mark.uid && other.is_moving());
                    let is_same = !is_taken && now.split() == mark.before;
                    if is_same {
                        let earlier = now.drain.take().filter(|other| other.stage == DrainStage::Left);
                        now.drain = Some(Box::new(mark.clone().replacing(earlier)));
                    }
                    is_same
                })
                .await?;
                self.tally.used.moving += 1;
                self.tally.used.unavailable += mark.downtime;
                self.scan.admit(key);
                let marked = PlacementRecord { drain: Some(Box::new(mark)), ..record.clone() };
                self.tally.add(row(ctx, key, &marked, DrainRowState::Moving));
            }
            BudgetAnswer::Now | BudgetAnswer::Later => {
                self.scan.pending.push_back(key.clone());
            }
        }
        Ok(())
    }

    fn block(&mut self, key: &ObjectKey, record: &PlacementRecord, blocked: &BlockedReason) {
        let skips = self.drain.spec.when_blocked == WhenBlocked::Skip;
        let state = if skips { DrainRowState::Skipped } else { DrainRowState::Blocked };
        self.scan.others.add(with_reason(row(self.ctx, key, record, state), blocked));
    }
}
