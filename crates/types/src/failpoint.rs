//! Failpoints: named places between two steps that a crash must not separate. Tests end the process there.
//!
//! Release builds contain none. In other builds an unarmed failpoint costs one load.

#[cfg(debug_assertions)]
use std::sync::OnceLock;

/// Marks a failpoint, at which tests may end the process.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(debug_assertions)]
        $crate::failpoint::reached($name);
    };
}

/// Function called at failpoints.
#[cfg(debug_assertions)]
type Hook = Box<dyn Fn(&str) + Send + Sync>;

#[cfg(debug_assertions)]
static HOOK: OnceLock<Hook> = OnceLock::new();

/// Arms the failpoints: `hook` is called with the name of each one reached. The first hook stays.
#[cfg(debug_assertions)]
pub fn arm(hook: Hook) {
    // An error means that a hook is set already.
    let _ = HOOK.set(hook);
}

/// Called by [`failpoint!`](crate::failpoint!).
#[cfg(debug_assertions)]
pub fn reached(name: &str) {
    if let Some(hook) = HOOK.get() {
        hook(name);
    }
}
