//! Two servers on one etcd. One is killed and restarted repeatedly while the other is tested.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::etcd::Etcd;
use super::portolan::Portolan;
use super::tools::Tools;

/// Time that the killed server stays down.
const DEAD: Duration = Duration::from_millis(500);
/// Time that it serves after its restart.
const ALIVE: Duration = Duration::from_secs(2);

/// All processes except the tested server. They stop when this is dropped.
pub struct ServerPair {
    victim: Portolan,
    _etcd: Etcd,
}

impl ServerPair {
    /// Starts both servers with the same further flags; the second is the one to test.
    pub fn start(program: &Path, tools: &Tools, dir: &Path, flags: &[&str]) -> Result<(Self, Portolan)> {
        let etcd = Etcd::start(tools, &dir.join("etcd"))?;
        let endpoints = format!("--etcd-endpoints={}", etcd.url());
        let flags: Vec<&str> = ["--store=etcd", &endpoints].into_iter().chain(flags.iter().copied()).collect();
        let victim = Portolan::start_with(program, tools, &dir.join("victim"), &flags)?;
        let server = Portolan::start_with(program, tools, &dir.join("server"), &flags)?;
        Ok((Self { victim, _etcd: etcd }, server))
    }

    /// Runs `work` while the other server is killed repeatedly. Returns the number of kills; fails if it did not
    /// restart.
    pub fn while_one_is_killed<T>(&mut self, work: impl FnOnce() -> T) -> (T, Result<usize>) {
        let (victim, over) = (&mut self.victim, AtomicBool::new(false));
        std::thread::scope(|scope| {
            let killing = scope.spawn(|| kill_until(victim, &over));
            let ending = Ending(&over);
            let done = work();
            drop(ending);
            (done, killing.join().unwrap_or_else(|_| Err(anyhow!("the killer panicked"))))
        })
    }
}

/// Ends the kills also when the work panics: otherwise the scope would wait forever.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn kill_until(victim: &mut Portolan, over: &AtomicBool) -> Result<usize> {
    let mut kills = 0;
    while !over.load(Ordering::Acquire) {
        victim.kill()?;
        std::thread::sleep(DEAD);
        victim.restart()?;
        kills += 1;
        std::thread::sleep(ALIVE);
    }
    Ok(kills)
}
