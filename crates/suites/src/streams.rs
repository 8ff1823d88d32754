//! Streams of pods that run on real physical clusters: logs, exec, attach, port-forward, cp, by unmodified kubectl.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::downstream::{self, name, namespace, text};
use super::scene::{self, Scene};
use harness::cluster::PhysicalCluster;
use harness::kubectl::{Kubectl, KubectlOutput};
use harness::report::CheckReport;
use harness::{poll, ports::free_port, webhook};

const LIMIT: Duration = Duration::from_secs(60);
const WORKSPACE: &str = "streams";
/// Variables that make kubectl speak SPDY, as older clients do.
const SPDY: [(&str, &str); 2] =
    [("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"), ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")];

/// Pod with its names upstream and on its physical cluster.
struct Pod<'a> {
    kubectl: Kubectl,
    name: String,
    cluster: &'a PhysicalCluster,
    below: Kubectl,
    name_below: String,
}

/// Runs everything in the workspace `streams`.
pub(super) fn run(report: &mut CheckReport, scene: &Scene) {
    let made = scene.workspace(WORKSPACE).and_then(|kubectl| Pod::run(scene, kubectl.in_namespace("default")));
    if !report.check("streams: a pod runs", || made.as_ref().map(drop).map_err(scene::copy)) {
        return;
    }
    let Ok(pod) = made else { return };
    let steps: [(&str, &dyn Fn() -> Result<()>); 12] = [
        ("logs are those of the container", &|| logs(&pod)),
        ("logs -f goes on", &|| follow(&pod)),
        ("exec says, fails and ends as it does below", &|| exec(&pod, &[])),
        ("exec over SPDY does so too", &|| exec(&pod, &SPDY)),
        ("exec takes its standard input", &|| stdin(&pod)),
        ("attach shows what the container says", &|| attach(&pod)),
        ("port-forward carries bytes both ways", &|| port_forward(&pod)),
        ("cp brings a file back", &|| cp(&pod)),
        ("a webhook behind a Service is asked in its pod", &|| webhook(&pod)),
        ("a bare pod is reached too", &|| bare(scene, &pod.kubectl)),
        ("a pod without a place is told apart", &|| unplaced(&pod.kubectl)),
        ("a physical cluster that goes away ends its streams, and one that is back has new ones", &|| outage(&pod)),
    ];
    for (name, step) in steps {
        report.check(&format!("streams: {name}"), step);
    }
    report.check("streams: nothing is left below", || scene.delete_workspace(WORKSPACE));
}

impl<'a> Pod<'a> {
    fn run(scene: &'a Scene, kubectl: Kubectl) -> Result<Self> {
        let labels = json!({"app": "web"});
        let container = json!({"name": "web", "image": "web:1", "ports": [{"containerPort": 8080}]});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}}});
        kubectl.run_with("create -f -", &deployment.to_string())?;
        kubectl.run("rollout status deployment/web --timeout=60s")?;
        let pods = kubectl.json("get pods -l app=web")?;
        let pod = downstream::items(&pods).first().context("no pod above")?;
        Self::of(scene, kubectl.clone(), name(pod), text(pod, "/metadata/labels/portolan.dev~1cluster"))
    }

    fn of(scene: &'a Scene, kubectl: Kubectl, name: &str, cluster: &str) -> Result<Self> {
        let cluster = scene.cluster(cluster)?;
        let below = downstream::one(cluster, "pod", name)?;
        let name_below = downstream::name(&below).to_owned();
        let below = cluster.kubectl().in_namespace(namespace(&below));
        Ok(Self { kubectl, name: name.to_owned(), cluster, below, name_below })
    }

    /// The same command has the same output upstream and downstream. `POD` is replaced by the pod's name.
    fn same(&self, args: &[&str], stdin: &str, env: &[(&str, &str)]) -> Result<KubectlOutput> {
        let ask = |kubectl: &Kubectl, pod: &str| {
            let args: Vec<String> = args.iter().map(|arg| arg.replace("POD", pod)).collect();
            kubectl.call_with(&args.iter().map(String::as_str).collect::<Vec<_>>(), stdin, env)
        };
        let (above, below) = (ask(&self.kubectl, &self.name)?, ask(&self.below, &self.name_below)?);
        let says = |output: &KubectlOutput| (output.code, output.stdout.clone(), output.stderr.clone());
        ensure!(says(&above) == says(&below), "above: {above}\nbelow: {below}");
        Ok(above)
    }
}

fn logs(pod: &Pod<'_>) -> Result<()> {
    pod.cluster.kubelet().log("a line of a log")?;
    let all = pod.same(&["logs", "POD"], "", &[])?;
    ensure!(all.code == Some(0) && all.stdout.ends_with("a line of a log\n"), "{all}");
    let last = pod.same(&["logs", "deployment/web", "--tail=1"], "", &[])?;
    ensure!(last.stdout == "a line of a log\n", "{last}");
    let previous = pod.same(&["logs", "POD", "--previous"], "", &[])?;
    ensure!(previous.stdout == "ended\n", "{previous}");
    for args in [&["logs", "POD", "-c", "other"][..], &["logs", "POD", "--tail=-5"], &["logs", "POD", "--since=0s"]] {
        pod.same(args, "", &[])?;
    }
    Ok(())
}

fn follow(pod: &Pod<'_>) -> Result<()> {
    let following = pod.kubectl.start("logs-f", &format!("logs -f {} --tail=1", pod.name))?;
    for line in ["one", "two", "three"] {
        pod.cluster.kubelet().log(&format!("followed: {line}"))?;
        poll::until("the line", LIMIT, || {
            following.check_alive()?;
            let log = following.log()?;
            ensure!(log.ends_with(&format!("followed: {line}\n")), "{log}");
            Ok(())
        })?;
    }
    following.kill()
}

fn exec(pod: &Pod<'_>, env: &[(&str, &str)]) -> Result<()> {
    let both = pod.same(&["exec", "POD", "--", "sh", "-c", "echo out; echo err >&2"], "", env)?;
    ensure!((both.stdout.as_str(), both.stderr.as_str()) == ("out\n", "err\n"), "{both}");
    let much = pod.same(&["exec", "POD", "--", "seq", "200000"], "", env)?;
    ensure!(much.stdout.lines().count() == 200_000, "{} lines", much.stdout.lines().count());
    let failed = pod.same(&["exec", "POD", "--", "sh", "-c", "exit 3"], "", env)?;
    ensure!(failed.code != Some(0), "{failed}");
    pod.same(&["exec", "POD", "-c", "other", "--", "true"], "", env)?;
    Ok(())
}

fn stdin(pod: &Pod<'_>) -> Result<()> {
    for env in [&[][..], &SPDY] {
        let said = pod.same(&["exec", "-i", "POD", "--", "head", "-n", "1"], "a word\n", env)?;
        ensure!(said.stdout == "a word\n", "{said}");
    }
    Ok(())
}

fn attach(pod: &Pod<'_>) -> Result<()> {
    let attached = pod.kubectl.start("attach", &format!("attach {}", pod.name))?;
    poll::until("what the container says", LIMIT, || {
        pod.cluster.kubelet().log("attached")?;
        let log = attached.log()?;
        ensure!(log.contains("attached\n"), "{log}");
        Ok(())
    })?;
    attached.kill()
}

/// Says everything back that it hears, on all connections.
fn echo(listener: TcpListener) {
    for connection in listener.incoming().flatten() {
        thread::spawn(move || {
            let mut from = connection.try_clone()?;
            std::io::copy(&mut from, &mut &connection)
        });
    }
}

fn port_forward(pod: &Pod<'_>) -> Result<()> {
    let forwarded = pod.cluster.kubelet().plain;
    let listener = TcpListener::bind(("127.0.0.1", forwarded.local)).context("cannot listen")?;
    thread::spawn(|| echo(listener));
    let local = free_port()?;
    let forwarding =
        pod.kubectl.start("port-forward", &format!("port-forward {} {local}:{}", pod.name, forwarded.pod))?;
    poll::until("kubectl listens", LIMIT, || {
        forwarding.check_alive()?;
        TcpStream::connect(("127.0.0.1", local)).map(drop).context("not yet")
    })?;
    let sent: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_be_bytes).collect();
    let exchanges: Vec<_> = (0..4).map(|_| exchange(local, &sent)).collect();
    ensure!(exchanges.into_iter().collect::<Result<Vec<_>>>()?.iter().all(|got| *got == sent), "other bytes came back");
    forwarding.kill()
}

fn exchange(port: u16, sent: &[u8]) -> Result<Vec<u8>> {
    let mut connection = TcpStream::connect(("127.0.0.1", port))?;
    connection.set_read_timeout(Some(LIMIT))?;
    let mut writer = connection.try_clone()?;
    let text = sent.to_owned();
    let writing = thread::spawn(move || writer.write_all(&text));
    let mut got = vec![0; sent.len()];
    connection.read_exact(&mut got)?;
    writing.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    Ok(got)
}

/// Only from the container: in the other direction `tar` waits for the end of its input, which this kubelet does not
/// pass on.
fn cp(pod: &Pod<'_>) -> Result<()> {
    let (inside, back) = (pod.cluster.kubelet().file("inside"), pod.cluster.kubelet().file("back"));
    let text: String = (0..100_000).map(|n| format!("{n}\n")).collect();
    fs::write(&inside, &text).context("cannot write a file")?;
    pod.kubectl.run(&format!("cp {}:{} {}", pod.name, inside.display(), back.display()))?;
    ensure!(fs::read_to_string(back)? == text, "another file came back");
    Ok(())
}

/// Its name is that of the Service, and its certificate is for that name alone.
fn webhook(pod: &Pod<'_>) -> Result<()> {
    let (https, kubectl) = (pod.cluster.kubelet().https, &pod.kubectl);
    let listener = TcpListener::bind(("127.0.0.1", https.local)).context("cannot listen")?;
    let bundle = webhook::serve(listener, "hook.default.svc")?;
    let ports = json!([{"port": 443, "targetPort": https.pod}]);
    let service = |name: &str| {
        let spec = json!({"selector": {"app": "web"}, "ports": ports});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}).to_string()
    };
    let configuration = |service: &str| {
        let client = json!({"service": {"namespace": "default", "name": service}, "caBundle": bundle});
        let rule =
            json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]});
        let webhook = json!({"name": "hook.example.com", "clientConfig": client, "rules": [rule], "sideEffects": "None",
            "admissionReviewVersions": ["v1"]});
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "hook"}, "webhooks": [webhook]})
        .to_string()
    };
    for name in ["hook", "other"] {
        kubectl.run_with("create -f -", &service(name))?;
    }
    kubectl.run_with("apply -f -", &configuration("hook"))?;
    let map = |name: &str, labels: serde_json::Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}).to_string()
    };
    kubectl.run_with("create -f -", &map("let-in", json!({})))?;
    let refused = kubectl.call("create -f -", &map("refused", json!({"refuse": "not-today"})))?;
    let says = "admission webhook \"hook.example.com\" denied the request: not-today";
    ensure!(refused.code == Some(1) && refused.stderr.contains(says), "{refused}");
    kubectl.run_with("apply -f -", &configuration("other"))?;
    let unknown = kubectl.call("create -f -", &map("unknown", json!({})))?;
    let says = "Post \"https://other.default.svc:443/?timeout=10s\": tls: failed to verify certificate: x509: ";
    ensure!(unknown.code == Some(1) && unknown.stderr.contains(says), "{unknown}");
    kubectl.run("delete validatingwebhookconfiguration hook")?;
    kubectl.run("delete service hook other").map(drop)
}

fn bare(scene: &Scene, kubectl: &Kubectl) -> Result<()> {
    kubectl.run("run bare --image=bare:1 --restart=Never")?;
    kubectl.run("wait pod/bare --for=condition=Ready --timeout=60s")?;
    let place = downstream::placed_on(&kubectl.json("get pod bare")?).join(",");
    let pod = Pod::of(scene, kubectl.clone(), "bare", &place)?;
    pod.same(&["exec", "POD", "--", "echo", "hello"], "", &[])?;
    pod.same(&["logs", "POD", "--tail=1"], "", &[])?;
    kubectl.run("delete pod bare --wait --timeout=60s").map(drop)
}

fn unplaced(kubectl: &Kubectl) -> Result<()> {
    let containers = json!([{"name": "a", "image": "a:1"}]);
    let metadata = json!({"name": "nowhere", "annotations": {"portolan.dev/pin": "nowhere"}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}});
    kubectl.run_with("create -f -", &pod.to_string())?;
    let entered = kubectl.call("exec nowhere -- true", "")?;
    let says = "pod nowhere does not have a host assigned";
    ensure!(entered.code == Some(1) && entered.stderr.contains(says), "{entered}");
    let silent = kubectl.run("logs nowhere")?;
    ensure!(silent.is_empty(), "{silent}");
    let wrong = kubectl.call("logs nowhere -c b", "")?;
    ensure!(wrong.stderr.contains("container b is not valid for pod nowhere"), "{wrong}");
    kubectl.run("delete pod nowhere --wait --timeout=60s").map(drop)
}

fn outage(pod: &Pod<'_>) -> Result<()> {
    let following = pod.kubectl.start("logs-cut", &format!("logs -f {} --tail=1", pod.name))?;
    poll::until("a line", LIMIT, || {
        ensure!(!following.log()?.is_empty(), "nothing yet");
        Ok(())
    })?;
    pod.cluster.kill_control_plane()?;
    let ended = poll::until("the end of logs -f", LIMIT, || {
        ensure!(following.check_alive().is_err(), "it goes on");
        Ok(())
    });
    let refused = pod.kubectl.call(&format!("exec {} -- true", pod.name), "")?;
    pod.cluster.restart_control_plane()?;
    ended?;
    let says = format!("physical cluster {:?} cannot be reached", pod.cluster.name());
    ensure!(refused.code == Some(1) && refused.stderr.contains(&says), "{refused}");
    poll::until("streams are back", LIMIT, || pod.kubectl.run(&format!("exec {} -- true", pod.name)).map(drop))
}
