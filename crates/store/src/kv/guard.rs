//! Engines panic on damaged files. Behind this guard that is an error of the call, which tells what the panic said, and nobody
//! has to read the panic itself.
//!
//! Where a panic comes from does not tell whose mistake it is: a library may be called in a way that it must not be. So each is
//! told in the log, once for each place in the code, and no error says more than is known.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    panic::{AssertUnwindSafe, Location, PanicHookInfo, catch_unwind},
    sync::Once,
};

use parking_lot::Mutex;

use super::{KvResult, failed};

/// Where this repository's own crates lie, as the compiler names their files.
const OWN: &str = "crates/";
/// Places in the code whose panics are told one by one. There are not so many in an engine.
const PLACES: usize = 1000;

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
    /// What the last panic behind the guard said.
    static SAID: RefCell<Option<Said>> = const { RefCell::new(None) };
}

/// A panic, in words.
struct Said {
    text: String,
    /// In the code.
    place: String,
    /// Code of ours panicked, which reads behind the guard too: that is a mistake, and no damage.
    is_own: bool,
}

/// Turns a panic into an error that tells what it said. Of an engine's, damaged files are the likely cause.
pub(crate) fn guarded<T>(what: &str, files: &str, action: impl FnOnce() -> KvResult<T>) -> KvResult<T> {
    hush();
    let was_guarded = IS_GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(action));
    IS_GUARDED.set(was_guarded);
    done.unwrap_or_else(|_| {
        let Some(Said { text, place, is_own }) = SAID.take() else {
            return Err(failed(format!("{what}: {files} damaged")));
        };
        if is_own {
            return Err(failed(format!("{what}: a mistake in portolan at {place}: {text}")));
        }
        if is_news(&place) {
            tracing::error!(
                error = text,
                place,
                "an engine panicked while {what}: {files} damaged, or this is a mistake in portolan"
            );
        }
        Err(failed(format!("{what}: {files} damaged (the engine panicked at {place}: {text})")))
    })
}

/// Whether nothing has panicked at a place before.
fn is_news(place: &str) -> bool {
    static KNOWN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut known = KNOWN.lock();
    let known = known.get_or_insert_default();
    known.len() < PLACES && known.insert(place.to_owned())
}

/// Notes what panics behind the guard say, and keeps the panic hook silent about those that are not of our own code.
fn hush() {
    static ONCE: Once = Once::new();
    // A thread that panics cannot exchange the hook.
    if std::thread::panicking() {
        return;
    }
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !is_noted(panic) {
                loud(panic);
            }
        }));
    });
}

/// Notes a panic behind the guard. Whether its error tells all that there is to tell.
fn is_noted(panic: &PanicHookInfo<'_>) -> bool {
    if !IS_GUARDED.get() {
        return false;
    }
    let is_own = panic.location().is_some_and(is_own);
    let text = panic.payload_as_str().unwrap_or("a panic without words").to_owned();
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), Location::to_string);
    let place = if is_own { place } else { of_crate(&place) };
    SAID.set(Some(Said { text, place, is_own }));
    !is_own
}

/// A place in the code, from its crate on: where that lies on the machine that built this is nobody's concern.
fn of_crate(place: &str) -> String {
    let source = place.rfind("/src/").map_or(place, |at| &place[..at]);
    let from = source.rfind('/').map_or(0, |at| at + 1);
    place[from..].to_owned()
}

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
        panic!("we forgot {}", "something")
    }

    #[test]
    fn only_what_an_engine_panics_with_behind_the_guard_is_not_told_as_a_panic() {
        hush();
        let hushed = Arc::new(Mutex::new(Vec::new()));
        let (next, noted, here) = (std::panic::take_hook(), hushed.clone(), std::thread::current().id());
        std::panic::set_hook(Box::new(move |panic| match std::thread::current().id() == here {
            true => noted.lock().unwrap().push(is_noted(panic)),
            false => next(panic),
        }));
        let told =
            |action: fn() -> KvResult<()>| guarded("reading the store", "the file is", action).unwrap_err().context;
        let of_engine = told(like_an_engine);
        let (begin, said) = of_engine.split_once(" (").unwrap();
        assert_eq!(begin, "reading the store: the file is damaged");
        for part in ["the engine panicked at ", "bytes.rs:", "range start must not be greater than end"] {
            assert!(said.contains(part), "{part:?} in {said}");
        }
        let of_ours = told(as_we_do);
        assert!(of_ours.starts_with("reading the store: a mistake in portolan at crates/store/src/kv/guard.rs:"));
        assert!(of_ours.ends_with(": we forgot something") && !of_ours.contains("damaged"), "{of_ours}");
        assert!(catch_unwind(like_an_engine).is_err());
        assert_eq!(*hushed.lock().unwrap(), [true, false, false]);
        assert!(!said.contains(".cargo") && !said.contains("registry"), "{said}");
        assert_eq!(
            of_crate("/home/a/.cargo/registry/src/index-1/redb-4.4.0/src/tree/page.rs:7:1"),
            "redb-4.4.0/src/tree/page.rs:7:1"
        );
        assert_eq!(of_crate("lib.rs:1:1"), "lib.rs:1:1");
        assert!(is_news("lib.rs:1:1") && !is_news("lib.rs:1:1"), "a place is told once");
    }
}
