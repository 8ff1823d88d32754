//! Network of the pods of one cluster.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process;

/// Second numbers of the networks `10.x.0.0/16`, of which each cluster gets one.
const NUMBERS: std::ops::Range<u8> = 128..250;
const LIMIT: Duration = Duration::from_secs(10);

/// Bridge of this machine that connects the pods of one cluster with each other, with this machine, and with the pods
/// of other clusters. Removed when dropped; one that a killed process left behind is taken over.
pub(super) struct PodBridge {
    number: u8,
}

impl PodBridge {
    /// Makes a bridge with a network that no other process uses.
    pub(super) fn claim() -> Result<Self> {
        for number in NUMBERS {
            let bridge = name(number);
            if is_in_use(&bridge)? || ip(&format!("link add {bridge} type bridge")).is_err() {
                continue;
            }
            let claimed = Self { number };
            ip(&format!("link set {bridge} alias {}", std::process::id()))?;
            ip(&format!("addr add {}/17 dev {bridge}", claimed.address()))?;
            ip(&format!("link set {bridge} up"))?;
            // Pods of one cluster connect to those of another.
            fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot let pods reach other networks")?;
            return Ok(claimed);
        }
        bail!("no bridge can be made for pods: is this process root, and are there bridges and free networks 10.128+?")
    }

    pub(super) fn name(&self) -> String {
        name(self.number)
    }

    /// Address of this machine.
    pub(super) fn address(&self) -> String {
        format!("10.{}.0.1", self.number)
    }

    /// First three numbers of the addresses of pods.
    pub(super) fn pods(&self) -> String {
        format!("10.{}.1", self.number)
    }

    /// Range of the addresses of Services.
    pub(super) fn services(&self) -> String {
        format!("10.{}.128.0/17", self.number)
    }

    /// Address of the Service `kubernetes`.
    pub(super) fn first_service(&self) -> String {
        format!("10.{}.128.1", self.number)
    }
}

impl Drop for PodBridge {
    fn drop(&mut self) {
        // It is taken over by the next run if it stays.
        let _ = ip(&format!("link del {}", self.name()));
    }
}

fn name(number: u8) -> String {
    format!("pods{number}")
}

/// Returns true if a running process has the bridge. Removes it if its process has ended.
fn is_in_use(bridge: &str) -> Result<bool> {
    let file = PathBuf::from("/sys/class/net").join(bridge).join("ifalias");
    let owner = match fs::read_to_string(&file) {
        Ok(owner) => owner,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    // Between its creation and its alias a bridge has no owner yet.
    if owner.trim().is_empty() || Path::new("/proc").join(owner.trim()).exists() {
        return Ok(true);
    }
    ip(&format!("link del {bridge}"))?;
    Ok(false)
}

fn ip(args: &str) -> Result<()> {
    let ended = process::run(Command::new("ip").args(args.split_whitespace()), "", LIMIT)?;
    ensure!(ended.status.success(), "ip {args}: {}", ended.stderr);
    Ok(())
}
