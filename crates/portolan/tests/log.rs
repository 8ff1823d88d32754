//! Tests of a server with an unwritable log.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs::{self, File, OpenOptions},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use portolan_types::MonotonicInstant;

/// Time for a server to start or stop on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn start(data: &Path, log: Stdio) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.args(["server", "--bind-address", "127.0.0.1:0", "--data-dir"]).arg(data);
    // Every log line is one more that cannot be written.
    command.env("PORTOLAN_LOG", "debug").stderr(log).spawn().unwrap()
}

/// Polls until there is a result.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = MonotonicInstant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(MonotonicInstant::now() < end, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the server has written its kubeconfig, and stops it as an operator does; it ends in order.
fn serves_and_stops(case: &str, mut server: Child, data: &Path) {
    until(case, || {
        assert_eq!(server.try_wait().unwrap(), None, "{case}: it ended by itself");
        fs::metadata(data.join("admin.kubeconfig")).ok()
    });
    let stopped = until(case, || {
        Command::new("kill").arg(server.id().to_string()).status().unwrap();
        server.try_wait().unwrap()
    });
    // A server that did not handle the signal yet is ended by it.
    assert!(stopped.success() || stopped.signal() == Some(15), "{case}: {stopped}");
}

#[test]
fn a_log_that_cannot_be_written_ends_no_server() {
    let dir = tempfile::tempdir().unwrap();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let data = dir.path().join("full");
    serves_and_stops("a full disk", start(&data, full.into()), &data);

    let data = dir.path().join("gone");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    serves_and_stops("a reader that is gone", start(&data, writer.into()), &data);

    let data = dir.path().join("closed");
    let nothing = File::open("/dev/null").unwrap();
    serves_and_stops("a log that is only readable", start(&data, nothing.into()), &data);
}
