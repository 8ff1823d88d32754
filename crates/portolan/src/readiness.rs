//! What `/readyz` says of the store, and `/livez` of etcd.

use portolan_apiserver::hooks::ReadyCheck;
use portolan_store::{DynStore, MOST_KNOWN, Opening, StoreError};

/// The name of both checks: they are one to who looks.
const NAME: &str = "store";
/// The name of kube-apiserver's check of etcd.
const ETCD: &str = "etcd";

/// A store that is being opened.
pub(crate) struct StoreOpening(pub(crate) Opening);

impl ReadyCheck for StoreOpening {
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

/// A store that is open: whether it takes writes.
pub(crate) struct StoreReady(pub(crate) DynStore);

impl ReadyCheck for StoreReady {
    fn name(&self) -> &str {
        NAME
    }

    fn check(&self) -> Result<(), String> {
        self.0.health().map_err(|why| why.to_string())
    }

    fn note(&self) -> Option<String> {
        told_of(self.0.known_damage().len(), self.0.known_faults().len())
    }
}

/// What is told of so many damaged objects, and of so much else that is damaged or cannot be read. It is no reason to send clients elsewhere:
/// to most of them it does not matter, and there is no other server that has the same store whole.
fn told_of(damaged: usize, faults: usize) -> Option<String> {
    let objects = match damaged {
        0 => None,
        1 => Some("1 stored object is damaged, the log names it".to_owned()),
        count if count < MOST_KNOWN => Some(format!("{count} stored objects are damaged, the log names them")),
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

/// A store in etcd that is being opened.
pub(crate) struct EtcdOpening;

impl ReadyCheck for EtcdOpening {
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

/// A store in etcd that is open: whether etcd answers. It is asked all the time anyway, so that nobody waits for it here.
pub(crate) struct EtcdAnswers(pub(crate) DynStore);

impl ReadyCheck for EtcdAnswers {
    fn name(&self) -> &str {
        ETCD
    }

    fn check(&self) -> Result<(), String> {
        match self.0.health() {
            Err(why @ (StoreError::Unreachable { .. } | StoreError::Backend(_))) => Err(why.to_string()),
            // Who has no room still answers.
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
        assert_eq!(StoreOpening(Opening::default()).check(), Err("the store is being opened".into()));
        let ready = StoreReady(portolan_store::memory());
        assert_eq!((ready.name(), ready.check()), ("store", Ok(())));
        ready.0.close().await;
        assert_eq!(ready.check(), Err("the storage backend failed: the store is closed".into()));
    }

    #[test]
    fn what_is_damaged_is_counted() {
        assert_eq!(told_of(0, 0), None);
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
            assert_eq!(told_of(objects, faults).as_deref(), Some(told));
        }
    }

    #[tokio::test]
    async fn etcd_is_asked_for_as_kube_apiserver_does() {
        assert!(EtcdOpening.is_vital() && EtcdOpening.check().is_err());
        let answers = EtcdAnswers(portolan_store::memory());
        assert_eq!((answers.name(), answers.is_vital(), answers.check()), ("etcd", true, Ok(())));
        answers.0.close().await;
        assert!(answers.check().is_err());
    }
}
