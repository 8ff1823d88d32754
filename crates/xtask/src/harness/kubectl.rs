//! Unmodified kubectl, one process per call, bounded in time and shielded from the settings of whoever runs it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::kubeconfig::Kubeconfig;
use super::process::{self, Process};

/// kubectl with one kubeconfig. Its home, and so its discovery cache, is a folder of this run.
#[derive(Clone)]
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    config: Kubeconfig,
    home: PathBuf,
    namespace: Option<String>,
    limit: Duration,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) command: String,
    /// `None` after a signal.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Kubectl {
    /// Writes the kubeconfig as `<dir>/<name>.kubeconfig`; `<dir>/<name>.home` becomes the home.
    pub(crate) fn new(program: &Path, config: &Kubeconfig, dir: &Path, name: &str) -> Result<Self> {
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

    /// The same kubectl with `--namespace` on every call.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self.clone() }
    }

    /// The same kubectl as another user or at another URL.
    pub(crate) fn with_config(&self, config: &Kubeconfig, name: &str) -> Result<Self> {
        let dir = self.home.parent().context("the home folder has no parent")?;
        let other = Self::new(&self.program, config, dir, name)?;
        Ok(Self { namespace: self.namespace.clone(), limit: self.limit, ..other })
    }

    /// The same kubectl, but a call may take this long.
    pub(crate) fn within(&self, limit: Duration) -> Self {
        Self { limit, ..self.clone() }
    }

    pub(crate) fn config(&self) -> &Kubeconfig {
        &self.config
    }

    pub(crate) fn kubeconfig_file(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs `kubectl <args>` with `stdin`, whatever the outcome. `args` are split at white space.
    pub(crate) fn call(&self, args: &str, stdin: &str) -> Result<Output> {
        self.call_with(&args.split_whitespace().collect::<Vec<_>>(), stdin, &[])
    }

    /// Runs kubectl with these very arguments and further environment variables.
    pub(crate) fn call_with(&self, args: &[&str], stdin: &str, env: &[(&str, &str)]) -> Result<Output> {
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
        Ok(Output { command: shown, code: ended.status.code(), stdout: ended.stdout, stderr: ended.stderr })
    }

    /// Starts `kubectl <args>` and lets it run; what it says is in its log, which is named `name`.
    pub(crate) fn start(&self, name: &str, args: &str) -> Result<Process> {
        let mut all = vec![format!("--kubeconfig={}", self.kubeconfig.display())];
        all.push(format!("--cache-dir={}", self.home.join("cache").display()));
        all.extend(self.namespace.iter().map(|namespace| format!("--namespace={namespace}")));
        all.extend(args.split_whitespace().map(str::to_owned));
        Process::spawn(name, &self.program, all, &self.home)
    }

    /// Runs kubectl and wants exit code 0; gives stdout.
    pub(crate) fn run(&self, args: &str) -> Result<String> {
        self.run_with(args, "")
    }

    /// As [`Kubectl::run`], with stdin.
    pub(crate) fn run_with(&self, args: &str, stdin: &str) -> Result<String> {
        let output = self.call(args, stdin)?;
        ensure!(output.code == Some(0), "{output}");
        Ok(output.stdout)
    }

    /// Runs kubectl with these very arguments and wants exit code 0; gives stdout.
    pub(crate) fn run_args(&self, args: &[&str]) -> Result<String> {
        let output = self.call_with(args, "", &[])?;
        ensure!(output.code == Some(0), "{output}");
        Ok(output.stdout)
    }

    /// Runs `kubectl <args> --output=json` and parses what it prints.
    pub(crate) fn json(&self, args: &str) -> Result<Value> {
        let text = self.run(&format!("{args} --output=json"))?;
        serde_json::from_str(&text).with_context(|| format!("kubectl {args} printed no JSON"))
    }
}

impl std::fmt::Display for Output {
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
