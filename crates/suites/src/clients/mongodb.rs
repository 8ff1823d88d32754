//! Published MongoDB operator of replica sets, with the roles and the ServiceAccount of its release: a database with
//! StatefulSets, Services, Secrets and a state that changes step by step. No container runs in its pods; [`Agents`]
//! reports and does what their agents would. Its own published end-to-end tests run beside the checks here.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::agents::Agents;
use super::harbour::{Harbour, OperatorCheck, PATIENCE};
use super::{ClientStage, mongodb_published};
use harness::go;
use harness::process::{self, Process};
use harness::report::CheckReport;

const NAMESPACE: &str = "mongodb";
const RELEASE: &str = "mongodb-kubernetes-operator";
/// Name of the operator, of its role and of its account.
const OPERATOR: &str = "mongodb-kubernetes-operator";

const REPLICA_SET: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: keeper}
stringData: {password: of-the-hold}
---
apiVersion: mongodbcommunity.mongodb.com/v1
kind: MongoDBCommunity
metadata: {name: hold}
spec:
  members: 3
  type: ReplicaSet
  version: 6.0.5
  security: {authentication: {modes: [SCRAM]}}
  users:
  - name: keeper
    db: admin
    passwordSecretRef: {name: keeper}
    roles: [{name: readWrite, db: cargo}]
    scramCredentialsSecretName: keeper
"#;

/// Object of a type that its definition does not have.
const WRONG: &str = r#"{apiVersion: mongodbcommunity.mongodb.com/v1, kind: MongoDBCommunity, metadata: {name: wrong},
    spec: {members: 3, type: Raft, version: 6.0.5, users: [], security: {authentication: {modes: [SCRAM]}}}}"#;

const CHECKS: [OperatorCheck; 5] = [
    ("a replica set gets StatefulSets, a Service and Secrets, owns them, and runs", makes),
    ("its pods run on the physical cluster", is_placed),
    ("a replica set that its schema refuses is not made", refuses),
    ("another version is rolled out, pod by pod", upgrades),
    ("what is deleted goes with all that it owned", deletes),
];

/// Runs all checks in order, and meanwhile its own tests.
pub(super) fn run(report: &mut CheckReport, stage: &ClientStage<'_>) {
    let mut harbour = None;
    let ready = report.check("mongodb-operator: its definition is established, and it starts", || {
        harbour = Some(launch(stage)?);
        Ok(())
    });
    let Some(harbour) = harbour.filter(|_| ready) else { return };
    let agents = Agents::start(stage.kubectl);
    mongodb_published::run(report, stage, &agents, |report| {
        for (name, check) in CHECKS {
            let complaint = || format!("{}\nagents: {:?}", harbour.logs(), agents.complaint());
            report.check(&format!("mongodb-operator: {name}"), || check(&harbour).with_context(complaint));
        }
    });
    drop(agents);
    report.check("mongodb-operator: it ends when it is told to, and its kind goes", || ends(stage, harbour));
}

fn launch(stage: &ClientStage<'_>) -> Result<Harbour> {
    let definitions = stage.clients.mongodb_operator("definitions");
    stage.kubectl.run_args(&["apply", "-f", go::text(&definitions)?])?;
    stage.kubectl.run("wait crd --all --for=condition=Established --timeout=30s")?;
    let chart = stage.clients.mongodb_operator("chart");
    // The operator runs here and not in a pod.
    helm(stage, &["install", RELEASE, go::text(&chart)?, "--create-namespace", "--set", "operator.replicas=0"])?;
    let roles = stage.clients.mongodb_operator("clusterwide").join("cluster_role.yaml");
    stage.kubectl.run_args(&["apply", "-f", go::text(&roles)?])?;
    let account = format!("--clusterrole={OPERATOR} --serviceaccount={NAMESPACE}:{OPERATOR}");
    stage.kubectl.run(&format!("create clusterrolebinding {OPERATOR} {account}"))?;
    let kubectl = stage.kubectl.in_namespace(NAMESPACE);
    Ok(Harbour { programs: vec![spawn(stage, &stage.clients.mongodb_operator("manager"))?], kubectl })
}

/// Starts the operator for all namespaces with what its Deployment gives it.
fn spawn(stage: &ClientStage<'_>, program: &Path) -> Result<Process> {
    let kubectl = stage.kubectl.in_namespace(NAMESPACE);
    let token = kubectl.run(&format!("create token {OPERATOR} --duration=1h"))?;
    let config = stage.kubectl.config().with_token(token.trim());
    let config = config.write(&stage.dir.join(format!("{OPERATOR}-account.kubeconfig")))?;
    let mut words = vec![format!("KUBECONFIG={}", config.display()), format!("HOME={}", stage.dir.display())];
    let deployment = kubectl.json(&format!("get deployment {OPERATOR}"))?;
    let variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().cloned();
    for variable in variables.context("the operator has no variables")? {
        let (name, value) = (variable["name"].as_str(), variable["value"].as_str());
        words.extend(name.zip(value).map(|(name, value)| format!("{name}={value}")));
    }
    words.push("WATCH_NAMESPACE=*".to_owned());
    words.push(program.display().to_string());
    // `env` becomes the operator.
    Process::spawn("mongodb-operator", Path::new("env"), words, stage.dir)
}

fn helm(stage: &ClientStage<'_>, args: &[&str]) -> Result<()> {
    let mut command = Command::new(stage.clients.helm());
    command.args(args).args(["--namespace", NAMESPACE]);
    command.env("KUBECONFIG", stage.kubectl.kubeconfig_file()).env("HOME", stage.dir);
    process::output(&mut command, PATIENCE).map(drop)
}

fn makes(harbour: &Harbour) -> Result<()> {
    harbour.kubectl.run_with("apply -f -", REPLICA_SET)?;
    let owner = "{.metadata.ownerReferences[0].kind} {.metadata.ownerReferences[0].name}";
    for object in ["statefulset/hold", "statefulset/hold-arb", "service/hold-svc", "secret/hold-config"] {
        harbour.is(object, owner, "MongoDBCommunity hold")?;
    }
    harbour.is("service/hold-svc", "{.spec.clusterIP}", "None")?;
    harbour.is("mongodbcommunity/hold", "{.status.phase} {.status.currentMongoDBMembers}", "Running 3")?;
    let connection = harbour.seen("secret/hold-admin-keeper", "{.data.connectionString\\.standard}")?;
    ensure!(!connection.is_empty(), "the Secret of the user says not how to connect");
    let table = harbour.kubectl.run("get mdbc hold")?;
    let words: Vec<&str> = table.split_whitespace().collect();
    ensure!(words == ["NAME", "PHASE", "VERSION", "hold", "Running", "6.0.5"], "{table}");
    Ok(())
}

fn is_placed(harbour: &Harbour) -> Result<()> {
    let where_to = "{.items[*].metadata.labels.portolan\\.dev/cluster}";
    let found =
        harbour.kubectl.run_args(&["get", "pods", "-l", "app=hold-svc", "-o", &format!("jsonpath={where_to}")])?;
    ensure!(found == "harbour harbour harbour", "{found:?}");
    let placed = "{.status.clusters[*].name} {.status.clusters[*].ready}";
    harbour.is("placement/statefulsets.apps-hold", placed, "harbour 3")
}

fn refuses(harbour: &Harbour) -> Result<()> {
    let said = harbour.kubectl.call("apply -f -", WRONG)?.to_string();
    ensure!(said.contains("spec.type: Unsupported value: \"Raft\": supported values: \"ReplicaSet\""), "{said}");
    Ok(())
}

fn upgrades(harbour: &Harbour) -> Result<()> {
    let pods = "get pods -l app=hold-svc";
    let before = harbour.kubectl.json(pods)?;
    let patch = r#"{"spec": {"version": "7.0.2"}}"#;
    harbour.kubectl.run_args(&["patch", "mongodbcommunity/hold", "--type=merge", "-p", patch])?;
    harbour.is("statefulset/hold", "{.spec.updateStrategy.type}", "OnDelete")?;
    harbour.is("mongodbcommunity/hold", "{.status.version} {.status.phase}", "7.0.2 Running")?;
    harbour.is("statefulset/hold", "{.spec.updateStrategy.type}", "RollingUpdate")?;
    let after = harbour.kubectl.json(pods)?;
    let uids = |list: &Value| -> Vec<Value> {
        list["items"].as_array().into_iter().flatten().map(|pod| pod["metadata"]["uid"].clone()).collect()
    };
    let (before, kept) = (uids(&before), uids(&after));
    ensure!(kept.len() == 3 && !kept.iter().any(|pod| before.contains(pod)), "{before:?} became {kept:?}");
    let images = "{.items[*].spec.containers[?(@.name==\"mongod\")].image}";
    let images =
        harbour.kubectl.run_args(&["get", "pods", "-l", "app=hold-svc", "-o", &format!("jsonpath={images}")])?;
    ensure!(images.matches(":7.0.2").count() == 3, "{images}");
    Ok(())
}

fn deletes(harbour: &Harbour) -> Result<()> {
    harbour.kubectl.within(PATIENCE).run("delete mongodbcommunity/hold --timeout=50s")?;
    harbour.gone("statefulsets")?;
    harbour.gone("pods")?;
    harbour.gone("service/hold-svc secret/hold-config secret/hold-admin-keeper").context("what it owned")
}

fn ends(stage: &ClientStage<'_>, harbour: Harbour) -> Result<()> {
    harbour.check_alive()?;
    harbour.stop()?;
    helm(stage, &["uninstall", RELEASE, "--wait"])?;
    let kubectl = stage.kubectl.within(PATIENCE * 2);
    kubectl.run(&format!("delete clusterrole/{OPERATOR} clusterrolebinding/{OPERATOR}"))?;
    kubectl.run("delete crd mongodbcommunity.mongodbcommunity.mongodb.com --timeout=60s")?;
    kubectl.run(&format!("delete namespace {NAMESPACE} --timeout=110s")).map(drop)
}
