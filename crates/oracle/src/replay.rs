//! Replay of scripts against both servers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::diff::{AnswerDifference, Pairs, differences};
use super::exchange::{OracleServer, RawAnswer, Request};
use super::hooks::OracleWebhooks;
use super::step::{OracleScript, PROTOBUF, RequestBody, ScriptPhase, Step, object_path};
use super::values::ScriptMemory;
use super::{metadata, normal, settled};

/// Number of concurrent scripts; most of them wait for a watch to end.
const AT_ONCE: usize = 24;

/// Both servers, with shared state.
pub(super) struct Servers {
    pub(super) kube: OracleServer,
    pub(super) portolan: OracleServer,
    pub(super) hooks: OracleWebhooks,
}

/// Outcome of one request on both servers.
pub(super) struct StepOutcome {
    pub(super) script: String,
    pub(super) step: String,
    /// `METHOD path`, and a text body.
    pub(super) request: String,
    pub(super) differences: Vec<AnswerDifference>,
    pub(super) kube: Value,
    pub(super) portolan: Value,
}

/// Runs all scripts, one phase after the other.
pub(super) async fn all(servers: Arc<Servers>, scripts: Vec<OracleScript>) -> Result<Vec<StepOutcome>> {
    let mut outcomes = Vec::new();
    let mut scripts = scripts;
    for phase in [ScriptPhase::Fresh, ScriptPhase::Usual, ScriptPhase::Last] {
        let (now, later) = scripts.into_iter().partition(|script| script.phase == phase);
        scripts = later;
        outcomes.extend(side_by_side(&servers, now).await?);
    }
    Ok(outcomes)
}

async fn side_by_side(servers: &Arc<Servers>, scripts: Vec<OracleScript>) -> Result<Vec<StepOutcome>> {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for script in scripts {
        let (servers, room) = (servers.clone(), room.clone());
        tasks.spawn(async move {
            let _place = room.acquire().await;
            let name = script.name.clone();
            run(&servers, script).await.with_context(|| name)
        });
    }
    let mut outcomes: Vec<StepOutcome> = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        outcomes.extend(ended.context("a script panicked")??);
    }
    Ok(outcomes)
}

async fn run(servers: &Servers, script: OracleScript) -> Result<Vec<StepOutcome>> {
    let namespace = script.name.replace(['/', '.'], "-");
    prepare(servers, &namespace).await?;
    let mut kube = ScriptMemory::new(&namespace, &servers.hooks);
    let mut portolan = ScriptMemory::new(&namespace, &servers.hooks);
    let mut pairs = Pairs::default();
    let mut outcomes = Vec::with_capacity(script.steps.len());
    for step in &script.steps {
        tokio::time::sleep(step.pause).await;
        let protobuf = protobuf_body(&servers.kube, step, &kube).await;
        let requests = (filled(step, &kube, protobuf.as_ref()), filled(step, &portolan, protobuf.as_ref()));
        let (left, right) = tokio::join!(servers.kube.ask(&requests.0), servers.portolan.ask(&requests.1));
        remember(&mut kube, step, &requests.0, &left);
        remember(&mut portolan, step, &requests.1, &right);
        settled::wait(&servers.portolan, &requests.1, &right, &mut portolan).await?;
        let (left, right) = (normal::answer(&left), normal::answer(&right));
        outcomes.push(StepOutcome {
            script: script.name.clone(),
            step: step.name.clone(),
            request: request_line(&requests.1),
            differences: differences(&left, &right, &mut pairs),
            kube: left,
            portolan: right,
        });
    }
    Ok(outcomes)
}

/// Namespace as controllers leave it; kube-apiserver runs without them.
async fn prepare(servers: &Servers, namespace: &str) -> Result<()> {
    let (kube, portolan) = (servers.kube.client().await, servers.portolan.client().await);
    let body = Bytes::from(json!({"metadata": {"name": namespace}}).to_string());
    for client in [&kube, &portolan] {
        client.send(Method::POST, "/api/v1/namespaces", body.clone()).await?.success()?;
    }
    let base = format!("/api/v1/namespaces/{namespace}");
    for (resource, name) in [("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")] {
        let object = appear(&portolan, &format!("{base}/{resource}/{name}")).await?;
        let copy = json!({"metadata": {"name": name, "annotations": object["metadata"]["annotations"]}, "data": object["data"]});
        let body = Bytes::from(copy.to_string());
        kube.send(Method::POST, &format!("{base}/{resource}"), body).await?.success()?;
        // Objects that a server creates belong to no client.
        let unowned = Bytes::from(json!({"metadata": {"managedFields": [{}]}}).to_string());
        let merge = [("content-type", "application/merge-patch+json")];
        kube.send_with(Method::PATCH, &format!("{base}/{resource}/{name}"), &merge, unowned).await?.success()?;
    }
    Ok(())
}

async fn appear(client: &harness::client::HttpClient, path: &str) -> Result<Value> {
    for _ in 0..200 {
        let answer = client.send(Method::GET, path, Bytes::new()).await?;
        if answer.status.is_success() {
            return Ok(serde_json::from_slice(&answer.body)?);
        }
        ensure!(answer.status == 404, "{path}: {}", answer.status);
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    bail!("{path} does not appear")
}

/// Requests the bytes of a protobuf body from kube-apiserver.
async fn protobuf_body(kube: &OracleServer, step: &Step, memory: &ScriptMemory) -> Option<Bytes> {
    let RequestBody::Protobuf(object) = &step.body else { return None };
    let mut object = object.clone();
    memory.fill_tree(&mut object);
    // The name may exist already: the bytes of a new object are needed.
    let collection = collection(&memory.fill(&step.path));
    let request = Request {
        method: "POST".to_owned(),
        path: format!("{collection}?dryRun=All"),
        headers: vec![("content-type".into(), "application/json".into()), ("accept".into(), PROTOBUF.into())],
        body: object.to_string().into(),
        watch: false,
    };
    match kube.ask(&request).await {
        RawAnswer::Answer { body, .. } => Some(body),
        RawAnswer::Nothing(_) => None,
    }
}

fn collection(path: &str) -> String {
    let bare = path.split('?').next().unwrap_or(path);
    match object_path(bare) {
        Some(object) => object.rsplit_once('/').map_or(object.clone(), |(collection, _)| collection.to_owned()),
        None => bare.to_owned(),
    }
}

fn filled(step: &Step, memory: &ScriptMemory, protobuf: Option<&Bytes>) -> Request {
    Request {
        method: step.method.clone(),
        path: memory.fill(&step.path),
        headers: step.headers.iter().map(|(name, value)| (name.clone(), memory.fill(value))).collect(),
        body: body(step, memory, protobuf),
        watch: step.is_watch(),
    }
}

fn body(step: &Step, memory: &ScriptMemory, protobuf: Option<&Bytes>) -> Bytes {
    let tree = |value: &Value| {
        let mut value = value.clone();
        memory.fill_tree(&mut value);
        value
    };
    match &step.body {
        RequestBody::None => Bytes::new(),
        RequestBody::Bytes(bytes) => bytes.clone().into(),
        RequestBody::Text(text) => memory.fill(text).into(),
        RequestBody::Json(value) => tree(value).to_string().into(),
        RequestBody::Yaml(value) => serde_saphyr::to_string(&tree(value)).unwrap_or_default().into(),
        RequestBody::Protobuf(_) => protobuf.cloned().unwrap_or_default(),
        RequestBody::Stored(mutation) => {
            let path = object_path(&memory.fill(&step.path)).unwrap_or_default();
            let mut mutation = mutation.clone();
            mutation.values_mut().for_each(|value| memory.fill_tree(value));
            let stored = memory.stored(&path);
            mutation.apply(stored).unwrap_or_else(|_| stored.clone()).to_string().into()
        }
    }
}

/// Later requests change the object that was last written or read.
fn remember(memory: &mut ScriptMemory, step: &Step, request: &Request, raw: &RawAnswer) {
    let RawAnswer::Answer { status, body, headers, .. } = raw else { return };
    if let Some(name) = &step.keep {
        memory.keep(name, &metadata::tree(body).unwrap_or_default(), headers);
    }
    let Ok(answer) = serde_json::from_slice::<Value>(body) else { return };
    let whole =
        answer["metadata"]["uid"].is_string() && answer["kind"] != "Scale" && answer["kind"] != "PartialObjectMetadata";
    if !(200..300).contains(status) || step.is_dry() || !whole || request.method == "DELETE" {
        return;
    }
    let path = object_path(&request.path).or_else(|| {
        let name = answer["metadata"]["name"].as_str()?;
        Some(format!("{}/{name}", collection(&request.path)))
    });
    if let Some(path) = path {
        memory.store(&path, &answer);
    }
}

/// Formats the request for developers.
fn request_line(request: &Request) -> String {
    let body = std::str::from_utf8(&request.body).unwrap_or("(protobuf)");
    let body: String = body.chars().take(600).collect();
    let headers: Vec<String> = request.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("{} {} {} {body}", request.method, request.path, headers.join(", "))
}
