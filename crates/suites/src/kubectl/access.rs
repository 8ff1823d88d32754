//! Access: can-i, whoami, roles, tokens.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{KubectlCheck, KubectlContext, contains, refused};
use harness::kubectl::Kubectl;
use harness::poll;

pub(super) const CHECKS: &[KubectlCheck] = &[
    ("auth whoami names the administrator", reviews_of_the_own_user),
    ("auth can-i: yes for the administrator, no for a stranger", can_i),
    ("auth can-i --list prints rules", can_i_list),
    ("the bootstrap cluster roles are there", bootstrap_roles),
    ("create role and rolebinding: they open what they say and no more", role),
    ("a binding to the cluster role view opens this namespace only", view),
    ("create token: it acts as the service account", token),
    ("a token with a bad signature is Unauthorized", bad_token),
    ("auth reconcile adds what a role lacks", reconcile),
];

const ROBOT: &str = "system:serviceaccount:verbs:robot";

fn reviews_of_the_own_user(context: &KubectlContext) -> Result<()> {
    contains("whoami", &context.anywhere.run("auth whoami")?, &["Username", "Groups", "system:authenticated"])
}

fn can_i(context: &KubectlContext) -> Result<()> {
    for (args, answer) in [
        ("create deployments", "yes"),
        ("* *", "yes"),
        ("get pods --subresource=log", "yes"),
        ("get /healthz", "yes"),
        ("get secrets --as=system:serviceaccount:verbs:robot", "no"),
        ("create deployments --as=stranger", "no"),
        ("list pods --as=stranger --as-group=strangers", "no"),
    ] {
        let output = context.kubectl.call(&format!("auth can-i {args}"), "")?;
        let code = if answer == "yes" { 0 } else { 1 };
        ensure!(output.stdout.trim().starts_with(answer) && output.code == Some(code), "{args}: {output}");
    }
    Ok(())
}

fn can_i_list(context: &KubectlContext) -> Result<()> {
    context.says("auth can-i --list", &["Resources", "Non-Resource URLs", "*.*", "[*]"])?;
    let out = context.kubectl.run(&format!("auth can-i --list --as={ROBOT} --as-group=system:authenticated"))?;
    contains("can-i --list", &out, &["selfsubjectaccessreviews.authorization.k8s.io", "[create]"])
}

fn bootstrap_roles(context: &KubectlContext) -> Result<()> {
    context.anywhere.run("get clusterrole/cluster-admin clusterrole/admin clusterrole/edit clusterrole/view")?;
    context.anywhere.run("get clusterrolebinding/cluster-admin").map(drop)?;
    contains("view", &context.anywhere.run("describe clusterrole/view")?, &["configmaps", "[get list watch]"])
}

/// Waits until `kubectl auth can-i` prints `answer`: authorizers read their roles from a cache.
fn becomes(context: &KubectlContext, question: &str, answer: &str) -> Result<()> {
    poll::until(question, Duration::from_secs(15), || {
        let output = context.kubectl.call(&format!("auth can-i {question} --as={ROBOT}"), "")?;
        ensure!(output.stdout.trim() == answer, "{output}");
        Ok(())
    })
}

fn role(context: &KubectlContext) -> Result<()> {
    context.kubectl.run("create role reader --verb=get,list,watch --resource=configmaps")?;
    context.kubectl.run("create rolebinding robot-reads --role=reader --serviceaccount=verbs:robot")?;
    becomes(context, "list configmaps", "yes")?;
    becomes(context, "delete configmaps", "no")?;
    becomes(context, "list secrets", "no")?;
    becomes(context, "list configmaps -n default", "no")?;
    context.says("describe rolebinding/robot-reads", &["Role", "reader", "ServiceAccount", "robot"]).map(drop)
}

fn view(context: &KubectlContext) -> Result<()> {
    context.kubectl.run("create rolebinding robot-views --clusterrole=view --serviceaccount=verbs:robot")?;
    becomes(context, "list deployments", "yes")?;
    becomes(context, "get secrets", "no")?;
    context.kubectl.run("delete rolebinding/robot-views")?;
    becomes(context, "list deployments", "no")
}

/// kubectl as the service account, by a fresh token.
fn robot(context: &KubectlContext) -> Result<Kubectl> {
    let token = context.kubectl.run("create token robot --duration=1h")?;
    ensure!(token.trim().split('.').count() == 3, "not a JWT: {token}");
    context.kubectl.with_config(&context.kubectl.config().with_token(token.trim()), "robot")
}

fn token(context: &KubectlContext) -> Result<()> {
    let robot = robot(context)?;
    contains("whoami", &robot.run("auth whoami")?, &[ROBOT, "system:serviceaccounts:verbs"])?;
    contains("get", &robot.run("get cm -o name")?, &["configmap/sel-a"])?;
    let text = format!(
        "secrets is forbidden: User \"{ROBOT}\" cannot list resource \"secrets\" in API group \"\" in the namespace \"verbs\""
    );
    refused(&robot.call("get secrets", "")?, &["Error from server (Forbidden)", &text])?;
    refused(&robot.call("delete cm/sel-a", "")?, &["(Forbidden)", "cannot delete resource \"configmaps\""])
}

fn bad_token(context: &KubectlContext) -> Result<()> {
    let token = context.kubectl.run("create token robot")?;
    let (body, signature) = token.trim().rsplit_once('.').unwrap_or_default();
    let turned: String = signature.chars().rev().collect();
    let config = context.kubectl.config().with_token(&format!("{body}.{turned}"));
    let output = context.kubectl.with_config(&config, "forged")?.call("get cm", "")?;
    refused(&output, &["You must be logged in to the server"])
}

fn reconcile(context: &KubectlContext) -> Result<()> {
    let manifest = "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: reader, namespace: verbs},
        rules: [{apiGroups: [''], resources: [services], verbs: [get]}]}";
    let out = context.kubectl.run_with("auth reconcile -f -", manifest)?;
    contains("reconcile", &out, &["role.rbac.authorization.k8s.io/reader reconciled"])?;
    becomes(context, "get services", "yes")?;
    becomes(context, "list configmaps", "yes")
}
