//! Turns of objects whose departures are bound by disruption budgets.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use portolan_types::{LogicalClusterId, NamespaceName};
use tokio::sync::OwnedMutexGuard;

type TurnMutex = Arc<tokio::sync::Mutex<()>>;

/// Turns by namespace. A departure is counted before the next one of the same namespace is planned. Other namespaces do
/// not wait, because admission may be slow.
#[derive(Default)]
pub(crate) struct BudgetTurns(Mutex<HashMap<(LogicalClusterId, NamespaceName), TurnMutex>>);

impl BudgetTurns {
    /// Waits for the turn of an object of a namespace. It ends with the guard.
    pub(crate) async fn take(&self, cluster: LogicalClusterId, namespace: &NamespaceName) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().expect("no code panics under this lock");
            // The others are neither held nor awaited.
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            turns.entry((cluster, namespace.clone())).or_default().clone()
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn namespaces_do_not_wait_for_each_other() {
        let turns = BudgetTurns::default();
        let (shop, other) = ("shop".parse().unwrap(), "other".parse().unwrap());
        let (one, two) = (LogicalClusterId::new(7), LogicalClusterId::new(8));
        let held = turns.take(one, &shop).await;
        let second = Duration::from_secs(1);
        assert!(timeout(second, turns.take(one, &shop)).await.is_err());
        for (cluster, namespace) in [(one, &other), (two, &shop)] {
            assert!(timeout(second, turns.take(cluster, namespace)).await.is_ok());
        }
        drop(held);
        assert!(timeout(second, turns.take(one, &shop)).await.is_ok());
        assert_eq!(turns.0.lock().unwrap().len(), 1, "past turns take no memory");
    }
}
