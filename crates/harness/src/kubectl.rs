//! Unmodified kubectl, one process per call, bounded in time and shielded from the user's settings.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::kubeconfig::UserKubeconfig;
use super::process::{self, Process};

/// kubectl with one kubeconfig. Its home, with the discovery cache, is a folder of this run.
#[derive(Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    config: UserKubeconfig,
    home: PathBuf,
    namespace: Option<String>,
    limit: Duration,
}

/// Result of a kubectl call.
#[derive(Debug)]
pub struct KubectlOutput {
    /// Command line, for error messages.
    pub command: String,
    /// `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Kubectl {
    /// Writes the kubeconfig as `<dir>/<name>.kubeconfig`; `<dir>/<name>.home` becomes the home.
    pub fn new(program: &Path, config: &UserKubeconfig, dir: &Path, name: &str) -> Result<Self> {
        let home = dir.join(format!("{name}.home"));
        fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
        Ok(Self {
            program: program.to_owned(),
            kubeconfig: config.write(&dir.join(format!("{name}.kubeconfig")))?,
            config: config.clone(),
            home,
            namespace: None,
            limit: Duration::from_secs(60),
        })
    }

    /// Returns the same kubectl with `--namespace` on every call.
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self.clone() }
    }

    /// Returns kubectl for another user or another URL.
    pub fn with_config(&self, config: &UserKubeconfig, name: &str) -> Result<Self> {
        let dir = self.home.parent().context("the home folder has no parent")?;
        let other = Self::new(&self.program, config, dir, name)?;
        Ok(Self { namespace: self.namespace.clone(), limit: self.limit, ..other })
    }

    /// Returns the same kubectl with another time limit per call.
    pub fn within(&self, limit: Duration) -> Self {
        Self { limit, ..self.clone() }
    }

    /// Returns the kubeconfig.
    pub fn config(&self) -> &UserKubeconfig {
        &self.config
    }

    /// Returns the file of the kubeconfig.
    pub fn kubeconfig_file(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs `kubectl <args>` with `stdin`, and returns every outcome. `args` are split at white space.
    pub fn call(&self, args: &str, stdin: &str) -> Result<KubectlOutput> {
        self.call_with(&args.split_whitespace().collect::<Vec<_>>(), stdin, &[])
    }

    /// Runs kubectl with exactly these arguments and further environment variables.
    pub fn call_with(&self, args: &[&str], stdin: &str, env: &[(&str, &str)]) -> Result<KubectlOutput> {
        let mut all: Vec<OsString> = vec!["--kubeconfig".into(), self.kubeconfig.clone().into()];
        if let Some(namespace) = &self.namespace {
            all.extend(["--namespace".into(), namespace.into()]);
        }
        all.extend(args.iter().map(OsString::from));
        let mut command = Command::new(&self.program);
        command
            .args(&all)
            .env_remove("KUBECONFIG")
            .env("HOME", &self.home)
            .env("KUBECACHEDIR", self.home.join("cache"))
            .envs(env.iter().copied());
        let shown = format!("kubectl {}", args.join(" "));
        let ended = process::run(&mut command, stdin, self.limit).with_context(|| shown.clone())?;
        Ok(KubectlOutput { command: shown, code: ended.status.code(), stdout: ended.stdout, stderr: ended.stderr })
    }

    /// Starts `kubectl <args>` in the background with its output in the log `name`.
    pub fn start(&self, name: &str, args: &str) -> Result<Process> {
        let mut all = vec![format!("--kubeconfig={}", self.kubeconfig.display())];
        all.push(format!("--cache-dir={}", self.home.join("cache").display()));
        all.extend(self.namespace.iter().map(|namespace| format!("--namespace={namespace}")));
        all.extend(args.split_whitespace().map(str::to_owned));
        Process::spawn(name, &self.program, all, &self.home)
    }

    /// Runs kubectl, requires exit code 0, and returns stdout.
    pub fn run(&self, args: &str) -> Result<String> {
        self.run_with(args, "")
    }

    /// Runs as [`Kubectl::run`], with stdin.
    pub fn run_with(&self, args: &str, stdin: &str) -> Result<String> {
        let output = self.call(args, stdin)?;
        ensure!(output.code == Some(0), "{output}");
        Ok(output.stdout)
    }

    /// Runs kubectl with exactly these arguments, requires exit code 0, and returns stdout.
    pub fn run_args(&self, args: &[&str]) -> Result<String> {
        let output = self.call_with(args, "", &[])?;
        ensure!(output.code == Some(0), "{output}");
        Ok(output.stdout)
    }

    /// Runs `kubectl <args> --output=json` and parses its output.
    pub fn json(&self, args: &str) -> Result<Value> {
        let text = self.run(&format!("{args} --output=json"))?;
        serde_json::from_str(&text).with_context(|| format!("kubectl {args} printed no JSON"))
    }
}

impl std::fmt::Display for KubectlOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let code = self.code.map_or("a signal".to_owned(), |code| format!("exit code {code}"));
        let cut = |text: &str| text.trim().chars().take(1200).collect::<String>();
        write!(f, "{}: {code}", self.command)?;
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.trim().is_empty() {
                write!(f, "\n{name}: {}", cut(text))?;
            }
        }
        Ok(())
    }
}
