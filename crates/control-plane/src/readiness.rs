//! Checks of the store for `/readyz`, and of etcd for `/livez`.

use portolan_apiserver::hooks::ReadyCheck;
use portolan_store::{DynStore, MAX_KNOWN_DAMAGE, OpenProgress, StoreError};

/// Name of both checks of an embedded store, which clients see as one.
const NAME: &str = "store";
/// Name of kube-apiserver's check of etcd.
const ETCD: &str = "etcd";

/// Check of an embedded store while it is being opened: never ready.
pub(crate) struct StoreOpeningCheck(pub(crate) OpenProgress);

impl ReadyCheck for StoreOpeningCheck {
    fn name(&self) -> &str {
        NAME
    }

    fn check(&self) -> Result<(), String> {
        Err(match self.0.percent() {
            Some(percent) => format!("the store was not closed cleanly and is being checked, {percent} % done"),
            None => "the store is being opened".into(),
        })
    }
}

/// Check of an open store: ready while it accepts writes.
pub(crate) struct StoreHealthCheck(pub(crate) DynStore);

impl ReadyCheck for StoreHealthCheck {
    fn name(&self) -> &str {
        NAME
    }

    fn check(&self) -> Result<(), String> {
        self.0.health().map_err(|why| why.to_string())
    }

    fn note(&self) -> Option<String> {
        damage_note(self.0.known_damage().len(), self.0.known_faults().len())
    }
}

/// Returns the note about damaged objects and other faults. Damage does not make the server unready: most clients are
/// not affected, and no other server has the same store.
fn damage_note(damaged: usize, faults: usize) -> Option<String> {
    let objects = match damaged {
        0 => None,
        1 => Some("1 stored object is damaged, the log names it".to_owned()),
        count if count < MAX_KNOWN_DAMAGE => Some(format!("{count} stored objects are damaged, the log names them")),
        count => Some(format!("{count} stored objects or more are damaged, the log names {count}")),
    };
    let others = match faults {
        0 => None,
        1 => Some("a part of the store is damaged or cannot be read, the log tells which".to_owned()),
        count => Some(format!("{count} parts of the store are damaged or cannot be read, the log tells which")),
    };
    match (objects, others) {
        (Some(objects), Some(others)) => Some(format!("{objects}; {others}")),
        (objects, others) => objects.or(others),
    }
}

/// Check of a store in etcd while it is being opened: never ready.
pub struct EtcdOpeningCheck;

impl ReadyCheck for EtcdOpeningCheck {
    fn name(&self) -> &str {
        ETCD
    }

    fn check(&self) -> Result<(), String> {
        Err("the store in etcd is being opened".into())
    }

    fn is_vital(&self) -> bool {
        true
    }
}

/// Check of an open store in etcd: healthy while etcd answers. It reads the last known state, so it never waits.
pub(crate) struct EtcdHealthCheck(pub(crate) DynStore);

impl ReadyCheck for EtcdHealthCheck {
    fn name(&self) -> &str {
        ETCD
    }

    fn check(&self) -> Result<(), String> {
        match self.0.health() {
            Err(why @ (StoreError::Unreachable { .. } | StoreError::Backend(_))) => Err(why.to_string()),
            // An etcd without room still answers.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn is_vital(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_is_ready_while_it_takes_writes() {
        assert_eq!(StoreOpeningCheck(OpenProgress::default()).check(), Err("the store is being opened".into()));
        let ready = StoreHealthCheck(portolan_store::memory());
        assert_eq!((ready.name(), ready.check()), ("store", Ok(())));
        ready.0.close().await;
        assert_eq!(ready.check(), Err("the storage backend failed: the store is closed".into()));
    }

    #[test]
    fn damage_is_counted() {
        assert_eq!(damage_note(0, 0), None);
        for (objects, faults, told) in [
            (1, 0, "1 stored object is damaged, the log names it"),
            (2, 0, "2 stored objects are damaged, the log names them"),
            (10_000, 0, "10000 stored objects or more are damaged, the log names 10000"),
            (0, 1, "a part of the store is damaged or cannot be read, the log tells which"),
            (
                1,
                2,
                "1 stored object is damaged, the log names it; 2 parts of the store are damaged or cannot be read, the log tells which",
            ),
        ] {
            assert_eq!(damage_note(objects, faults).as_deref(), Some(told));
        }
    }

    #[tokio::test]
    async fn etcd_is_asked_for_as_kube_apiserver_does() {
        assert!(EtcdOpeningCheck.is_vital() && EtcdOpeningCheck.check().is_err());
        let answers = EtcdHealthCheck(portolan_store::memory());
        assert_eq!((answers.name(), answers.is_vital(), answers.check()), ("etcd", true, Ok(())));
        answers.0.close().await;
        assert!(answers.check().is_err());
    }
}
