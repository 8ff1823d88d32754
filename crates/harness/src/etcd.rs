//! etcd with one or several members, each of which can be killed, suspended, partitioned, and restarted on its data.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::gateway::{Gateway, base64};
use super::network::Network;
use super::pki::Authority;
use super::poll;
use super::process::Process;
use super::{ports::free_port, tools::Tools};

/// Time within which members must be up and agree.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time within which etcd must be full.
const FULL_LIMIT: Duration = Duration::from_secs(180);
/// Time within which clients reconnect to etcd.
const REACHED: Duration = Duration::from_secs(2);
const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;

/// Running members.
pub struct Etcd {
    members: Vec<EtcdProcess>,
    network: Option<Network>,
}

/// Client certificate and certificate authority of an etcd that requires TLS.
pub struct Certificates {
    /// File of the certificate authority.
    pub authority: PathBuf,
    /// File of the client's certificate.
    pub certificate: PathBuf,
    /// File of the client's key.
    pub key: PathBuf,
}

/// Process of a member with its addresses.
struct EtcdProcess {
    program: PathBuf,
    args: Vec<String>,
    logs: PathBuf,
    name: String,
    /// Client URL.
    gateway: Gateway,
    scheme: &'static str,
    process: Process,
}

impl Etcd {
    /// Starts one member with its data under `dir`, with production durability.
    pub fn start(tools: &Tools, dir: &Path) -> Result<Self> {
        Self::start_with(tools, dir, &[])
    }

    /// Starts as [`Etcd::start`], with further flags.
    pub fn start_with(tools: &Tools, dir: &Path, flags: &[&str]) -> Result<Self> {
        Self::start_members(tools, dir, &[("127.0.0.1".to_owned(), free_port()?, free_port()?)], flags, None)
    }

    /// Starts one member that accepts only clients with a certificate.
    pub fn start_with_certificates(tools: &Tools, dir: &Path) -> Result<(Self, Certificates)> {
        fs::create_dir_all(dir)?;
        let authority = Authority::new("etcd")?;
        let (server, client) = (authority.server()?, authority.client("portolan", "etcd")?);
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            anyhow::Ok(path)
        };
        let ca = write("ca.crt", authority.certificate())?;
        let flags = [
            format!("--cert-file={}", write("server.crt", &server.certificate)?.display()),
            format!("--key-file={}", write("server.key", &server.key)?.display()),
            format!("--trusted-ca-file={}", ca.display()),
            "--client-cert-auth".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let places = [("127.0.0.1".to_owned(), free_port()?, free_port()?)];
        let etcd = Self::start_members(tools, dir, &places, &flags, None)?;
        let certificates = Certificates {
            authority: ca,
            certificate: write("client.crt", &client.certificate)?,
            key: write("client.key", &client.key)?,
        };
        Ok((etcd, certificates))
    }

    /// Starts three members: each in its own network namespace where the system allows it, so that it can be
    /// partitioned.
    pub fn start_three(tools: &Tools, dir: &Path, flags: &[&str]) -> Result<Self> {
        match Network::new(3) {
            Ok(network) => {
                let places: Vec<_> =
                    network.addresses().into_iter().map(|address| (address, CLIENT_PORT, PEER_PORT)).collect();
                Self::start_members(tools, dir, &places, flags, Some(network))
            }
            Err(error) => {
                println!("      members cannot be cut off here: {error:#}");
                let place = |_| Ok(("127.0.0.1".to_owned(), free_port()?, free_port()?));
                Self::start_members(tools, dir, &(0..3).map(place).collect::<Result<Vec<_>>>()?, flags, None)
            }
        }
    }

    fn start_members(
        tools: &Tools,
        dir: &Path,
        places: &[(String, u16, u16)],
        flags: &[&str],
        network: Option<Network>,
    ) -> Result<Self> {
        let scheme = if flags.iter().any(|flag| flag.starts_with("--cert-file")) { "https" } else { "http" };
        let peers: Vec<String> = places.iter().map(|(host, _, peer)| format!("http://{host}:{peer}")).collect();
        let all = peers.iter().enumerate().map(|(number, peer)| format!("m{number}={peer}"));
        let all = all.collect::<Vec<_>>().join(",");
        let mut members = Vec::new();
        for (number, (host, client, _)) in places.iter().enumerate() {
            let (name, address, peer) = (format!("m{number}"), format!("{host}:{client}"), &peers[number]);
            let mut args = vec![
                format!("--name={name}"),
                format!("--data-dir={}", dir.join(&name).display()),
                format!("--listen-client-urls={scheme}://{address}"),
                format!("--advertise-client-urls={scheme}://{address}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster={all}"),
                "--log-level=warn".to_owned(),
            ];
            args.extend(flags.iter().map(|&flag| flag.to_owned()));
            let (program, args) = match &network {
                Some(network) => network.inside(number, &tools.etcd(), args),
                None => (tools.etcd(), args),
            };
            let logs = dir.join("logs");
            let process = Process::spawn(&format!("etcd-{name}"), &program, &args, &logs)?;
            let gateway = Gateway::new(address);
            members.push(EtcdProcess { program, args, logs, name, gateway, scheme, process });
        }
        let etcd = Self { members, network };
        etcd.members.iter().try_for_each(EtcdProcess::wait_ready)?;
        if etcd.members.len() > 1 {
            poll::until("etcd's members have a leader", START_LIMIT, || etcd.leader().map(drop))?;
        }
        Ok(etcd)
    }

    /// Returns the client URLs, separated by commas.
    pub fn url(&self) -> String {
        let urls = self.members.iter().map(|member| format!("{}://{}", member.scheme, member.gateway.address()));
        urls.collect::<Vec<_>>().join(",")
    }

    /// Returns true if members have a network namespace of their own and can be partitioned.
    pub fn has_network(&self) -> bool {
        self.network.is_some()
    }

    /// Returns the process id of a member.
    pub fn pid(&self, member: usize) -> u32 {
        self.members[member].process.pid()
    }

    /// Returns the number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Returns the leader: the only member, or the one that reports it.
    pub fn leader(&self) -> Result<usize> {
        if self.members.len() == 1 {
            return Ok(0);
        }
        let leads = |member: &EtcdProcess| {
            member
                .gateway
                .ask("GET", "/metrics", "")
                .is_ok_and(|said| said.lines().any(|l| l == "etcd_server_is_leader 1"))
        };
        self.members.iter().position(leads).context("no member says that it leads")
    }

    /// Kills a member with SIGKILL, and restarts it on the same data.
    pub fn kill_and_restart(&mut self, member: usize) -> Result<()> {
        let member = &mut self.members[member];
        member.process.kill()?;
        std::thread::sleep(Duration::from_millis(1500));
        member.start_again()?;
        member.wait_ready()
    }

    /// Partitions a member from the network for this time.
    pub fn cut_off(&self, member: usize, time: Duration) -> Result<()> {
        let network = self.network.as_ref().context("members have no network of their own")?;
        network.cut(member)?;
        std::thread::sleep(time);
        network.mend(member)
    }

    /// Compacts all history, as an operator or etcd's own compaction might.
    pub fn compact(&self) -> Result<()> {
        self.first(Gateway::compact)
    }

    /// Ends every connection by killing all members with SIGKILL. Before clients can reconnect, compacts all history,
    /// which includes events that they never received.
    pub fn restart_and_forget(&mut self) -> Result<()> {
        self.kill()?;
        self.restart()?;
        let put = || self.call("/v3/kv/put", &json!({"key": base64("forgotten"), "value": ""})).map(drop);
        poll::until("etcd's members take writes again", START_LIMIT, put)?;
        std::thread::sleep(REACHED);
        (0..4).try_for_each(|_| put())?;
        self.compact()
    }

    /// Returns the client of the first member.
    pub fn gateway(&self) -> Gateway {
        Gateway::new(self.members[0].gateway.address().to_owned())
    }

    /// Defragments the members' files.
    fn defragment(&self) -> Result<()> {
        self.members.iter().try_for_each(|member| member.gateway.defragment())
    }

    /// Stops all members with SIGTERM.
    pub fn stop(&self) -> Result<()> {
        self.members.iter().try_for_each(|member| member.process.terminate())
    }

    /// Kills all members with SIGKILL.
    pub fn kill(&self) -> Result<()> {
        self.members.iter().try_for_each(|member| member.process.kill())
    }

    /// Restarts all members on their data.
    pub fn restart(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(EtcdProcess::start_again)?;
        self.members.iter().try_for_each(EtcdProcess::wait_ready)
    }

    /// Fills the database, and frees space again after `time`.
    pub fn run_out_of_room(&self, time: Duration) -> Result<()> {
        self.fill()?;
        std::thread::sleep(time);
        self.make_room()
    }

    /// Fills the database.
    pub fn fill(&self) -> Result<()> {
        let junk = base64("x".repeat(1 << 20));
        let (mut number, start) = (0, Instant::now());
        loop {
            number += 1;
            match self.call("/v3/kv/put", &json!({"key": base64(format!("junk/{number}")), "value": junk})) {
                Err(error) if error.to_string().contains("space exceeded") => return Ok(()),
                // A restarted member may not answer yet.
                other if start.elapsed() > FULL_LIMIT => return other.map(drop).context("etcd does not run full"),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Frees space after [`Etcd::fill`], as etcd's manual describes: delete, compact, defragment, disarm the alarm.
    pub fn make_room(&self) -> Result<()> {
        let range = json!({"key": base64("junk/"), "range_end": base64("junk0")});
        self.call("/v3/kv/deleterange", &range).context("deleting without room")?;
        self.compact()?;
        self.defragment()?;
        let alarms = self.call("/v3/maintenance/alarm", &json!({"action": "GET"}))?;
        for alarm in alarms["alarms"].as_array().into_iter().flatten() {
            let disarm = json!({"action": "DEACTIVATE", "memberID": alarm["memberID"], "alarm": alarm["alarm"]});
            self.call("/v3/maintenance/alarm", &disarm)?;
        }
        Ok(())
    }

    fn call(&self, path: &str, body: &Value) -> Result<Value> {
        self.first(|gateway| gateway.call(path, body))
    }

    /// Sends the request to the member that answers first.
    fn first<T>(&self, ask: impl Fn(&Gateway) -> Result<T>) -> Result<T> {
        let mut failed = anyhow::anyhow!("there is no member");
        for member in &self.members {
            match ask(&member.gateway) {
                Ok(answer) => return Ok(answer),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

impl EtcdProcess {
    fn start_again(&mut self) -> Result<()> {
        self.process = Process::spawn(&format!("etcd-{}", self.name), &self.program, &self.args, &self.logs)?;
        Ok(())
    }

    fn wait_ready(&self) -> Result<()> {
        poll::until("etcd listens", START_LIMIT, || {
            self.process.check_alive()?;
            Ok(TcpStream::connect(self.gateway.address()).map(drop)?)
        })
    }
}
