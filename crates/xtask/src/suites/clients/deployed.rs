//! Programs that Deployments ask for, run here: no container runs where pods are simulated.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::harness::kubectl::Kubectl;
use crate::harness::ports::free_port;
use crate::harness::process::Process;

/// The operators of one logical cluster, each with the arguments, the variables, the service account and the certificate of its
/// Deployment. Only where they listen is ours to say.
pub(super) struct Deployed {
    kubectl: Kubectl,
    program: PathBuf,
    dir: PathBuf,
    /// By uid and generation of their Deployments.
    running: BTreeMap<String, Process>,
    /// What was wrong with those that ended by themselves.
    ended: Vec<String>,
    /// Why the last one could not be started.
    refused: Option<String>,
}

impl Deployed {
    /// `program` runs for Deployments that are called as it is; `dir` is for kubeconfigs, certificates and logs.
    pub(super) fn new(kubectl: &Kubectl, program: &Path, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self {
            kubectl: kubectl.clone(),
            program: program.to_owned(),
            dir: dir.to_owned(),
            running: BTreeMap::new(),
            ended: Vec::new(),
            refused: None,
        })
    }

    /// Starts and ends programs as the Deployments are now. A Deployment whose namespace goes meanwhile is no error.
    pub(super) fn follow(&mut self) {
        self.note_ends();
        let listed = self.kubectl.json("get deployments -A -l app.kubernetes.io/name=prometheus-operator");
        let Ok(listed) = listed.map_err(|error| self.refused = Some(format!("{error:#}"))) else { return };
        let items = listed["items"].as_array().into_iter().flatten();
        let wanted: BTreeMap<String, &Value> =
            items.filter(|item| is_wanted(item)).map(|item| (key(item), item)).collect();
        let gone: Vec<String> = self.running.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        // One that does not end in time is killed; what it was there for is over.
        gone.iter().filter_map(|key| self.running.remove(key)).for_each(|process| drop(process.terminate()));
        for (key, deployment) in wanted {
            if self.running.contains_key(&key) {
                continue;
            }
            match self.start(deployment) {
                Ok(process) => drop(self.running.insert(key, process)),
                Err(error) => self.refused = Some(format!("{error:#}")),
            }
        }
    }

    /// The ends of those that ended by themselves, and why the last one was not started.
    pub(super) fn complaints(&self) -> Vec<&str> {
        self.ended.iter().chain(&self.refused).map(String::as_str).collect()
    }

    /// Whether no program has ended by itself.
    pub(super) fn lived(&self) -> bool {
        self.ended.is_empty()
    }

    fn note_ends(&mut self) {
        let ended = &mut self.ended;
        self.running.retain(|_, process| match process.check_alive() {
            Ok(()) => true,
            Err(error) => {
                ended.push(format!("{error:#}"));
                false
            }
        });
    }

    fn start(&self, deployment: &Value) -> Result<Process> {
        let namespace = deployment["metadata"]["namespace"].as_str().context("a Deployment without a namespace")?;
        let kubectl = self.kubectl.in_namespace(namespace);
        let pod = &deployment["spec"]["template"]["spec"];
        let account = pod["serviceAccountName"].as_str().unwrap_or("default");
        let token = kubectl.run(&format!("create token {account} --duration=1h"))?;
        let config = self.kubectl.config().with_token(token.trim());
        let config = config.write(&self.dir.join(format!("{namespace}.kubeconfig")))?;
        let container = &pod["containers"][0];
        let mut words = vec![format!("KUBECONFIG={}", config.display()), format!("HOME={}", self.dir.display())];
        for variable in container["env"].as_array().into_iter().flatten() {
            let text = |field: &str| variable[field].as_str().unwrap_or_default();
            words.push(format!("{}={}", text("name"), text("value")));
        }
        words.push(self.program.display().to_string());
        let own = container["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
        words.extend(own.map(str::to_owned));
        words.push(format!("--web.listen-address=127.0.0.1:{}", free_port()?));
        words.extend(self.certificate(&kubectl, namespace, pod)?);
        // `env` becomes the operator.
        Process::spawn(&format!("operator-{namespace}"), Path::new("env"), words, &self.dir)
    }

    /// Writes what the pod would have mounted, and says where.
    fn certificate(&self, kubectl: &Kubectl, namespace: &str, pod: &Value) -> Result<Vec<String>> {
        let mut volumes = pod["volumes"].as_array().into_iter().flatten();
        let Some(secret) = volumes.find_map(|volume| volume["secret"]["secretName"].as_str()) else {
            return Ok(Vec::new());
        };
        let secret = kubectl.json(&format!("get secret {secret}"))?;
        let files = [("--web.cert-file", "tls.crt"), ("--web.key-file", "tls.key")];
        let write = |(flag, name): (&str, &str)| -> Result<String> {
            let file = self.dir.join(format!("{namespace}-{name}"));
            let text = secret["data"][name].as_str().with_context(|| format!("no {name}"))?;
            fs::write(&file, STANDARD.decode(text)?).with_context(|| format!("cannot write {}", file.display()))?;
            Ok(format!("{flag}={}", file.display()))
        };
        files.into_iter().map(write).collect()
    }
}

fn is_wanted(deployment: &Value) -> bool {
    deployment["metadata"]["deletionTimestamp"].is_null() && deployment["spec"]["replicas"] != 0
}

/// Another one when its arguments may be others.
fn key(deployment: &Value) -> String {
    format!("{}.{}", deployment["metadata"]["uid"], deployment["metadata"]["generation"])
}
