//! Messages about files left by Ctrl-C.

use std::io::Write as _;

use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a shell for a command that a signal ended, without the signal's number.
const SIGNALLED: i32 = 128;

/// On the first SIGINT or SIGTERM, prints the message of `left` and ends the process at once: its files are valid at
/// any moment.
///
/// # Errors
/// Fails if the waiting thread does not start.
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
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "error: interrupted: {}", left());
            std::process::exit(SIGNALLED + number);
        }
    })?;
    Ok(())
}
