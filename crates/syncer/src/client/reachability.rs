//! Reachability of a physical cluster: after one request without an answer only probes are sent, until one is answered.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{DownstreamClient, DownstreamError};

/// Reachability, shared by all clients of one connection. A physical cluster that is down gets a probe now and then,
/// not a request of every piece of work that waits for it.
#[derive(Clone, Default)]
pub(super) struct Reachability {
    is_doubted: Arc<watch::Sender<bool>>,
}

impl Reachability {
    /// # Errors
    /// `Unreachable`, while the physical cluster is in doubt.
    pub(super) fn check(&self) -> Result<(), DownstreamError> {
        if *self.is_doubted.borrow() {
            Err(DownstreamError::Unreachable("it left an earlier request without an answer".into()))
        } else {
            Ok(())
        }
    }

    /// Records the result of a request. Only a probe restores trust: an old request may be answered late.
    pub(super) fn note<T>(&self, ended: &Result<T, DownstreamError>, is_probe: bool) {
        let is_doubted = match ended {
            Err(DownstreamError::Unreachable(_)) => true,
            _ if is_probe => false,
            Ok(_) | Err(DownstreamError::Refused(_) | DownstreamError::Garbled(_) | DownstreamError::Excessive(_)) => {
                return;
            }
        };
        self.is_doubted.send_if_modified(|known| std::mem::replace(known, is_doubted) != is_doubted);
    }

    async fn until(&self, is_doubted: bool) {
        // The sender lives as long as `self`.
        let _ = self.is_doubted.subscribe().wait_for(|known| *known == is_doubted).await;
    }
}

impl DownstreamClient {
    /// Returns a client for probes, which are also sent while the physical cluster is in doubt.
    pub(crate) fn probing(&self) -> Self {
        Self { is_probe: true, ..self.clone() }
    }

    /// Returns a client whose unanswered requests do not put the physical cluster in doubt, because other servers may
    /// answer them.
    pub(crate) fn apart(&self, deadline: Duration) -> Self {
        Self { deadline, reach: Reachability::default(), ..self.clone() }
    }

    /// Waits until the physical cluster is not in doubt.
    pub(crate) async fn wait_until_trusted(&self) {
        self.reach.until(false).await;
    }

    /// Waits for `rest`, or until the physical cluster is in doubt.
    pub(crate) async fn rest_or_doubt(&self, rest: Duration) {
        let _ = tokio::time::timeout(rest, self.reach.until(true)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_probe_restores_trust() {
        let unanswered = || Err::<(), _>(DownstreamError::Unreachable("x".into()));
        let refused = || Err::<(), _>(DownstreamError::Refused(super::super::ErrorAnswer::default()));
        let reach = Reachability::default();
        for (case, ended, is_probe, is_trusted) in [
            ("an answer", Ok(()), false, true),
            ("no answer", unanswered(), false, false),
            ("a late answer to an earlier request", Ok(()), false, false),
            ("a probe without an answer", unanswered(), true, false),
            ("a probe that is answered by a refusal", refused(), true, true),
        ] {
            reach.note(&ended, is_probe);
            assert_eq!(reach.check().is_ok(), is_trusted, "{case}");
        }
    }
}
