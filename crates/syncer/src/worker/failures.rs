//! What becomes of work that failed: it is tried again, later each time, and upstream is told when that goes on for a while.

use portolan_types::{ObjectKey, placement::Phase};
use tokio::time::Instant;

use super::{SyncError, Work, Worker, queue::Ended};
use crate::{client::DownstreamError, status};

impl SyncError {
    /// The reason and the sentence for an object whose copy cannot be brought up to date for a while. `None` when upstream
    /// itself is what fails, and for what the physical cluster refuses for good: that has been told already.
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
    pub(super) async fn after_failure(&self, work: &Work, error: &SyncError) -> Ended {
        let not_before = if let SyncError::Downstream(error) = error { error.retry_after() } else { None };
        let failed = Ended::Badly { not_before };
        let Work::Copy(key) = work else { return failed };
        if self.session().is_err() {
            return self.while_cut_off(key).await.map_or(failed, Ended::Well);
        }
        if let Err(error) = self.tell_trouble(key, error).await {
            tracing::debug!(cluster = %self.config.name, %key, %error, "a failure cannot be told upstream");
        }
        if let SyncError::NotServed { .. } = error {
            return self.while_not_served(key).await.map_or(failed, |owed| owed.map_or(failed, Ended::Well));
        }
        failed
    }

    /// Tells what has kept failing for a while.
    async fn tell_trouble(&self, key: &ObjectKey, error: &SyncError) -> Result<(), SyncError> {
        let Some((reason, message)) = error.trouble() else { return Ok(()) };
        let now = Instant::now();
        let since = self.state().trouble(key, |trouble| *trouble.failing_since.get_or_insert(now));
        if since.elapsed() < self.config.unreachable_after {
            return Ok(());
        }
        let Some(upstream) = self.upstream.get(key).await? else { return Ok(()) };
        match self.entry(&upstream).map(|entry| entry.phase) {
            Some(Phase::Active | Phase::Leaving) => self.report_failure(&upstream, reason, &message).await,
            Some(Phase::Projected) | None => Ok(()),
        }
    }

    pub(super) fn succeeded(&self, work: &Work) {
        let Work::Copy(key) = work else { return };
        self.state().known_trouble(key, |trouble| trouble.failing_since = None);
    }
}
