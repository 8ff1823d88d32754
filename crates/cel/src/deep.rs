//! Room for deep expressions: cel-go allows trees that are deeper than the stack of a server's thread, above all unoptimized.

/// Levels of a tree that any thread has room for.
pub(crate) const SHALLOW: usize = 40;
/// What the deepest tree takes, with room to spare.
const STACK: usize = 64 << 20;

/// Runs on a thread of its own with a large stack where `deep`, and right here otherwise. A server's threads are not many, and few
/// expressions are deep; memory that is not touched is not used.
pub(crate) fn run<T: Send>(deep: bool, work: impl FnOnce() -> T + Send) -> Result<T, &'static str> {
    if !deep {
        return Ok(work());
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("cel".to_owned()).stack_size(STACK).spawn_scoped(scope, work);
        thread.ok().and_then(|thread| thread.join().ok()).ok_or("no thread for a deep expression")
    })
}

/// Whether a text may be of a deep tree: by its brackets and operators, of which each may be a level.
pub(crate) fn may_be_deep(text: &str) -> bool {
    text.bytes().filter(|byte| b"([{.+-*/%?<>=!".contains(byte)).count() > SHALLOW
}
