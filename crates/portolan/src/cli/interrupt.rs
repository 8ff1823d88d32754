//! What Ctrl-C leaves behind, told.

use std::io::Write as _;

use tokio::signal::unix::{SignalKind, signal};

/// A shell's exit code of a command that a signal ended is this and the signal's number.
const SIGNALLED: i32 = 128;

/// On the first SIGINT or SIGTERM, says what `left` tells and ends the process, wherever it is: what it writes is whole at any moment.
///
/// # Errors
/// When the thread that waits does not start.
pub(super) fn on_interrupt(left: impl FnOnce() -> String + Send + 'static) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("interrupt".into()).spawn(move || {
        let number = runtime.block_on(async {
            let (mut interrupt, mut terminate) =
                (signal(SignalKind::interrupt()).ok()?, signal(SignalKind::terminate()).ok()?);
            tokio::select! {
                _ = interrupt.recv() => Some(SignalKind::interrupt().as_raw_value()),
                _ = terminate.recv() => Some(SignalKind::terminate().as_raw_value()),
            }
        });
        if let Some(number) = number {
            // Nobody may read it any more.
            let _ = writeln!(std::io::stderr(), "error: interrupted: {}", left());
            std::process::exit(SIGNALLED + number);
        }
    })?;
    Ok(())
}
