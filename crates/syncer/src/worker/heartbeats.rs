//! Heartbeats: upstream hears at a bounded rate that the physical cluster answers.

use std::time::Duration;

use tokio::time::Instant;

use super::{Worker, cluster_report::LIMIT_EXCEEDED};

/// Heartbeats of a worker.
#[derive(Debug, Default)]
pub(super) struct HeartbeatState {
    /// Answers since the last silence.
    unbroken: u64,
    sent_at: Option<Instant>,
    /// Time of the last answer.
    answered_at: Option<Instant>,
}

impl HeartbeatState {
    /// Returns the start of the present silence: the last answer, or `now` before the first one.
    pub(super) fn silent_since(&self, now: Instant) -> Instant {
        self.answered_at.unwrap_or(now)
    }

    /// Counts an answer. Returns the count if a heartbeat is due: at most one per `interval` is sent.
    fn answered(&mut self, interval: Duration, now: Instant) -> Option<u64> {
        self.unbroken = self.unbroken.saturating_add(1);
        self.answered_at = Some(now);
        if self.sent_at.is_some_and(|at| now.duration_since(at) < interval) {
            return None;
        }
        self.sent_at = Some(now);
        Some(self.unbroken)
    }
}

/// Returns true for a failure that only a live API server can cause: it is heard, though it refuses.
pub(super) fn is_answer(reason: &str) -> bool {
    matches!(reason, "Unauthorized" | "Forbidden" | LIMIT_EXCEEDED)
}

impl Worker {
    /// Tells upstream that the physical cluster has answered. A failure is not retried: the next answer tells it again.
    pub(super) async fn note_answer(&self) {
        let due = self.state().heartbeats.answered(self.config.heartbeat / 2, Instant::now());
        let Some(unbroken) = due else { return };
        if let Err(error) = self.upstream.heartbeat(&self.config.uid, unbroken).await {
            tracing::warn!(cluster = %self.config.name, %error, "a heartbeat cannot be stored");
            self.state().heartbeats.sent_at = None;
        }
    }

    /// Counts again from the next answer.
    pub(super) fn note_silence(&self) {
        self.state().heartbeats.unbroken = 0;
    }

    /// Counts a failed try: an answer if the physical cluster refused, otherwise a silence.
    pub(super) async fn note_failure(&self, reason: &str) {
        if is_answer(reason) { self.note_answer().await } else { self.note_silence() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::{FakeCluster, suite::SyncStage};

    #[test]
    fn heartbeats_are_sent_at_a_bounded_rate() {
        let (mut state, start) = (HeartbeatState::default(), Instant::now());
        let sent = (0..100)
            .filter_map(|tenth| state.answered(Duration::from_secs(5), start + Duration::from_millis(100) * tenth));
        assert_eq!(sent.collect::<Vec<_>>(), [1, 51], "two in ten seconds, however often it answers");
    }

    #[test]
    fn only_a_live_servers_answer_counts() {
        for (reason, expected) in [
            ("Unauthorized", true),
            ("Forbidden", true),
            ("LimitExceeded", true),
            ("Unreachable", false),
            ("NotReady", false),
            ("InvalidConnection", false),
        ] {
            assert_eq!(is_answer(reason), expected, "{reason}");
        }
    }

    #[test]
    fn a_silence_starts_at_the_last_answer() {
        let (mut state, start) = (HeartbeatState::default(), Instant::now());
        assert_eq!(state.silent_since(start), start, "nothing has answered yet");
        let [first, second, now] = [1, 3, 60].map(|seconds| start + Duration::from_secs(seconds));
        state.answered(Duration::from_secs(5), first);
        state.answered(Duration::from_secs(5), second);
        assert_eq!(state.silent_since(now), second, "also if no heartbeat was due");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_physical_cluster_has_no_heartbeat_until_it_returns() {
        let stage = SyncStage::start(Arc::new(FakeCluster::default()), 9).await.unwrap();
        stage.until("it is heard", async |s| s.upstream.heartbeats().len() > 3).await.unwrap();
        let before = stage.upstream.heartbeats();
        assert!(before.is_sorted() && before[0] == 1, "{before:?}");
        stage.set_cut(true);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let silent = stage.upstream.heartbeats().len();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(stage.upstream.heartbeats().len(), silent, "nothing is heard");
        stage.set_cut(false);
        stage.until("it is heard again", async |s| s.upstream.heartbeats().len() > silent).await.unwrap();
        assert_eq!(stage.upstream.heartbeats()[silent], 1);
        stage.handle.stop().await;
    }
}
