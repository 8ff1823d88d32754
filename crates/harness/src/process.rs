//! Child processes that end with this one: killed on drop, on panic (which drops) and on Ctrl-C or SIGTERM.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::NamedTempFile;
use tokio::signal::unix::{SignalKind, signal};

/// Number of characters of a failed command's output that are shown.
const SHOWN: usize = 4000;

/// All running children, for the signal handler.
static CHILDREN: Mutex<Vec<Weak<Mutex<Child>>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Running server whose output goes to a log file.
pub struct Process {
    name: String,
    child: Arc<Mutex<Child>>,
    pid: u32,
    log: PathBuf,
}

impl Process {
    /// Starts `program`, appending its output to `<logs>/<name>.log`.
    pub fn spawn<A: AsRef<OsStr>>(
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
        Ok(Self { name: name.to_owned(), child: register(child), pid, log })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the exit status; `None` while the process runs.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        lock(&self.child).try_wait().context("cannot look at a child process")
    }

    /// Fails with the end of the log if the process has ended.
    pub fn check_alive(&self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}:\n{}", self.name, self.log_tail()),
        }
    }

    /// Returns its whole output.
    pub fn log(&self) -> Result<String> {
        read_lossy(&self.log)
    }

    /// Returns the last lines of the log, each cut to a readable length.
    pub fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(15)..];
        let cut = tail.iter().map(|line| line.chars().take(300).collect::<String>());
        format!("  {}\n  ({})", cut.collect::<Vec<_>>().join("\n  "), self.log.display())
    }

    /// Sends SIGKILL and waits until the process is gone.
    pub fn kill(&self) -> Result<()> {
        let mut child = lock(&self.child);
        child.kill().with_context(|| format!("cannot kill {}", self.name))?;
        child.wait().with_context(|| format!("cannot wait for {}", self.name))?;
        Ok(())
    }

    /// Sends SIGTERM and waits until the process is gone; after 30 s, sends SIGKILL and fails.
    pub fn terminate(&self) -> Result<()> {
        self.signal("TERM").map(drop)
    }

    /// Sends SIGINT, as Ctrl-C does, and waits as [`Process::terminate`] does. Returns the exit code; `None` after a
    /// signal.
    pub fn interrupt(&self) -> Result<Option<i32>> {
        self.signal("INT").map(|status| status.code())
    }

    fn signal(&self, name: &str) -> Result<ExitStatus> {
        // std can only send SIGKILL, and unsafe code is forbidden here: the shell's builtin sends the signal.
        let sent =
            Command::new("sh").args(["-c", &format!("kill -{name} {}", self.pid)]).status().context("cannot run sh")?;
        let start = Instant::now();
        while sent.success() && start.elapsed() < Duration::from_secs(30) {
            if let Some(status) = lock(&self.child).try_wait().context("cannot look at a child process")? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.kill()?;
        bail!("{} did not end within 30 s of SIG{name}", self.name);
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

/// Result of a command that ended.
pub struct ProcessOutput {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs a command to its end. After `limit`, kills it with all its children, which is an error. Its output goes to
/// files, so that a child that stays behind cannot block the caller.
pub fn run(command: &mut Command, stdin: &str, limit: Duration) -> Result<ProcessOutput> {
    let program = command.get_program().display().to_string();
    let (out, err) = (NamedTempFile::new()?, NamedTempFile::new()?);
    let child = command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(out.reopen()?)
        .stderr(err.reopen()?)
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let child = register(child);
    let pipe = lock(&child).stdin.take();
    // A command that does not read its input closes the pipe; its exit code then has the result.
    let _ = pipe.map(|mut pipe| pipe.write_all(stdin.as_bytes()));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = lock(&child).try_wait().context("cannot look at a child process")? {
            break status;
        }
        if start.elapsed() > limit {
            let mut child = lock(&child);
            end_group(&mut child)?;
            child.wait()?;
            bail!("it did not end within {} s {}", limit.as_secs(), read_lossy(err.path())?);
        }
        thread::sleep(Duration::from_millis(5));
    };
    Ok(ProcessOutput { status, stdout: read_lossy(out.path())?, stderr: read_lossy(err.path())? })
}

/// Runs a command, requires success, and returns its output.
pub fn output(command: &mut Command, limit: Duration) -> Result<String> {
    let program = command.get_program().display().to_string();
    let ended = run(command, "", limit).with_context(|| format!("{program} is needed"))?;
    let from = ended.stderr.char_indices().rev().nth(SHOWN).map_or(0, |(index, _)| index);
    ensure!(ended.status.success(), "{program} failed:\n{}{}", ended.stdout, &ended.stderr[from..]);
    Ok(ended.stdout)
}

/// Kills a child, and its group if it leads one.
fn end_group(child: &mut Child) -> Result<()> {
    // std kills processes only, and unsafe code is forbidden here.
    let group = format!("kill -KILL -{}", child.id());
    Command::new("sh").args(["-c", &group]).status().context("cannot run sh")?;
    child.kill().context("cannot kill a child process")
}

fn read_lossy(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Registers a child with the signal handler.
fn register(child: Child) -> Arc<Mutex<Child>> {
    let child = Arc::new(Mutex::new(child));
    let mut children = lock(&CHILDREN);
    children.retain(|known| known.strong_count() > 0);
    children.push(Arc::downgrade(&child));
    child
}

fn kill_all() {
    for child in lock(&CHILDREN).iter().filter_map(Weak::upgrade) {
        let _ = end_group(&mut lock(&child));
    }
}

/// Installs a handler for Ctrl-C and SIGTERM that kills all children, calls `farewell` and ends this process with 130.
pub fn kill_children_on_signals(farewell: impl FnOnce() + Send + 'static) {
    thread::spawn(|| {
        if wait_for_signal().is_ok() {
            kill_all();
            farewell();
            std::process::exit(130);
        }
    });
}

/// Blocks until Ctrl-C or SIGTERM.
fn wait_for_signal() -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_command_gets_its_input_and_gives_its_output() {
        let ended = run(&mut shell("cat; echo no >&2; exit 3"), "yes", Duration::from_secs(10)).unwrap();
        assert_eq!((ended.status.code(), ended.stdout.as_str(), ended.stderr.as_str()), (Some(3), "yes", "no\n"));
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let error = run(&mut shell("exec sleep 60"), "", Duration::from_millis(50)).err().unwrap();
        assert!(error.to_string().contains("did not end"), "{error}");
    }

    #[test]
    fn children_of_a_killed_command_are_killed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("sleep 60 & echo $! > '{}'; wait", file.display());
        assert!(run(&mut shell(&script), "", Duration::from_millis(500)).is_err());
        let proc = format!("/proc/{}/cmdline", fs::read_to_string(file).unwrap().trim());
        let start = Instant::now();
        // Its new parent may be slow to wait for it: a zombie has no command line.
        while fs::read(&proc).is_ok_and(|line| !line.is_empty()) {
            assert!(start.elapsed() < Duration::from_secs(10), "{proc} is still there");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let logs = tempfile::tempdir().unwrap();
        let process = Process::spawn("sleep", Path::new("sleep"), ["60"], logs.path()).unwrap();
        process.check_alive().unwrap();
        let proc = format!("/proc/{}", process.pid());
        drop(process);
        assert!(!Path::new(&proc).exists(), "{proc} is still there");
    }

    #[test]
    fn an_ended_process_is_reported_with_its_log() {
        let logs = tempfile::tempdir().unwrap();
        let process = Process::spawn("talker", Path::new("sh"), ["-c", "echo last words"], logs.path()).unwrap();
        let error = loop {
            if let Err(error) = process.check_alive() {
                break error;
            }
        };
        assert!(error.to_string().contains("last words"), "{error}");
    }
}
