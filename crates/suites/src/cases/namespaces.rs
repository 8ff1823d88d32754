//! Cases of namespace selectors: downstream they select the counterparts of the upstream namespaces, and never another
//! tenant's.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::super::downstream::{items, name};
use super::super::scene::EAST;
use super::Case;
use super::stage::{CaseStage, apply, deployment, downstream_namespace, eventually};

pub(super) const CASES: [Case; 1] =
    [("selectors of namespaces in a NetworkPolicy select their namespaces downstream", network_policy)];

fn network_policy(stage: &CaseStage<'_>) -> Result<()> {
    let back = stage.pinned("back", EAST)?;
    let front = stage.pinned("front", EAST)?;
    stage.kubectl.run("label namespace front team=blue")?;
    apply(&back, &deployment("anchor", 1))?;
    apply(&front, &deployment("anchor", 1))?;
    apply(
        &back,
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: from-front}, spec: {
           podSelector: {matchLabels: {app: anchor}}, policyTypes: [Ingress], ingress: [{from: [
             {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: front}}},
             {namespaceSelector: {matchLabels: {team: blue}}}, {namespaceSelector: {}}]}]}}",
    )?;
    let member = stage.east()?.kubectl();
    let (back, front) = eventually("namespaces downstream", || {
        Ok((downstream_namespace(stage.east()?, "back")?, downstream_namespace(stage.east()?, "front")?))
    })?;
    eventually("the policy selects", || {
        let policy = member.json(&format!("get networkpolicy from-front -n {back}"))?;
        let peers = policy.pointer("/spec/ingress/0/from").and_then(Value::as_array).context("no peers")?;
        ensure!(peers.len() == 3, "{} peers of 3", peers.len());
        for (peer, all) in peers.iter().zip([false, false, true]) {
            let selected = selected(stage, &peer["namespaceSelector"])?;
            ensure!(selected.contains(&front), "{peer} selects {selected:?} and not {front}");
            ensure!(selected.contains(&back) == all, "{peer} selects {selected:?}");
            let foreign = ["kube-system", "default", "kube-public"];
            ensure!(!foreign.iter().any(|name| selected.iter().any(|one| one == name)), "{peer} selects {selected:?}");
        }
        Ok(())
    })?;
    stage.discard(&["back", "front"])
}

/// Names of the namespaces that a label selector selects on the physical cluster.
fn selected(stage: &CaseStage<'_>, selector: &Value) -> Result<Vec<String>> {
    let equal = selector["matchLabels"].as_object().into_iter().flatten();
    let mut terms: Vec<String> =
        equal.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    for term in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = term["key"].as_str().context("no key")?;
        let values: Vec<&str> = term["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        terms.push(match term["operator"].as_str() {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("Exists") => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    let list = stage.east()?.kubectl().run_args(&["get", "namespaces", "-l", &terms.join(","), "-o", "json"])?;
    let list: Value = serde_json::from_str(&list)?;
    Ok(items(&list).iter().map(name).map(str::to_owned).collect())
}
