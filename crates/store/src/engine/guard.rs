//! Guard against engines that panic on damaged files. It turns the panic into an error of the call that contains the
//! panic's message.
//!
//! The location of a panic does not tell whose bug it is: a library may have been misused. Each panic is therefore
//! logged once per location, and no error claims more than is known.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    panic::{AssertUnwindSafe, Location, PanicHookInfo, catch_unwind},
    sync::Once,
};

use parking_lot::Mutex;

use super::{KvResult, failed};

/// Path of this repository's crates, as the compiler names their files.
const OWN_CRATES: &str = "crates/";
/// Most locations whose panics are logged. An engine has fewer.
const MAX_LOGGED: usize = 1000;

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
    /// Last panic behind the guard.
    static LAST_PANIC: RefCell<Option<PanicMessage>> = const { RefCell::new(None) };
}

/// Message of a panic.
struct PanicMessage {
    text: String,
    /// Location in the code.
    place: String,
    /// True if this repository's code panicked behind the guard: that is a bug, not damage.
    is_own: bool,
}

/// Turns a panic into an error with its message. The likely cause of an engine's panic is a damaged file.
pub(crate) fn guarded<T>(what: &str, files: &str, action: impl FnOnce() -> KvResult<T>) -> KvResult<T> {
    install_panic_hook();
    let was_guarded = IS_GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(action));
    IS_GUARDED.set(was_guarded);
    done.unwrap_or_else(|_| {
        let Some(PanicMessage { text, place, is_own }) = LAST_PANIC.take() else {
            return Err(failed(format!("{what}: {files} damaged")));
        };
        if is_own {
            return Err(failed(format!("{what}: a bug in Portolan at {place}: {text}")));
        }
        if is_new(&place) {
            tracing::error!(
                error = text,
                place,
                "an engine panicked while {what}: {files} damaged, or this is a bug in Portolan"
            );
        }
        Err(failed(format!("{what}: {files} damaged (the engine panicked at {place}: {text})")))
    })
}

/// Returns true if nothing has panicked at this location before.
fn is_new(place: &str) -> bool {
    static KNOWN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut known = KNOWN.lock();
    let known = known.get_or_insert_default();
    known.len() < MAX_LOGGED && known.insert(place.to_owned())
}

/// Installs a panic hook that records panics behind the guard, and prints only those of this repository's code.
fn install_panic_hook() {
    static ONCE: Once = Once::new();
    // A panicking thread cannot replace the hook.
    if std::thread::panicking() {
        return;
    }
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !record_panic(panic) {
                loud(panic);
            }
        }));
    });
}

/// Records a panic behind the guard. Returns true if the resulting error says everything.
fn record_panic(panic: &PanicHookInfo<'_>) -> bool {
    if !IS_GUARDED.get() {
        return false;
    }
    let is_own = panic.location().is_some_and(is_own);
    let text = panic.payload_as_str().unwrap_or("a panic without a message").to_owned();
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), Location::to_string);
    let place = if is_own { place } else { crate_relative(&place) };
    LAST_PANIC.set(Some(PanicMessage { text, place, is_own }));
    !is_own
}

/// Shortens a location to start with its crate, without paths of the build machine.
fn crate_relative(place: &str) -> String {
    let source = place.rfind("/src/").map_or(place, |at| &place[..at]);
    let from = source.rfind('/').map_or(0, |at| at + 1);
    place[from..].to_owned()
}

fn is_own(place: &Location<'_>) -> bool {
    place.file().starts_with(OWN_CRATES)
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
    fn only_panics_of_the_engine_under_the_guard_become_errors() {
        install_panic_hook();
        let hushed = Arc::new(Mutex::new(Vec::new()));
        let (next, noted, here) = (std::panic::take_hook(), hushed.clone(), std::thread::current().id());
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().id() == here {
                noted.lock().unwrap().push(record_panic(panic))
            } else {
                next(panic)
            }
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
        assert!(of_ours.starts_with("reading the store: a bug in Portolan at crates/store/src/engine/guard.rs:"));
        assert!(of_ours.ends_with(": we forgot something") && !of_ours.contains("damaged"), "{of_ours}");
        assert!(catch_unwind(like_an_engine).is_err());
        assert_eq!(*hushed.lock().unwrap(), [true, false, false]);
        assert!(!said.contains(".cargo") && !said.contains("registry"), "{said}");
        assert_eq!(
            crate_relative("/home/a/.cargo/registry/src/index-1/redb-4.4.0/src/tree/page.rs:7:1"),
            "redb-4.4.0/src/tree/page.rs:7:1"
        );
        assert_eq!(crate_relative("lib.rs:1:1"), "lib.rs:1:1");
        assert!(is_new("lib.rs:1:1") && !is_new("lib.rs:1:1"), "a location is reported once");
    }
}
