//! `cargo xtask record`: what an unmodified client asks, as a file of the corpus.
//!
//! A plain proxy on loopback stands between the client and a server. Values that the server gave (uids, revisions,
//! continue tokens, generated names) are written as places to be filled in, so that the requests make sense again.

mod log;
mod proxy;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::client::Client;
use crate::harness::kubeconfig::Kubeconfig;
use crate::harness::{tools::Tools, workdir::WorkDir};
use log::Log;

/// What `cargo xtask record` can be told.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The server that the client is to use.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Where the requests are written: `e2e/corpus/<group>/<name>.yaml`. The client has to work in the namespace
    /// `<group>-<name>`, which is that of the script when it is replayed: bodies in protobuf stay as they are. It is told
    /// through `SUITE_NAMESPACE`.
    #[arg(long)]
    out: PathBuf,
    /// The client. It finds the proxy through `KUBECONFIG`.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Runs the client; `false` when it failed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let work = WorkDir::new("record")?;
    let upstream = Kubeconfig::read(&Tools::build()?.kubectl(), &options.kubeconfig)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (log, ended) = runtime.block_on(async {
        let client = Client::connect(&upstream, 4).await?;
        let proxy = proxy::start(client).await?;
        let kubeconfig = kubeconfig(work.path(), proxy.address())?;
        let mut command = tokio_command(options, &kubeconfig)?;
        let ended = tokio::task::spawn_blocking(move || command.status()).await?.context("cannot run the client")?;
        anyhow::Ok((proxy.finish(), ended))
    })?;
    write(options, &log)?;
    println!("{} requests in {}", log.len(), options.out.display());
    Ok(ended.success())
}

fn tokio_command(options: &Options, kubeconfig: &Path) -> Result<Command> {
    let (program, args) = options.command.split_first().context("no client")?;
    let mut command = Command::new(program);
    command.args(args).env("KUBECONFIG", kubeconfig).env("SUITE_NAMESPACE", namespace(&options.out)?);
    Ok(command)
}

/// The proxy is plain HTTP and adds the credentials itself.
fn kubeconfig(dir: &Path, address: std::net::SocketAddr) -> Result<PathBuf> {
    let file = dir.join("recording.kubeconfig");
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "recording", "cluster": {"server": format!("http://{address}"), "insecure-skip-tls-verify": true}}],
        "users": [{"name": "recording", "user": {}}],
        "contexts": [{"name": "recording", "context": {"cluster": "recording", "user": "recording"}}],
        "current-context": "recording",
    });
    std::fs::write(&file, config.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn namespace(out: &Path) -> Result<String> {
    let name = out.file_stem().context("the output is no file")?.to_string_lossy();
    let group = out.parent().and_then(Path::file_name).context("the output is in no group")?.to_string_lossy();
    Ok(format!("{group}-{name}"))
}

fn write(options: &Options, log: &Log) -> Result<()> {
    ensure!(log.len() > 0, "the client asked for nothing");
    let base = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "recorded"}});
    let cases = json!({"settings": ["alone"], "steps": log.steps(&namespace(&options.out)?)});
    let text = format!("{}---\n{}", serde_saphyr::to_string(&base)?, serde_saphyr::to_string(&cases)?);
    std::fs::write(&options.out, text).with_context(|| format!("cannot write {}", options.out.display()))
}
