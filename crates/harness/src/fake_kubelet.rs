//! Answers of kwok's kubelet in place of containers: logs from files, commands and ports of this machine.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::ports::free_port;

/// Port of every pod, with its target.
#[derive(Clone, Copy)]
pub struct ForwardedPort {
    /// Port of the pod.
    pub pod: u16,
    /// Port of this machine, on which a suite may listen.
    pub local: u16,
}

/// Kubelet of all nodes of a physical cluster.
pub struct FakeKubelet {
    port: u16,
    dir: PathBuf,
    /// Port for any protocol.
    pub plain: ForwardedPort,
    /// Port for HTTPS.
    pub https: ForwardedPort,
}

impl FakeKubelet {
    /// Creates a kubelet with its files under `dir`.
    pub fn new(dir: &Path) -> Result<Self> {
        let kubelet = Self {
            port: free_port()?,
            dir: dir.join("containers"),
            plain: ForwardedPort { pod: 8080, local: free_port()? },
            https: ForwardedPort { pod: 8443, local: free_port()? },
        };
        fs::create_dir_all(&kubelet.dir).with_context(|| format!("cannot make {}", kubelet.dir.display()))?;
        kubelet.log("started")?;
        fs::write(kubelet.file("previous.log"), line("ended")).context("cannot write a log")?;
        fs::write(kubelet.config(), kubelet.settings()).context("cannot write the settings of kwok's kubelet")?;
        Ok(kubelet)
    }

    /// Writes a line to the standard output of every container.
    pub fn log(&self, text: &str) -> Result<()> {
        let file = File::options().create(true).append(true).open(self.file("current.log"));
        file.and_then(|mut file| file.write_all(line(text).as_bytes())).context("cannot write a log")
    }

    /// Writes a file that containers see too.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn config(&self) -> PathBuf {
        self.file("kubelet.yaml")
    }

    /// Returns the flags of kwok with the address of the kubelet for the API server.
    pub fn flags(&self) -> [String; 4] {
        [
            "--node-ip=127.0.0.1".to_owned(),
            format!("--node-port={}", self.port),
            format!("--server-address=127.0.0.1:{}", self.port),
            format!("--config={}", self.config().display()),
        ]
    }

    fn settings(&self) -> String {
        let (log, previous) = (self.file("current.log"), self.file("previous.log"));
        let forward =
            |port: ForwardedPort| json!({"ports": [port.pod], "target": {"address": "127.0.0.1", "port": port.local}});
        let kinds = [
            ("ClusterLogs", "logs", json!([{"logsFile": log, "previousLogsFile": previous, "follow": true}])),
            ("ClusterAttach", "attaches", json!([{"logsFile": log}])),
            ("ClusterExec", "execs", json!([{"local": {"workDir": self.dir}}])),
            ("ClusterPortForward", "forwards", json!([forward(self.plain), forward(self.https)])),
        ];
        let documents = kinds.map(|(kind, field, rules)| {
            let mut document: Value =
                json!({"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "all"}, "spec": {}});
            document["spec"][field] = rules;
            document.to_string()
        });
        documents.join("\n---\n")
    }
}

/// Formats a log line as container runtimes do.
fn line(text: &str) -> String {
    format!("{} stdout F {text}\n", jiff::Timestamp::now())
}
