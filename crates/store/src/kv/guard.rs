//! Engines panic on damaged files. Behind this guard that is an error of the call, and nobody has to read of a panic: the error
//! says what is wrong.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, Location, PanicHookInfo, catch_unwind},
    sync::Once,
};

use super::{KvResult, failed};

/// Where this repository's own crates lie, as the compiler names their files.
const OWN: &str = "crates/";

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Turns a panic of an engine, which only damaged files can cause, into an error that says so.
pub(super) fn guarded<T>(what: &str, files: &str, action: impl FnOnce() -> KvResult<T>) -> KvResult<T> {
    hush();
    let was_guarded = IS_GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(action));
    IS_GUARDED.set(was_guarded);
    done.unwrap_or_else(|_| Err(failed(format!("{what}: {files} damaged"))))
}

/// Keeps the panic hook silent about what the guard turns into an error, and about nothing else.
fn hush() {
    static ONCE: Once = Once::new();
    // A thread that panics cannot exchange the hook.
    if std::thread::panicking() {
        return;
    }
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| match is_told_otherwise(panic) {
            true => tracing::debug!(%panic, "an engine panicked on damaged files"),
            false => loud(panic),
        }));
    });
}

fn is_told_otherwise(panic: &PanicHookInfo<'_>) -> bool {
    IS_GUARDED.get() && !panic.location().is_some_and(is_own)
}

/// Whether code of ours panicked, which reads behind the guard too: that is a mistake, and no damage.
fn is_own(place: &Location<'_>) -> bool {
    place.file().starts_with(OWN)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Panics as an engine does: elsewhere than in our own crates.
    fn like_an_engine() -> KvResult<()> {
        drop(bytes::Bytes::from_static(b"short").slice(9..));
        Ok(())
    }

    fn as_we_do() -> KvResult<()> {
        panic!("a mistake of ours")
    }

    #[test]
    fn only_what_an_engine_panics_with_behind_the_guard_is_not_told_as_a_panic() {
        hush();
        let hushed = Arc::new(Mutex::new(Vec::new()));
        let (next, noted, here) = (std::panic::take_hook(), hushed.clone(), std::thread::current().id());
        std::panic::set_hook(Box::new(move |panic| match std::thread::current().id() == here {
            true => noted.lock().unwrap().push(is_told_otherwise(panic)),
            false => next(panic),
        }));
        let failed = guarded("reading the store", "the file is", like_an_engine).unwrap_err();
        assert_eq!(failed.context, "reading the store: the file is damaged");
        assert!(guarded("reading the store", "the file is", as_we_do).is_err());
        assert!(catch_unwind(like_an_engine).is_err());
        assert_eq!(*hushed.lock().unwrap(), [true, false, false]);
    }
}
