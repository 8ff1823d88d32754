//! Failed work: it is retried with backoff, and reported upstream when that lasts.

use portolan_types::{ObjectKey, placement::CopyPhase};
use tokio::time::Instant;

use super::{SyncError, Work, Worker, queue::WorkResult};
use crate::{client::DownstreamError, status};

impl SyncError {
    /// Returns reason and message for an object whose copy cannot be updated for a while. `None` when upstream itself
    /// failed, and for a refusal of the physical cluster, which was reported at once.
    fn trouble(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Upstream(_) | Self::CutOff | Self::OwnerUnknown(_) | Self::StillThere(_) => None,
            Self::NotSynced(_)
            | Self::NotServed { .. }
            | Self::NamespaceEnding
            | Self::ClaimsOwed
            | Self::KeepsChanging => Some((status::PENDING, self.to_string())),
            Self::Downstream(error) => match error {
                DownstreamError::Unreachable(_) => Some((status::UNREACHABLE, self.to_string())),
                DownstreamError::Refused(answer) if answer.refusal().is_some() => None,
                DownstreamError::Refused(_) | DownstreamError::Garbled(_) | DownstreamError::Excessive(_) => {
                    Some((status::PENDING, self.to_string()))
                }
            },
        }
    }
}

impl Worker {
    pub(super) async fn after_failure(&self, work: &Work, error: &SyncError) -> WorkResult {
        let not_before = if let SyncError::Downstream(error) = error { error.retry_after() } else { None };
        let failed = WorkResult::Badly { not_before };
        let Work::Copy(key) = work else { return failed };
        if self.session().is_err() {
            return self.reconcile_unreachable(key).await.map_or(failed, WorkResult::Well);
        }
        if let Err(error) = self.report_trouble(key, error).await {
            tracing::debug!(cluster = %self.config.name, %key, %error, "a failure cannot be reported upstream");
        }
        if let SyncError::NotServed { .. } = error {
            return self.reconcile_not_served(key).await.map_or(failed, |owed| owed.map_or(failed, WorkResult::Well));
        }
        failed
    }

    /// Reports a failure that has lasted for a while.
    async fn report_trouble(&self, key: &ObjectKey, error: &SyncError) -> Result<(), SyncError> {
        let Some((reason, message)) = error.trouble() else { return Ok(()) };
        let now = Instant::now();
        let since = self.state().trouble(key, |trouble| *trouble.failing_since.get_or_insert(now));
        if since.elapsed() < self.config.unreachable_after {
            return Ok(());
        }
        let Some(upstream) = self.read_placed(key).await? else { return Ok(()) };
        match self.entry(&upstream).map(|entry| entry.phase) {
            Some(CopyPhase::Active | CopyPhase::Leaving) => self.report_failure(&upstream, reason, &message).await,
            Some(CopyPhase::Projected) | None => Ok(()),
        }
    }

    pub(super) fn succeeded(&self, work: &Work) {
        let Work::Copy(key) = work else { return };
        self.state().known_trouble(key, |trouble| trouble.failing_since = None);
    }
}
