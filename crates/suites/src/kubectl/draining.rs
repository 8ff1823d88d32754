//! Drains of nodes with running pods: each pod is evicted when its disruption budget allows it.

use anyhow::{Result, ensure};

use super::{KubectlCheck, KubectlContext, golden};

pub(super) const CHECKS: &[KubectlCheck] = &[
    ("drain stops at a pod that nothing makes again, and evicts it by force", bare),
    ("drain waits for a budget that allows no disruption", budget_holds_drain),
    ("drain evicts what its budget lets go, and its set makes it again", let_go),
];

const SET: &str = "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: moored}
spec:
  replicas: 1
  serviceName: moored
  selector: {matchLabels: {app: moored}}
  template:
    metadata: {labels: {app: moored}}
    spec: {containers: [{name: c, image: 'moored:1'}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: moored}
spec: {minAvailable: 1, selector: {matchLabels: {app: moored}}}
";

/// The node of a pod. A logical cluster has no objects for nodes of physical clusters; one can be made, as any other.
fn node_of(context: &KubectlContext, pod: &str) -> Result<String> {
    let node = context.path(pod, "{.spec.nodeName}")?;
    ensure!(!node.is_empty(), "{pod} has no node");
    if context.kubectl.run(&format!("get node {node} --ignore-not-found -o name"))?.is_empty() {
        let object = format!("{{apiVersion: v1, kind: Node, metadata: {{name: {node}}}}}");
        context.kubectl.run_with("create -f -", &object)?;
    }
    Ok(node)
}

fn bare(context: &KubectlContext) -> Result<()> {
    context.kubectl.run("run adrift --image=adrift:1")?;
    context.wait("pod/adrift --for=condition=Ready")?;
    let node = node_of(context, "pod/adrift")?;
    let drain = format!("drain {node} --pod-selector=run=adrift");
    let why = "cannot delete Pods that declare no controller (use --force to override): verbs/adrift";
    let said = format!(
        "error: unable to drain node \"{node}\" due to error: {why}, continuing command...\n\
         There are pending nodes to be drained:\n {node}\n{why}\n"
    );
    let refused = context.kubectl.call(&drain, "")?;
    ensure!(refused.code == Some(1) && refused.stderr == said, "expected\n{said}\n{refused}");
    ensure!(refused.stdout == format!("node/{node} cordoned\n"), "{refused}");
    let forced = context.slow().call(&format!("{drain} --force"), "")?;
    ensure!(forced.stderr == "Warning: deleting Pods that declare no controller: verbs/adrift\n", "{forced}");
    let said =
        format!("node/{node} already cordoned\nevicting pod verbs/adrift\npod/adrift evicted\nnode/{node} drained\n");
    ensure!(golden::settled(&forced.stdout) == said, "{forced}");
    context.prints(&format!("uncordon {node}"), &format!("node/{node} uncordoned\n"))
}

fn budget_holds_drain(context: &KubectlContext) -> Result<()> {
    context.apply(SET)?;
    context.wait("pod/moored-0 --for=create")?;
    context.wait("pod/moored-0 --for=condition=Ready")?;
    context.path_becomes("pdb/moored", "{.status.currentHealthy} {.status.disruptionsAllowed}", "1 0")?;
    let node = node_of(context, "pod/moored-0")?;
    let held = context.slow().call(&format!("drain {node} --pod-selector=app=moored --timeout=3s"), "")?;
    let evicting = "error when evicting pods/\"moored-0\" -n \"verbs\"";
    let said = format!(
        "{evicting} (will retry after 5s): Cannot evict pod as it would violate the pod's disruption budget.\n\
         There are pending pods in node \"{node}\" when an error occurred: {evicting}: global timeout reached: 3s\n\
         pod/moored-0\n\
         error: unable to drain node \"{node}\" due to error: {evicting}: global timeout reached: 3s, \
         continuing command...\n\
         There are pending nodes to be drained:\n {node}\n{evicting}: global timeout reached: 3s\n"
    );
    ensure!(held.code == Some(1) && held.stderr == said, "expected\n{said}\n{held}");
    let evicting = "evicting pod verbs/moored-0\n";
    ensure!(held.stdout == format!("node/{node} cordoned\n{evicting}{evicting}"), "{held}");
    context.path_is("pod/moored-0", "{.metadata.deletionTimestamp}", "")
}

fn let_go(context: &KubectlContext) -> Result<()> {
    let before = context.path("pod/moored-0", "{.metadata.uid}")?;
    let node = node_of(context, "pod/moored-0")?;
    context.kubectl.run_args(&["patch", "pdb/moored", "--type=merge", "-p", r#"{"spec":{"minAvailable":0}}"#])?;
    context.path_becomes("pdb/moored", "{.status.disruptionsAllowed}", "1")?;
    let gone = context.slow().call(&format!("drain {node} --pod-selector=app=moored"), "")?;
    let said = format!(
        "node/{node} already cordoned\nevicting pod verbs/moored-0\npod/moored-0 evicted\nnode/{node} drained\n"
    );
    ensure!(gone.stdout == said && gone.stderr.is_empty(), "{gone}");
    context.prints(&format!("uncordon {node}"), &format!("node/{node} uncordoned\n"))?;
    super::poll::until("another pod moored-0", super::PATIENCE, || {
        let uid = context.path("pod/moored-0", "{.metadata.uid}")?;
        ensure!(uid != before, "still the old pod");
        Ok(())
    })?;
    context.wait("pod/moored-0 --for=condition=Ready")?;
    context.kubectl.run("delete sts/moored pdb/moored").map(drop)
}
