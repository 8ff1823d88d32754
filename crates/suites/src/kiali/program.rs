//! The program Kiali with its files, and a double of the Prometheus that it asks for metrics.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use harness::gateway::Gateway;
use harness::kubeconfig::UserKubeconfig;
use harness::poll;
use harness::ports::free_port;
use harness::process::Process;

/// Time in which Kiali holds the objects of all clusters. It gives up by itself after 30 s.
const START_LIMIT: Duration = Duration::from_secs(90);
/// Folder of the kubeconfigs, relative to the folder in which Kiali runs.
const SECRETS: &str = "kiali-remote-cluster-secrets";

/// Running Kiali. Everybody may ask it, with the rights of its account.
pub(super) struct KialiProgram {
    process: Process,
    api: Gateway,
}

impl KialiProgram {
    /// Starts it in `<dir>/kiali`, with the first cluster as its home, and waits until it answers.
    pub(super) fn start(program: &Path, clusters: &[(&str, UserKubeconfig)], dir: &Path) -> Result<Self> {
        let (dir, port) = (dir.join("kiali"), free_port()?);
        fs::create_dir_all(dir.join("console")).context("cannot make a folder for pages")?;
        let (home, others) = clusters.split_first().context("there is no home cluster")?;
        home.1.write(&dir.join("home.kubeconfig"))?;
        for (name, kubeconfig) in others {
            let secret = dir.join(SECRETS).join(format!("kiali-{name}"));
            fs::create_dir_all(&secret).context("cannot make a folder for a Secret")?;
            kubeconfig.write(&secret.join(name))?;
        }
        let config = config(&dir, home.0, port, prometheus()?);
        fs::write(dir.join("config.yaml"), config.to_string()).context("cannot write the configuration")?;
        let folder = dir.to_str().context("a path is not UTF-8")?;
        let program = program.to_str().context("a path is not UTF-8")?;
        let args = ["-C", folder, "--", program, "-config", "config.yaml"];
        let process = Process::spawn("kiali", Path::new("env"), args, &dir.join("logs"))?;
        let kiali = Self { process, api: Gateway::new(format!("127.0.0.1:{port}")) };
        poll::until("Kiali answers", START_LIMIT, || {
            kiali.process.check_alive()?;
            kiali.api.ask("GET", "/healthz", "")
        })
        .with_context(|| kiali.process.log_tail())?;
        Ok(kiali)
    }

    /// Gets a path of its API.
    pub(super) fn get(&self, path: &str) -> Result<Value> {
        let said = self.api.ask("GET", path, "").with_context(|| self.process.log_tail())?;
        serde_json::from_str(&said).with_context(|| format!("{path} was answered {said:?}"))
    }

    /// It runs, reports no error, and nothing was refused that its caches watch.
    pub(super) fn is_whole(&self) -> Result<()> {
        self.process.check_alive()?;
        let log = self.process.log()?;
        let faults = [" ERR ", "is forbidden", "Failed to watch"];
        let fault = log.lines().find(|line| faults.iter().any(|fault| line.contains(fault)));
        ensure!(fault.is_none(), "{}", fault.unwrap_or_default());
        Ok(())
    }
}

/// Configuration of Kiali, as JSON, which is YAML.
fn config(dir: &Path, home: &str, port: u16, prometheus: u16) -> Value {
    json!({
        "auth": {"strategy": "anonymous"},
        "deployment": {"remote_secret_path": dir.join("home.kubeconfig"), "view_only_mode": true,
            "accessible_namespaces": ["**"], "cluster_wide_access": true, "instance_name": "kiali"},
        "kubernetes_config": {"cluster_name": home},
        "external_services": {
            // There is no mesh, and none of its components.
            "istio": {"istio_api_enabled": false, "component_status": {"enabled": false}},
            "prometheus": {"url": format!("http://127.0.0.1:{prometheus}")},
            "grafana": {"enabled": false},
            "tracing": {"enabled": false},
            "custom_dashboards": {"enabled": false},
        },
        "server": {
            "address": "127.0.0.1",
            "port": port,
            "gzip_enabled": false,
            "static_content_root_directory": dir.join("console"),
            "observability": {"metrics": {"enabled": false}},
        },
    })
}

/// Serves a double of Prometheus until this process ends, and returns its port. It has no series: each query is
/// answered with nothing.
fn prometheus() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port for metrics")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(answer(stream))));
    Ok(port)
}

fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(reader.read_until(b'\n', &mut head)? > 0, "the request ends early");
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    // A query is in the body. Unread bytes would reset the connection.
    io::copy(&mut reader.take(length.unwrap_or_default()), &mut io::sink())?;
    let first = head.lines().next().unwrap_or_default();
    let kind = if first.contains("/query_range") { "matrix" } else { "vector" };
    let data = match first {
        query if query.contains("/query") => json!({"resultType": kind, "result": []}),
        state if state.contains("/status/") => {
            json!({"yaml": "global: {scrape_interval: 15s}", "storageRetention": "1d"})
        }
        _ => json!([]),
    };
    let body = json!({"status": "success", "data": data}).to_string();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).context("the client is gone")
}
