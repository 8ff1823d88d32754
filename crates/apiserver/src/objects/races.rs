//! Who writes what others write at the same time tries again, for as long as the request may take.

use portolan_types::ObjectKey;
use tokio::time::Instant;

use crate::{ApiServer, admission::Turn};

/// So often a writer reads again at once. Then it waits for its turn: of many writers of one object all but one would always
/// have written for nothing.
const AT_ONCE: usize = 3;

/// The races for one object that one request has lost.
pub(crate) struct Races<'a> {
    api: &'a ApiServer,
    key: &'a ObjectKey,
    /// The request's.
    deadline: Instant,
    lost: usize,
    turn: Option<Turn<ObjectKey>>,
    is_over: bool,
}

impl<'a> Races<'a> {
    pub(crate) fn new(api: &'a ApiServer, key: &'a ObjectKey, deadline: Instant) -> Self {
        Self { api, key, deadline, lost: 0, turn: None, is_over: false }
    }

    /// One more is lost; when this returns, the object can be read again.
    pub(crate) async fn lose(&mut self) {
        self.lost += 1;
        if self.lost >= AT_ONCE && self.turn.is_none() {
            self.turn = Some(self.api.racing.wait(self.key.clone()).await);
        }
    }

    /// The write has been decided on, one way or the other.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }
}

impl Drop for Races<'_> {
    fn drop(&mut self) {
        // One whose client leaves is dropped before.
        if self.lost > 0 && !self.is_over && self.deadline <= Instant::now() {
            self.api.metrics.given_up().inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portolan_types::{GroupResource, LogicalClusterId, Seams};

    use super::*;
    use crate::ApiServerConfig;

    /// How a request ends.
    #[derive(PartialEq)]
    enum End {
        Answered,
        TimedOut,
        ClientLeft,
    }

    #[tokio::test(start_paused = true)]
    async fn writes_are_given_up_that_lost_races_until_their_time_was_over() {
        let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
        let maps = GroupResource::new("", "configmaps");
        let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, maps, "a".parse().unwrap());
        let limit = Duration::from_secs(34);
        for (case, lost, end, expected) in [
            ("no race was lost", 0, End::TimedOut, 0),
            ("it went on after some", 5, End::Answered, 0),
            ("its client left", 5, End::ClientLeft, 0),
            ("its time was over", 1, End::TimedOut, 1),
            ("its time was over while it had its turn", 5, End::TimedOut, 2),
        ] {
            let mut races = Races::new(&api, &key, Instant::now() + limit);
            for _ in 0..lost {
                races.lose().await;
            }
            if end == End::TimedOut {
                tokio::time::advance(limit).await;
            }
            if end == End::Answered {
                races.end();
            } else {
                drop(races);
            }
            assert_eq!(api.metrics.given_up().get(), expected, "{case}");
        }
    }
}
