//! Child processes that never outlive this one: killed on drop, on panic (which drops) and on Ctrl-C or SIGTERM.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

/// All children that may be alive, for the signal handler.
static CHILDREN: Mutex<Vec<Weak<Mutex<Child>>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running server whose output goes to a log file.
pub(crate) struct Process {
    name: String,
    child: Arc<Mutex<Child>>,
    pid: u32,
    log: PathBuf,
}

impl Process {
    /// Starts `program`, appending its output to `<logs>/<name>.log`.
    pub(crate) fn spawn<A: AsRef<OsStr>>(
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item = A>,
        logs: &Path,
    ) -> Result<Self> {
        fs::create_dir_all(logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let log = logs.join(format!("{name}.log"));
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("cannot share the log file")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pid = child.id();
        let child = Arc::new(Mutex::new(child));
        let mut children = lock(&CHILDREN);
        children.retain(|known| known.strong_count() > 0);
        children.push(Arc::downgrade(&child));
        Ok(Self { name: name.to_owned(), child, pid, log })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// An error with the end of the log when the process has ended.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match lock(&self.child).try_wait().context("cannot look at a child process")? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}:\n{}", self.name, self.log_tail()),
        }
    }

    /// The last lines of the log, each cut to a readable length.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(15)..];
        let cut = tail.iter().map(|line| line.chars().take(300).collect::<String>());
        format!("  {}\n  ({})", cut.collect::<Vec<_>>().join("\n  "), self.log.display())
    }

    /// SIGKILL, and waits until the process is gone.
    pub(crate) fn kill(&self) -> Result<()> {
        let mut child = lock(&self.child);
        child.kill().with_context(|| format!("cannot kill {}", self.name))?;
        child.wait().with_context(|| format!("cannot wait for {}", self.name))?;
        Ok(())
    }

    /// SIGTERM, and waits until the process is gone; SIGKILL and an error when that takes over 30 s.
    pub(crate) fn terminate(&self) -> Result<()> {
        // std can only send SIGKILL, and unsafe code is forbidden here: the shell's builtin sends the signal.
        let sent = Command::new("sh")
            .args(["-c", &format!("kill -TERM {}", self.pid)])
            .status()
            .context("cannot run sh")?;
        let start = Instant::now();
        while sent.success() && start.elapsed() < Duration::from_secs(30) {
            if lock(&self.child).try_wait().context("cannot look at a child process")?.is_some() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.kill()?;
        bail!("{} did not end within 30 s of SIGTERM", self.name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut child = lock(&self.child);
        // Both fail only when the process has already ended and been waited for.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn kill_all() {
    for child in lock(&CHILDREN).iter().filter_map(Weak::upgrade) {
        let _ = lock(&child).kill();
    }
}

/// From now on Ctrl-C and SIGTERM kill all children and end this process with 130.
pub(crate) fn kill_children_on_signals() {
    thread::spawn(|| {
        if wait_for_signal().is_ok() {
            kill_all();
            std::process::exit(130);
        }
    });
}

/// Blocks until Ctrl-C or SIGTERM.
pub(crate) fn wait_for_signal() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok(())
    })
}
