//! Network namespaces for a few processes, joined by a bridge, so that each can be cut off. Requires root.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Names and addresses contain the id of this process, so that concurrent runs do not collide.
pub struct Network {
    name: String,
    subnet: String,
    size: usize,
}

impl Network {
    /// # Errors
    /// Creation fails if the user lacks the rights; it then leaves nothing behind.
    pub fn new(size: usize) -> Result<Self> {
        let id = std::process::id();
        let network = Self { name: format!("ptl{}", id % 100_000), subnet: format!("10.213.{}", id % 250), size };
        let Self { name, subnet, .. } = &network;
        ip(&format!("link add {name} type bridge"))?;
        ip(&format!("addr add {subnet}.1/24 dev {name}"))?;
        ip(&format!("link set {name} up"))?;
        for number in 0..size {
            let (space, outer) = (network.space(number), network.outer(number));
            ip(&format!("netns add {space}"))?;
            ip(&format!("link add {outer} type veth peer name eth0 netns {space}"))?;
            ip(&format!("link set {outer} master {name}"))?;
            ip(&format!("link set {outer} up"))?;
            ip(&format!("-n {space} addr add {}/24 dev eth0", network.address(number)))?;
            ip(&format!("-n {space} link set eth0 up"))?;
            ip(&format!("-n {space} link set lo up"))?;
        }
        Ok(network)
    }

    fn space(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    fn outer(&self, number: usize) -> String {
        format!("{}v{number}", self.name)
    }

    fn address(&self, number: usize) -> String {
        format!("{}.{}", self.subnet, 10 + number)
    }

    /// Returns the address of each host.
    pub fn addresses(&self) -> Vec<String> {
        (0..self.size).map(|number| self.address(number)).collect()
    }

    /// Returns the command that runs `program` in a network namespace.
    pub fn inside(&self, number: usize, program: &Path, args: Vec<String>) -> (PathBuf, Vec<String>) {
        let mut all = vec!["netns".into(), "exec".into(), self.space(number), program.display().to_string()];
        all.extend(args);
        (PathBuf::from("ip"), all)
    }

    /// Disconnects a host from the others.
    pub fn cut(&self, number: usize) -> Result<()> {
        ip(&format!("link set {} down", self.outer(number)))
    }

    /// Reconnects a host with the others.
    pub fn mend(&self, number: usize) -> Result<()> {
        ip(&format!("link set {} up", self.outer(number)))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for number in 0..self.size {
            let _ = ip(&format!("netns del {}", self.space(number)));
        }
        let _ = ip(&format!("link del {}", self.name));
    }
}

fn ip(args: &str) -> Result<()> {
    let ended = Command::new("ip").args(args.split(' ')).stdin(Stdio::null()).output().context("cannot run ip")?;
    ensure!(ended.status.success(), "ip {args}: {}", String::from_utf8_lossy(&ended.stderr).trim());
    Ok(())
}
