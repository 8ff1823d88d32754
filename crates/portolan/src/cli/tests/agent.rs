//! Test of a physical cluster behind an agent: join, workloads, pod streams, a switch of the connection, a reconnect,
//! unjoin.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser as _;
use http::StatusCode;
use portolan_simulator::SimulationConfig;
use portolan_syncer::{Addresses, Connector as _, DirectConnector};
use portolan_tunnel::{
    agent::{Agent, AgentConfig, CredentialFile},
    session::Keepalive,
};
use portolan_types::Seams;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::{streams::*, *};
use crate::cli::{agent::member_services, join::ClusterCommandArgs, plugin::OutputFormat};

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/web";

#[derive(clap::Parser)]
struct ClusterCli {
    #[command(flatten)]
    args: ClusterCommandArgs,
}

/// Runs `portolan cluster …` with the administrator's kubeconfig, and returns its steps.
pub(super) async fn cluster_command(folder: &Path, args: &[&str]) -> anyhow::Result<Vec<String>> {
    let mut steps = Vec::new();
    cluster_answer(folder, args, &mut steps).await.map(|_| steps)
}

/// Runs `portolan cluster … -o json`, and returns the printed object.
async fn cluster_answer(folder: &Path, args: &[&str], steps: &mut Vec<String>) -> anyhow::Result<Value> {
    let upstream = folder.join("data/admin.kubeconfig");
    let flags = ["cluster", "--upstream", upstream.to_str().unwrap()];
    let command = ClusterCli::try_parse_from(flags.iter().chain(args).copied()).unwrap().args;
    let mut printed = String::new();
    let answer = command.execute(&mut |step| steps.push(step.to_owned())).await?;
    answer.print(Some(OutputFormat::Json), |text| {
        printed.push_str(text);
        Ok(())
    })?;
    Ok(serde_json::from_str(&printed)?)
}

/// Agent beside the physical cluster of a kubeconfig.
pub(super) struct RunningAgent {
    stop: CancellationToken,
}

impl RunningAgent {
    pub(super) async fn start(kubeconfig: &str, server: SocketAddr, folder: PathBuf) -> Self {
        let kubeconfig = kube::config::Kubeconfig::from_yaml(kubeconfig).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        let agent = Agent::new(AgentConfig {
            server: format!("https://{server}").parse().unwrap(),
            token_file: folder.join("token"),
            credentials: std::sync::Arc::new(CredentialFile::new(folder.join("credential.json"))),
            member: member_services(&config).unwrap(),
            keepalive: Keepalive::default(),
            version: "test".into(),
            seams: Seams::system(),
        });
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        tokio::spawn(async move { agent.run(stopping).await });
        Self { stop }
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Waits for the bootstrap token that a join has written into the physical cluster.
pub(super) async fn token_in(kubeconfig: &str) -> String {
    let client =
        DirectConnector::from_kubeconfig(kubeconfig, Addresses { allow_private: true, allow_loopback: true }).unwrap();
    let client = client.connect().await.unwrap();
    let path = "/api/v1/namespaces/portolan/secrets/agent-token";
    let reading = async {
        loop {
            let request = Request::get(path).body(Vec::new()).unwrap();
            if let Ok(secret) = client.request::<Value>(request).await {
                let encoded = secret["data"]["token"].as_str().unwrap().to_owned();
                return String::from_utf8(base64::Engine::decode(&base64::prelude::BASE64_STANDARD, encoded).unwrap());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("the join writes a token").unwrap()
}

/// Applies a merge patch in root.
async fn change(plane: &ControlPlane, path: &str, patch: Value) -> Value {
    let user = User { name: "admin".into(), groups: vec![portolan_strategy::rbac::MASTERS.into()], ..User::default() };
    let request = Request::patch(format!("/clusters/root{path}"));
    let request = request.header(CONTENT_TYPE, "application/merge-patch+json");
    let request = request.body(Full::new(Bytes::from(patch.to_string()))).unwrap();
    let answer = plane.api().service_as(user).oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

async fn scale(plane: &ControlPlane, root: &WorkspaceClient, replicas: u32) {
    change(plane, DEPLOYMENT, json!({"spec": {"replicas": replicas}})).await;
    let is_scaled = |web: &Value| web["status"]["readyReplicas"] == replicas && web["status"]["replicas"] == replicas;
    until(root, DEPLOYMENT, is_scaled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_physical_cluster_behind_an_agent_is_used_as_any_other() {
    let stop = CancellationToken::new();
    let config = SimulationConfig { streams: std::sync::Arc::new(Echo), ..SimulationConfig::named("east") };
    let (_east, kubeconfig) = physical(config, &stop).await;
    let (plane, folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    let member = folder.path().join("member.kubeconfig");
    std::fs::write(&member, &kubeconfig).unwrap();
    let (member, server) = (member.to_str().unwrap(), format!("https://{}", plane.address()));
    let refused = cluster_command(folder.path(), &["join", "east", "--kubeconfig", member, "--agent"]).await;
    assert!(format!("{:#}", refused.unwrap_err()).contains("leads the agent to its own machine"));

    let join = ["join", "east", "--kubeconfig", member, "--agent", "--agent-server", &server];
    let starting = async {
        std::fs::write(folder.path().join("token"), token_in(&kubeconfig).await).unwrap();
        RunningAgent::start(&kubeconfig, plane.address(), folder.path().to_owned()).await
    };
    let (joined, agent) = tokio::join!(cluster_command(folder.path(), &join), starting);
    let steps = joined.unwrap();
    assert_eq!(steps.last().unwrap(), "✓ east is ready", "{steps:?}");
    until(&root, EAST, |east| east["metadata"]["annotations"]["portolan.dev/agent-version"] == "test").await;
    let checked = cluster_answer(folder.path(), &["check", "east"], &mut Vec::new()).await.unwrap();
    assert_eq!((&checked["kind"], &checked["metadata"]["name"]), (&json!("PhysicalCluster"), &json!("east")));

    root.apply(&deployment("web").to_string()).await.unwrap();
    until(&root, DEPLOYMENT, |web| web["status"]["readyReplicas"] == 1).await;
    until(&root, "/api/v1/namespaces/default/pods", |pods| pods["items"][0]["status"]["phase"] == "Running").await;
    let pods = root.get("/api/v1/namespaces/default/pods").await.unwrap();
    let pod = format!("{PODS}/{}", pods["items"][0]["metadata"]["name"].as_str().unwrap());
    let mut answer = enter(folder.path(), &pod).await;
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut stream = hyper_util::rt::TokioIo::new(hyper::upgrade::on(&mut answer).await.unwrap());
    stream.write_all(b"hello").await.unwrap();
    let mut echoed = [0; 5];
    stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"hello");

    // Cut off, workloads run on; the agent comes back with its certificate.
    drop(agent);
    let ended = tokio::time::timeout(PATIENCE, stream.read(&mut echoed)).await.expect("streams end with the agent");
    assert!(ended.is_err() || ended.is_ok_and(|bytes| bytes == 0));
    std::fs::remove_file(folder.path().join("token")).unwrap();
    let _agent = RunningAgent::start(&kubeconfig, plane.address(), folder.path().to_owned()).await;
    scale(&plane, &root, 3).await;

    // The connection switches at run time, and back.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "east"},
        "stringData": {"kubeconfig": kubeconfig}});
    root.apply(&secret.to_string()).await.unwrap();
    let reference =
        json!({"direct": {"kubeconfigSecretRef": {"namespace": "default", "name": "east", "key": "kubeconfig"}}});
    for (connection, replicas) in [(reference, 2), (json!({"tunnel": {}}), 1)] {
        let mut whole = json!({"direct": null, "tunnel": null});
        connection.as_object().unwrap().iter().for_each(|(kind, value)| whole[kind] = value.clone());
        let patched = change(&plane, EAST, json!({"spec": {"connection": whole}})).await;
        assert_eq!(patched["spec"]["connection"], connection);
        scale(&plane, &root, replicas).await;
    }

    let (_west, kubeconfig_west) = physical(SimulationConfig::named("west"), &stop).await;
    let west = folder.path().join("west.kubeconfig");
    std::fs::write(&west, kubeconfig_west).unwrap();
    let unjoin_west = ["unjoin", "east", "--kubeconfig", west.to_str().unwrap()];
    let refused = cluster_command(folder.path(), &unjoin_west).await.unwrap_err().to_string();
    assert!(refused.starts_with("east is another physical cluster than that at https://"), "{refused}");
    assert!(root.get(EAST).await.unwrap()["metadata"]["deletionTimestamp"].is_null(), "it is not drained");

    root.delete(DEPLOYMENT).await.unwrap();
    let mut steps = Vec::new();
    let unjoin = ["unjoin", "east", "--kubeconfig", member];
    let left = cluster_answer(folder.path(), &unjoin, &mut steps).await.unwrap();
    assert_eq!((&left["kind"], &left["metadata"]["name"]), (&json!("PhysicalCluster"), &json!("east")));
    let done = steps.iter().filter(|step| step.starts_with('✓')).count();
    assert_eq!(done, 3, "as many as the bar of an unjoin has: {steps:?}");
    until(&root, "/apis/portolan.dev/v1alpha1/physicalclusters", is_empty).await;
    let again = cluster_command(folder.path(), &["unjoin", "east", "--kubeconfig", member]).await.unwrap();
    assert_eq!(again[0], "✓ east is not registered");

    let toy = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "metadata": {"name": "east"},
        "spec": {"connection": {"simulated": {}}}});
    root.apply(&toy.to_string()).await.unwrap();
    let print = ["join", "east", "--print-command", "--agent-server", &server];
    for join in [&print[..], &["join", "east", "--kubeconfig", member], &join] {
        let refused = cluster_command(folder.path(), join).await.unwrap_err().to_string();
        assert!(refused.contains("is registered with the connection simulated"), "{refused}");
        assert!(root.get(EAST).await.unwrap()["spec"]["connection"]["simulated"].is_object());
    }
    plane.stop().await;
    stop.cancel();
}
