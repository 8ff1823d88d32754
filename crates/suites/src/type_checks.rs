//! The type check of ValidatingAdmissionPolicies beside kube-controller-manager's: the same policies, and each status
//! as it settles.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::downstream::name;
use super::scene::{self, Scene};
use harness::report::CheckReport;
use harness::{kubectl::Kubectl, poll};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs in the workspace `typed`, and on a physical cluster.
pub(super) fn run(report: &mut CheckReport, scene: &Scene) {
    let made = scene.workspace("typed");
    report.check("policies: type checks tell what kube-controller-manager's tell", || {
        let above = made.as_ref().map_err(scene::copy)?;
        let below = scene.cluster(scene::EAST)?.kubectl();
        let all = policies();
        let manifest = json!({"apiVersion": "v1", "kind": "List", "items": all}).to_string();
        for kubectl in [above, below] {
            kubectl.run_with("create -f -", &manifest)?;
        }
        let told = all.iter().map(|policy| compare(above, below, name(policy))).collect::<Result<Vec<usize>>>();
        below.run_with("delete -f -", &manifest)?;
        println!("      {} policies, {} warnings", all.len(), told?.iter().sum::<usize>());
        scene.delete_workspace("typed")
    });
}

/// Compares the warnings of both servers and returns their number.
fn compare(above: &Kubectl, below: &Kubectl, name: &str) -> Result<usize> {
    let (ours, theirs) = (settled(above, name)?, settled(below, name)?);
    ensure!(ours == theirs, "{name}: {ours:#}\nkube-controller-manager: {theirs:#}");
    Ok(theirs["typeChecking"]["expressionWarnings"].as_array().map_or(0, Vec::len))
}

fn settled(kubectl: &Kubectl, name: &str) -> Result<Value> {
    poll::until("a type check", LIMIT, || {
        let policy = kubectl.json(&format!("get validatingadmissionpolicy {name}"))?;
        let status = policy.get("status").context("no status")?;
        ensure!(status["observedGeneration"] == policy["metadata"]["generation"], "{status}");
        Ok(status.clone())
    })
}

fn policies() -> Vec<Value> {
    let apps = ["deployments", "daemonsets", "statefulsets"].as_slice();
    let cases: [(&str, &[&str], &[&str]); 13] = [
        ("apps", &["deployments"], &["object.spec.replicas > 1", "object.spec.foo > 1", "object.spec.replicas == 'x'"]),
        ("apps", apps, &["object.spec.replicas > 1", "oldObject.x.y == 1", "has(object.spec.serviceName)"]),
        ("apps", &["deployments"], &["object.spec.template.spec.containers.all(c, c.image.x == 1 || c.nope == '')"]),
        ("apps", &["deployments"], &["object.spec.template.spec.containers.all(c, has(c.resources.limits))"]),
        (
            "apps",
            &["deployments"],
            &["object.spec.strategy.rollingUpdate.maxSurge == '1'", "object.metadata.labels.a == 1"],
        ),
        ("apps", &["Deployments", "deployments/scale", "*"], &["object.x == 1", "object.metadata.name.x == 1"]),
        (
            "",
            &["configmaps", "pods"],
            &["object.data.x == 1", "object.spec.containers.exists(c, c.ports[0].port == 1)"],
        ),
        ("", &["events"], &["object.note == ''"]),
        ("*", &["deployments"], &["object.x == 1"]),
        (
            "batch",
            &["jobs", "cronjobs"],
            &["object.spec.schedule == '' || object.spec.parallelism > 1", "variables.l > 1"],
        ),
        ("rbac.authorization.k8s.io", &["clusterroles"], &["object.rules.all(r, r.verbs.all(v, v.x != ''))"]),
        ("", &["pods"], &["params.data.x == 1", "authorizer.requestResource.check('get').allowed()"]),
        ("", &["pods"], &["params.data.x == 1", "params.x == object.x"]),
    ];
    let policy = |(index, (group, resources, expressions)): (usize, (&str, &[&str], &[&str]))| {
        // Messages see no authorizer.
        let validations: Vec<Value> = expressions
            .iter()
            .filter(|expression| !expression.contains("authorizer"))
            .map(|expression| json!({"expression": "true", "messageExpression": format!("string({expression})")}))
            .chain(expressions.iter().map(|expression| json!({"expression": expression})))
            .collect();
        let params = ["ConfigMap", "Nothing"][index % 2];
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": format!("typed-{index}")},
            "spec": {
                "paramKind": {"apiVersion": "v1", "kind": params},
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [group], "apiVersions": ["v1"], "operations": ["*"], "resources": resources}]},
                "variables": [{"name": "l", "expression": "object.spec.schedule"}],
                "validations": validations,
            },
        })
    };
    cases.into_iter().enumerate().map(policy).collect()
}
