//! What kwok's kubelet answers in place of containers: logs out of files, commands that run on this machine, and ports that
//! lead to this machine.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::ports::free_port;

/// A port of every pod, and where it leads.
#[derive(Clone, Copy)]
pub(crate) struct Forwarded {
    /// The port of the pod.
    pub(crate) pod: u16,
    /// A port of this machine, on which a suite may listen.
    pub(crate) local: u16,
}

/// The kubelet of all nodes of a physical cluster.
pub(crate) struct FakeKubelet {
    port: u16,
    dir: PathBuf,
    /// A port for anything.
    pub(crate) plain: Forwarded,
    /// A port for HTTPS.
    pub(crate) https: Forwarded,
}

impl FakeKubelet {
    /// With files under `dir`.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        let kubelet = Self {
            port: free_port()?,
            dir: dir.join("containers"),
            plain: Forwarded { pod: 8080, local: free_port()? },
            https: Forwarded { pod: 8443, local: free_port()? },
        };
        fs::create_dir_all(&kubelet.dir).with_context(|| format!("cannot make {}", kubelet.dir.display()))?;
        kubelet.log("started")?;
        fs::write(kubelet.file("previous.log"), line("ended")).context("cannot write a log")?;
        fs::write(kubelet.config(), kubelet.settings()).context("cannot write the settings of kwok's kubelet")?;
        Ok(kubelet)
    }

    /// Lets every container write a line to its standard output.
    pub(crate) fn log(&self, text: &str) -> Result<()> {
        let file = File::options().create(true).append(true).open(self.file("current.log"));
        file.and_then(|mut file| file.write_all(line(text).as_bytes())).context("cannot write a log")
    }

    /// A file that containers see too.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn config(&self) -> PathBuf {
        self.file("kubelet.yaml")
    }

    /// Where the API server finds it, as flags of kwok.
    pub(crate) fn flags(&self) -> [String; 4] {
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
            |port: Forwarded| json!({"ports": [port.pod], "target": {"address": "127.0.0.1", "port": port.local}});
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

/// A line as container runtimes write them.
fn line(text: &str) -> String {
    format!("{} stdout F {text}\n", jiff::Timestamp::now())
}
