//! Judgement of a pod from its manifest alone, since nothing runs: images that cannot be pulled, commands that fail,
//! probes that cannot succeed. The rules are documented in `docs/operating.md`; the annotations there decide where no
//! rule does.

mod image;

use portolan_types::object;
use serde_json::Value;

use crate::fields::{list, text};

/// Annotation of a pod that is never ready (`"false"`), or always ready regardless of its probes (`"true"`).
const READY: &str = "simulated.portolan.dev/ready";
/// An image whose name contains this cannot be pulled.
const UNPULLABLE: &str = "does-not-exist";
/// Top-level domain that never resolves (RFC 6761): images from its hosts cannot be pulled.
const INVALID_DOMAIN: &str = ".invalid";

/// Final state of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ContainerState {
    /// The container runs. The error is the reason that it is not ready.
    Runs(Result<(), String>),
    /// The container cannot be created.
    Waits(ContainerFault),
    /// The container fails and is restarted repeatedly.
    Crashes,
}

/// Reason why a container waits, and the Event about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContainerFault {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) event: &'static str,
    pub(super) event_message: String,
}

impl ContainerFault {
    pub(super) fn unconfigured(missing: &str) -> Self {
        Self {
            reason: "CreateContainerConfigError",
            message: missing.to_owned(),
            event: "Failed",
            event_message: format!("Error: {missing}"),
        }
    }
}

/// Returns why the image of a container cannot be used.
pub(super) fn image_fault(container: &Value) -> Option<ContainerFault> {
    let name = text(container, "/image");
    if let Err(why) = image::check(name) {
        let message = format!("Failed to apply default image tag {name:?}: couldn't parse image name {name:?}: {why}");
        return Some(ContainerFault {
            reason: "InvalidImageName",
            event: "InspectFailed",
            event_message: message.clone(),
            message,
        });
    }
    let host = name.split('/').next().unwrap_or_default().split(':').next().unwrap_or_default();
    let is_missing = name.contains(UNPULLABLE) || (name.contains('/') && host.ends_with(INVALID_DOMAIN));
    is_missing.then(|| ContainerFault {
        reason: "ImagePullBackOff",
        message: format!("Back-off pulling image {name:?}: ErrImagePull: simulated: no such image"),
        event: "Failed",
        event_message: format!("Failed to pull image {name:?}: simulated: no such image"),
    })
}

/// Returns true for a container whose command is `false`, or ends in `exit` with another code than 0.
pub(super) fn fails(container: &Value) -> bool {
    let words = list(container, "/command").iter().chain(list(container, "/args")).filter_map(Value::as_str);
    ends_badly(words)
}

fn ends_badly<'a>(words: impl DoubleEndedIterator<Item = &'a str>) -> bool {
    let mut words = words;
    let Some(script) = words.next_back().map(str::trim_end) else { return false };
    let last = script.rsplit([';', '\n']).next().unwrap_or_default();
    // A command after another one may not run, unless that one cannot fail.
    let mut parts = last.rsplit("&&").map(str::trim);
    let is_bad = |command: &str| {
        let code = command.strip_prefix("exit ").and_then(|code| code.trim().parse::<i64>().ok());
        matches!(command, "false" | "/bin/false" | "/usr/bin/false") || code.is_some_and(|code| code != 0)
    };
    let is_harmless = |command: &str| {
        let first = command.split_whitespace().next().unwrap_or_default();
        ["echo", "printf", "sleep", "true", "date"].contains(&first) && !command.contains("||")
    };
    parts.next().is_some_and(is_bad) && parts.all(is_harmless)
}

/// Returns true for a pod whose containers are started again when they end.
pub(super) fn restarts(pod: &Value) -> bool {
    matches!(text(pod, "/spec/restartPolicy"), "" | "Always")
}

/// Returns true for an init container that continues to run beside the containers.
pub(super) fn is_sidecar(container: &Value) -> bool {
    text(container, "/restartPolicy") == "Always"
}

/// Judges a container of a pod that can be created.
pub(super) fn judge(pod: &Value, container: &Value) -> ContainerState {
    if restarts(pod) && (fails(container) || probe_fault(pod, container, "livenessProbe").is_some()) {
        return ContainerState::Crashes;
    }
    let ready = match object::annotation(pod, READY) {
        Some("true") => Ok(()),
        Some("false") => Err(format!("Readiness probe failed: the annotation {READY} is false")),
        _ => ["startupProbe", "readinessProbe"].iter().try_for_each(|kind| match probe_fault(pod, container, kind) {
            None => Ok(()),
            Some(why) => Err(format!("{} probe {why}", if *kind == "startupProbe" { "Startup" } else { "Readiness" })),
        }),
    };
    ContainerState::Runs(ready)
}

/// Returns why a probe cannot succeed: its command fails, or nothing in the pod has its port.
fn probe_fault(pod: &Value, container: &Value, kind: &str) -> Option<String> {
    let probe = container.get(kind).filter(|probe| probe.is_object())?;
    if ends_badly(list(probe, "/exec/command").iter().filter_map(Value::as_str)) {
        return Some("failed: simulated: the command fails".into());
    }
    let (action, handler) =
        ["httpGet", "tcpSocket", "grpc"].iter().find_map(|kind| Some((*kind, probe.get(*kind)?)))?;
    match handler.get("port")? {
        Value::String(name) if !list(container, "/ports").iter().any(|port| text(port, "/name") == name) => {
            Some(format!("errored and resulted in unknown state: couldn't find port: {name:?}"))
        }
        Value::Number(port) if !may_listen(pod, container, port.as_i64()?) => Some(match action {
            "httpGet" => {
                let path = text(handler, "/path");
                format!("failed: Get \"http://simulated:{port}{path}\": dial tcp :{port}: connect: connection refused")
            }
            _ => format!("failed: dial tcp :{port}: connect: connection refused"),
        }),
        _ => None,
    }
}

/// Returns false when the containers of the pod declare ports, and neither declare this one nor name it in the
/// container's command, arguments or environment. Ports need not be declared: if none is declared, the result is true.
fn may_listen(pod: &Value, container: &Value, port: i64) -> bool {
    let containers = list(pod, "/spec/containers").iter().chain(list(pod, "/spec/initContainers"));
    let mut declared =
        containers.flat_map(|own| list(own, "/ports")).filter_map(|own| own.get("containerPort")?.as_i64()).peekable();
    if declared.peek().is_none() || declared.any(|own| own == port) {
        return true;
    }
    let port = port.to_string();
    let words = list(container, "/command").iter().chain(list(container, "/args"));
    let values = list(container, "/env").iter().filter_map(|variable| variable.get("value"));
    words.chain(values).filter_map(Value::as_str).any(|word| names_number(word, &port))
}

/// Returns true when a text contains a number, not as a part of a longer one.
fn names_number(text: &str, number: &str) -> bool {
    text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits == number)
}

/// Returns the conditions of `spec.readinessGates` that are not `True`.
pub(super) fn open_gates(pod: &Value) -> Vec<String> {
    let gates = list(pod, "/spec/readinessGates").iter().map(|gate| text(gate, "/conditionType"));
    gates.filter(|gate| !crate::fields::is_true(pod, gate)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn containers_are_judged_by_their_manifest() {
        let runs = ContainerState::Runs(Ok(()));
        let is_unready = |verdict: &ContainerState, part: &str| matches!(verdict, ContainerState::Runs(Err(why)) if why.contains(part));
        let verdict = |container: Value, annotations: Value| {
            let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [container]}});
            judge(&pod, &pod["spec"]["containers"][0])
        };
        let ports = json!([{"name": "http", "containerPort": 80}]);
        for (case, container, unready) in [
            ("no probe", json!({}), None),
            ("a declared port", json!({"ports": ports, "readinessProbe": {"httpGet": {"port": 80}}}), None),
            ("a declared name", json!({"ports": ports, "readinessProbe": {"httpGet": {"port": "http"}}}), None),
            ("no port is declared", json!({"readinessProbe": {"httpGet": {"port": 8081}}}), None),
            (
                "an argument names the port",
                json!({"ports": ports, "args": ["--probe=:8081"], "readinessProbe": {"httpGet": {"port": 8081}}}),
                None,
            ),
            (
                "another port is declared",
                json!({"ports": ports, "args": ["--x=80811"], "readinessProbe": {"httpGet": {"port": 8081}}}),
                Some("connection refused"),
            ),
            (
                "an unknown name",
                json!({"ports": ports, "readinessProbe": {"tcpSocket": {"port": "db"}}}),
                Some("couldn't find port: \"db\""),
            ),
            ("a command", json!({"readinessProbe": {"exec": {"command": ["cat", "/tmp/ok"]}}}), None),
            (
                "a command that fails",
                json!({"readinessProbe": {"exec": {"command": ["sh", "-c", "sleep 1; exit 3"]}}}),
                Some("Readiness probe failed"),
            ),
            (
                "a startup probe that fails",
                json!({"startupProbe": {"exec": {"command": ["/bin/false"]}}}),
                Some("Startup probe failed"),
            ),
        ] {
            let found = verdict(container, Value::Null);
            match unready {
                None => assert_eq!(found, runs, "{case}"),
                Some(part) => assert!(is_unready(&found, part), "{case}: {found:?}"),
            }
        }
        let liveness = json!({"livenessProbe": {"exec": {"command": ["false"]}}});
        assert_eq!(verdict(liveness, Value::Null), ContainerState::Crashes);
        assert_eq!(verdict(json!({"command": ["sh", "-c", "exit 1"]}), Value::Null), ContainerState::Crashes);
        assert_eq!(verdict(json!({"command": ["sh", "-c", "exit 0"]}), Value::Null), runs);
        for (script, fails) in [
            ("false", true),
            ("/bin/false", true),
            ("echo no; exit 1", true),
            ("echo no && exit 2", true),
            ("sleep 1\nexit 1\n", true),
            ("redis-cli ping || exit 1", false),
            ("test -f /tmp/bad && exit 1", false),
            ("if ! check; then exit 1; fi", false),
            ("exit 0", false),
        ] {
            assert_eq!(super::fails(&json!({"command": ["sh", "-c"], "args": [script]})), fails, "{script}");
        }
        let failing = json!({"readinessProbe": {"exec": {"command": ["false"]}}});
        assert_eq!(verdict(failing, json!({READY: "true"})), runs, "the annotation decides");
        assert!(is_unready(&verdict(json!({}), json!({READY: "false"})), "annotation"));
    }

    #[test]
    fn images_are_judged_by_their_names() {
        for (image, expected) in [
            ("nginx", None),
            ("localhost:5000/team/app:1.0", None),
            ("registry.example/does-not-exist:1", Some("ImagePullBackOff")),
            ("registry.invalid/app", Some("ImagePullBackOff")),
            ("Nginx", Some("InvalidImageName")),
            ("nginx:", Some("InvalidImageName")),
        ] {
            assert_eq!(image_fault(&json!({"image": image})).map(|fault| fault.reason), expected, "{image}");
        }
    }
}
