//! Places between two steps that a crash must not tear apart: a test lets the process end there.
//!
//! Release builds have nothing of it. In others a place costs one load while nothing is armed.

#[cfg(debug_assertions)]
use std::sync::OnceLock;

/// Names a place at which the process may be made to end.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(debug_assertions)]
        $crate::failpoint::reached($name);
    };
}

/// What happens at places.
#[cfg(debug_assertions)]
type Hook = Box<dyn Fn(&str) + Send + Sync>;

#[cfg(debug_assertions)]
static HOOK: OnceLock<Hook> = OnceLock::new();

/// From now on `hook` is called with the name of each place that is passed. The first one stays.
#[cfg(debug_assertions)]
pub fn arm(hook: Hook) {
    // An error means that a hook is there.
    let _ = HOOK.set(hook);
}

/// Called by [`failpoint!`](crate::failpoint!).
#[cfg(debug_assertions)]
pub fn reached(name: &str) {
    if let Some(hook) = HOOK.get() {
        hook(name);
    }
}
