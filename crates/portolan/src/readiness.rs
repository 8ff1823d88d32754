//! What `/readyz` says of the store.

use portolan_apiserver::hooks::ReadyCheck;
use portolan_store::{DynStore, Opening};

/// The name of both checks: they are one to who looks.
const NAME: &str = "store";

/// A store that is being opened.
pub(crate) struct StoreOpening(pub(crate) Opening);

impl ReadyCheck for StoreOpening {
    fn name(&self) -> &str {
        NAME
    }

    fn check(&self) -> Result<(), String> {
        Err(match self.0.percent() {
            Some(percent) => format!("it was not closed cleanly and is being checked, {percent} % done"),
            None => "it is being opened".into(),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_is_ready_while_it_takes_writes() {
        assert_eq!(StoreOpening(Opening::default()).check(), Err("it is being opened".into()));
        let ready = StoreReady(portolan_store::memory());
        assert_eq!((ready.name(), ready.check()), ("store", Ok(())));
        ready.0.close().await;
        assert_eq!(ready.check(), Err("the storage backend failed: the store is closed".into()));
    }
}
