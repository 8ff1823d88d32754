//! Programs that Deployments ask for, run here: no container runs where pods are simulated.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use harness::kubectl::Kubectl;
use harness::poll;
use harness::ports::free_port;
use harness::process::Process;
use harness::webhook::{self, WebhookReply};

/// The label of the Deployments of operators.
const OF_OPERATORS: (&str, &str) = ("app.kubernetes.io/name", "prometheus-operator");
/// The webhook that holds their writes up.
const HOOK: &str = "operators-run-first";
/// Line that an operator logs once per controller, and the number of its controllers.
const READY: (&str, usize) = ("successfully synced all caches", 4);
/// So long a write waits for its operator at most: a webhook has 30 s.
const STARTS: Duration = Duration::from_secs(20);

/// Operators of one logical cluster, each run with the arguments, the variables, the ServiceAccount and the certificate
/// of its Deployment. Only their listen addresses differ.
///
/// A simulated pod is ready immediately, and must not be ready before its program: an operator runs before the write of
/// its Deployment is answered, by means of a webhook that waits for it. Dropping this ends them.
pub(super) struct Deployed(Arc<Operators>);

struct Operators {
    kubectl: Kubectl,
    program: PathBuf,
    /// Folder for kubeconfigs, certificates and logs.
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Operators by namespace.
    running: BTreeMap<String, Running>,
    /// Errors of programs that ended by themselves.
    ended: Vec<String>,
    /// Why the last one could not be started.
    refused: Option<String>,
}

struct Running {
    process: Process,
    /// Pod template from which the program was started.
    template: Value,
    /// True once its Deployment was seen, which comes after its operator.
    is_seen: bool,
}

impl Deployed {
    /// Starts to run `program` for Deployments of operators; `dir` is for kubeconfigs, certificates and logs.
    pub(super) fn new(kubectl: &Kubectl, program: &Path, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let operators = Arc::new(Operators {
            kubectl: kubectl.clone(),
            program: program.to_owned(),
            dir: dir.to_owned(),
            state: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").context("no port for a webhook")?;
        let url = format!("https://localhost:{}/", listener.local_addr()?.port());
        let known = Arc::downgrade(&operators);
        let bundle = webhook::serve_with(listener, "localhost", move |_, review| answer(&known, review))?;
        kubectl.run_with("apply --server-side --force-conflicts -f -", &hook(&url, &bundle).to_string())?;
        Ok(Self(operators))
    }

    /// Stops the operators whose Deployments were deleted or scaled to zero.
    pub(super) fn follow(&self) {
        self.0.follow();
    }

    /// The ends of those that ended by themselves, and why the last one was not started.
    pub(super) fn complaints(&self) -> Vec<String> {
        let state = self.0.state();
        state.ended.iter().chain(&state.refused).cloned().collect()
    }

    /// Returns true when no program has ended by itself.
    pub(super) fn lived(&self) -> bool {
        self.0.state().ended.is_empty()
    }

    /// Ends them all, and holds no write up any more.
    pub(super) fn end(self) -> Result<()> {
        self.0.kubectl.run(&format!("delete validatingwebhookconfiguration {HOOK}")).map(drop)
    }
}

fn hook(url: &str, bundle: &str) -> Value {
    let (label, value) = OF_OPERATORS;
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": HOOK},
        "webhooks": [{
            "name": format!("{HOOK}.example.com"),
            "clientConfig": {"url": url, "caBundle": bundle},
            "rules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"],
                "operations": ["CREATE", "UPDATE"]}],
            "objectSelector": {"matchLabels": {label: value}},
            "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 30,
        }],
    })
}

/// Lets every write be, after its operator runs.
fn answer(operators: &Weak<Operators>, review: &Value) -> WebhookReply {
    let request = &review["request"];
    if let Some(operators) = operators.upgrade().filter(|_| request["dryRun"] != true) {
        operators.run(&request["object"]);
    }
    let response = json!({"uid": request["uid"], "allowed": true});
    let body = json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response});
    WebhookReply { status: 200, body: body.to_string(), after: Duration::ZERO }
}

impl Operators {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the operator of a Deployment that is to be, unless one like it runs, and then ends the one before it.
    fn run(&self, deployment: &Value) {
        let namespace = deployment["metadata"]["namespace"].as_str().unwrap_or_default();
        let template = &deployment["spec"]["template"];
        let is_running = self.state().running.get(namespace).is_some_and(|running| running.template == *template);
        if !is_wanted(deployment) || is_running {
            return;
        }
        let before = match self.start(namespace, &template["spec"]) {
            Ok(process) => {
                let running = Running { process, template: template.clone(), is_seen: false };
                self.state().running.insert(namespace.to_owned(), running)
            }
            Err(error) => {
                self.state().refused = Some(format!("{error:#}"));
                return;
            }
        };
        end(before);
    }

    fn follow(&self) {
        let (label, value) = OF_OPERATORS;
        let listed = self.kubectl.json(&format!("get deployments -A -l {label}={value}"));
        let Ok(listed) = listed.map_err(|error| self.state().refused = Some(format!("{error:#}"))) else { return };
        let items = listed["items"].as_array().into_iter().flatten().filter(|item| is_wanted(item));
        let there: Vec<&str> = items.filter_map(|item| item["metadata"]["namespace"].as_str()).collect();
        let mut gone = Vec::new();
        {
            let mut state = self.state();
            state.note_ends();
            for (namespace, running) in &mut state.running {
                let is_there = there.contains(&&**namespace);
                if running.is_seen && !is_there {
                    gone.push(namespace.clone());
                }
                running.is_seen |= is_there;
            }
        }
        for namespace in gone {
            let running = self.state().running.remove(&namespace);
            end(running);
        }
    }

    /// Starts an operator, and waits until it works.
    fn start(&self, namespace: &str, pod: &Value) -> Result<Process> {
        let kubectl = self.kubectl.in_namespace(namespace);
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
        let port = free_port()?;
        words.push(format!("--web.listen-address=127.0.0.1:{port}"));
        words.extend(self.certificate(&kubectl, namespace, pod)?);
        // `env` executes the operator. Each generation has its own log.
        let process = Process::spawn(&format!("operator-{namespace}-{port}"), Path::new("env"), words, &self.dir)?;
        let works = poll::until("the operator works", STARTS, || {
            let log = process.log()?;
            ensure!(log.matches(READY.0).count() >= READY.1, "{}", process.log_tail());
            Ok(())
        });
        // It may still succeed; the deployer waits for its effect.
        works.unwrap_or_else(|error| self.state().refused = Some(format!("{error:#}")));
        Ok(process)
    }

    /// Writes the files that the pod would mount, and returns the flags with their paths.
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

impl State {
    fn note_ends(&mut self) {
        let ended = &mut self.ended;
        self.running.retain(|_, running| match running.process.check_alive() {
            Ok(()) => true,
            Err(error) => {
                ended.push(format!("{error:#}"));
                false
            }
        });
    }
}

/// Ends an operator. One that does not end in time is killed.
fn end(running: Option<Running>) {
    drop(running.map(|running| running.process.terminate()));
}

fn is_wanted(deployment: &Value) -> bool {
    deployment["metadata"]["deletionTimestamp"].is_null() && deployment["spec"]["replicas"] != 0
}
