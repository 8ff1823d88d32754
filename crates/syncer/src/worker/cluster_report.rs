//! Report of the state of the physical cluster.

use portolan_types::upstream::{ClusterReport, public_detail};

use super::{Worker, health};
use crate::client::DownstreamError;

/// Reason of a physical cluster that exceeds a limit.
pub(super) const LIMIT_EXCEEDED: &str = "LimitExceeded";

/// Returns reason and message for the condition.
pub(super) fn reason_of(error: &DownstreamError) -> (String, String) {
    let word = match (error, error.code()) {
        (_, 401) => "Unauthorized",
        (_, 403) => "Forbidden",
        (DownstreamError::Unreachable(_), _) => "Unreachable",
        (DownstreamError::Excessive(_), _) => LIMIT_EXCEEDED,
        (DownstreamError::Refused(_) | DownstreamError::Garbled(_), _) => "NotReady",
    };
    (word.to_owned(), error.to_string())
}

impl Worker {
    pub(super) async fn report_cluster(&self, health: Result<health::ClusterHealth, (String, String)>) {
        let report = self.cluster_report(health);
        let before = self.state().cluster_report.clone();
        if before.as_ref() == Some(&report) {
            return;
        }
        self.log_turn(before.as_ref(), &report);
        match self.upstream.report_cluster(&self.config.uid, report.clone()).await {
            Ok(()) => self.state().cluster_report = Some(report),
            Err(error) => {
                tracing::warn!(cluster = %self.config.name, %error, "the report of a physical cluster cannot be stored")
            }
        }
    }

    fn cluster_report(&self, health: Result<health::ClusterHealth, (String, String)>) -> ClusterReport {
        let namespace_conflicts = self.namespace_conflicts();
        let mut state = self.state();
        let mut report = ClusterReport {
            ready: Ok(()),
            version: None,
            capacity: None,
            allocatable: None,
            deletions_held: state.held(),
            forged: state.forged(),
            namespace_conflicts,
            left_behind: state.left_behind.len() as u64,
            custom_kinds: state.custom_kinds.clone(),
            definition_conflicts: state.definition_conflicts.clone(),
            pods: state.pod_access.clone(),
        };
        match health {
            Ok(health) => {
                report.version = Some(health.version);
                (report.capacity, report.allocatable) = (health.capacity, health.allocatable);
            }
            Err(why) => {
                state.unreachable_why = public_detail(&why.0, &why.1).to_owned();
                report.ready = Err(why);
            }
        }
        report
    }

    /// Logs one line per change, however often it is tried.
    fn log_turn(&self, before: Option<&ClusterReport>, now: &ClusterReport) {
        let cluster = &self.config.name;
        let word = |report: &ClusterReport| report.ready.as_ref().err().map(|(reason, _)| reason.clone());
        match (before.map(word), &now.ready) {
            (Some(None), Ok(())) => {}
            (_, Ok(())) => tracing::info!(%cluster, "the physical cluster answers"),
            (Some(Some(known)), Err((reason, _))) if known == *reason => {}
            (_, Err((reason, message))) => {
                tracing::warn!(%cluster, %reason, %message, "the physical cluster does not answer")
            }
        }
    }
}
