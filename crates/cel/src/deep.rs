//! Stack for deep expressions. cel-go accepts trees that are deeper than a server thread's stack, mainly without
//! optimization.

/// Depth of a tree that fits the stack of any thread.
pub(crate) const SHALLOW: usize = 40;
/// Stack for the deepest tree, with a margin.
const STACK: usize = 64 << 20;

/// Runs on a new thread with a large stack if `deep`, and on the caller's thread otherwise. Few expressions are deep,
/// and memory that is not touched is not used.
pub(crate) fn run<T: Send>(deep: bool, work: impl FnOnce() -> T + Send) -> Result<T, &'static str> {
    if !deep {
        return Ok(work());
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("cel".to_owned()).stack_size(STACK).spawn_scoped(scope, work);
        thread.ok().and_then(|thread| thread.join().ok()).ok_or("no thread for a deep expression")
    })
}

/// Returns true if a text may be a deep tree: each of its brackets and operators may be a level.
pub(crate) fn may_be_deep(text: &str) -> bool {
    text.bytes().filter(|byte| b"([{.+-*/%?<>=!".contains(byte)).count() > SHALLOW
}
