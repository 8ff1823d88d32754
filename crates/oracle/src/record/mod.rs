//! `cargo xtask record`: records the requests of an unmodified client as a file of the corpus.
//!
//! A plain proxy on loopback sits between the client and a server. Values from the server (uids, revisions, continue
//! tokens, generated names) become placeholders, so that the requests can be replayed.

mod log;
mod proxy;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use harness::client::HttpClient;
use harness::kubeconfig::UserKubeconfig;
use harness::{tools::Tools, workdir::WorkDir};
use log::Log;

/// Options of `cargo xtask record`.
#[derive(clap::Args)]
pub struct Options {
    /// Server for the client.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// File for the requests: `e2e/corpus/<group>/<name>.yaml`. The client must work in the namespace `<group>-<name>`,
    /// which the replayed script also uses, since protobuf bodies stay unchanged. `SUITE_NAMESPACE` names it.
    #[arg(long)]
    out: PathBuf,
    /// Command of the client. It finds the proxy through `KUBECONFIG`.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Runs the client; `false` if it failed.
pub fn run(options: &Options) -> Result<bool> {
    let work = WorkDir::new("record")?;
    let upstream = UserKubeconfig::read(&Tools::build()?.kubectl(), &options.kubeconfig)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (log, ended) = runtime.block_on(async {
        let client = HttpClient::connect(&upstream, 4).await?;
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
