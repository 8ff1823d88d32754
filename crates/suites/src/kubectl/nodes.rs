//! Nodes made by hand: cordoned, tainted, drained. No kubelet looks after them.

use anyhow::Result;

use super::{KubectlCheck, KubectlContext};

pub(super) const CHECKS: &[KubectlCheck] = &[
    ("cordon and uncordon say what they did, and what there was to do", cordon),
    ("taint: set, refuse to overwrite, overwrite, remove", taint),
    ("drain of a node without pods cordons it", drain),
];

/// A node without a status.
const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: spare}}";
/// Its taints beside those that a server or its loops add to a node that is not ready.
const TAINTS: &str = "{.spec.taints[?(@.key=='tier')].value}";

fn cordon(context: &KubectlContext) -> Result<()> {
    context.prints_for("create -f -", NODE, "node/spare created\n")?;
    context.prints("cordon spare", "node/spare cordoned\n")?;
    context.prints("cordon spare", "node/spare already cordoned\n")?;
    context.path_is("node/spare", "{.spec.unschedulable}", "true")?;
    context
        .prints("get node spare", "NAME STATUS ROLES AGE VERSION\nspare Unknown,SchedulingDisabled <none> <age>\n")?;
    context.prints("uncordon spare", "node/spare uncordoned\n")?;
    context.prints("uncordon spare", "node/spare already uncordoned\n")?;
    context.path_is("node/spare", "{.spec.unschedulable}", "")?;
    context.refuses("cordon nowhere", "", &["Error from server (NotFound): nodes \"nowhere\" not found"])
}

fn taint(context: &KubectlContext) -> Result<()> {
    context.prints("taint nodes spare tier=web:NoSchedule", "node/spare tainted\n")?;
    context.path_is("node/spare", TAINTS, "web")?;
    let again = "error: node spare already has tier taint(s) with same effect(s) and --overwrite is false\n";
    context.refuses("taint nodes spare tier=db:NoSchedule", "", &[again])?;
    context.prints("taint nodes spare tier=db:NoSchedule --overwrite", "node/spare modified\n")?;
    context.path_is("node/spare", TAINTS, "db")?;
    context.prints("taint nodes spare tier-", "node/spare untainted\n")?;
    context.path_is("node/spare", TAINTS, "")?;
    context.refuses("taint nodes spare tier-", "", &["error: taint \"tier\" not found\n"])
}

fn drain(context: &KubectlContext) -> Result<()> {
    context.prints("drain spare", "node/spare cordoned\nnode/spare drained\n")?;
    context.prints("delete node spare", "node \"spare\" deleted\n")
}
