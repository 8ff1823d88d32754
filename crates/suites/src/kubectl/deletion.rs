//! Deletion by name, label and file, with finalizers, owners and namespaces.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{KubectlCheck, KubectlContext, NAMESPACE, config_map, contains};
use harness::poll;

pub(super) const CHECKS: &[KubectlCheck] = &[
    ("delete --dry-run=server deletes nothing", dry_run),
    ("delete by name, by label, by file, --all", ways),
    ("wait --for=delete ends when the object is gone", wait_delete),
    ("a finalizer holds an object until it is taken off", finalizer),
    ("background: what an owner owns goes after it", background),
    ("orphan: what an owner owned stays, without its reference", orphan),
    ("foreground: the owner waits for what it owns", foreground),
    ("a deleted deployment takes its sets and pods along", deployment),
    ("a deleted namespace takes everything along", namespace),
];

fn dry_run(context: &KubectlContext) -> Result<()> {
    context.apply(&config_map("spared", "v"))?;
    let said = "configmap \"spared\" deleted from verbs namespace (server dry run)\n";
    context.prints("delete cm/spared --dry-run=server", said)?;
    context.kubectl.run("get cm/spared").map(drop)
}

fn ways(context: &KubectlContext) -> Result<()> {
    let deleted = |name: &str| format!("configmap \"{name}\" deleted from verbs namespace\n");
    context.prints("delete cm spared", &deleted("spared"))?;
    context.prints("delete cm -l set=s", &["sel-a", "sel-b", "sel-c"].map(deleted).concat())?;
    let two = config_map("filed-1", "v") + &config_map("filed-2", "v");
    context.kubectl.run_with("create -f -", &two)?;
    context.prints_for("delete -f -", &two, &["filed-1", "filed-2"].map(deleted).concat())?;
    context.kubectl.run("create secret generic one --from-literal=a=b")?;
    context.says("delete secrets --all", &["secret \"one\" deleted from verbs namespace\n"])?;
    ensure!(context.kubectl.run("get secrets -o name")?.is_empty(), "secrets are left");
    Ok(())
}

fn wait_delete(context: &KubectlContext) -> Result<()> {
    context.apply(&config_map("leaving", "v"))?;
    let waiting = context.kubectl.clone();
    let waiter = std::thread::spawn(move || waiting.run("wait cm/leaving --for=delete --timeout=30s"));
    std::thread::sleep(Duration::from_millis(500));
    context.kubectl.run("delete cm/leaving")?;
    let out = waiter.join().map_err(|_| anyhow::anyhow!("the waiting thread panicked"))??;
    contains("wait", &out, &["configmap/leaving condition met"])
}

fn finalizer(context: &KubectlContext) -> Result<()> {
    context.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: held, finalizers: [example.com/hold]}}")?;
    context.kubectl.run("delete cm/held --wait=false")?;
    ensure!(!context.path("cm/held", "{.metadata.deletionTimestamp}")?.is_empty(), "no deletionTimestamp");
    let add = r#"{"metadata":{"finalizers":["example.com/hold","example.com/late"]}}"#;
    let output = context.kubectl.call_with(&["patch", "cm/held", "--type=merge", "-p", add], "", &[])?;
    ensure!(output.code == Some(1) && output.stderr.contains("no new finalizers can be added"), "{output}");
    context.kubectl.run_args(&["patch", "cm/held", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    context.refuses("get cm/held", "", &["(NotFound)"])
}

/// An owner and one object it owns.
fn family(context: &KubectlContext, owner: &str, child: &str, block: bool) -> Result<()> {
    context.apply(&config_map(owner, "v"))?;
    let uid = context.path(&format!("cm/{owner}"), "{.metadata.uid}")?;
    context.apply(&format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {child}, ownerReferences: [{{apiVersion: v1,
           kind: ConfigMap, name: {owner}, uid: {uid}, blockOwnerDeletion: {block}}}]}}}}"
    ))?;
    Ok(())
}

fn wait_until_gone(context: &KubectlContext, object: &str) -> Result<()> {
    poll::until("garbage collection", Duration::from_secs(60), || {
        context.refuses(&format!("get {object}"), "", &["(NotFound)"])
    })
}

fn background(context: &KubectlContext) -> Result<()> {
    family(context, "parent-b", "child-b", false)?;
    context.kubectl.run("delete cm/parent-b")?;
    wait_until_gone(context, "cm/child-b")
}

fn orphan(context: &KubectlContext) -> Result<()> {
    family(context, "parent-o", "child-o", false)?;
    let slow = context.kubectl.within(Duration::from_secs(90));
    slow.run("delete cm/parent-o --cascade=orphan")?;
    wait_until_gone(context, "cm/parent-o")?;
    context.path_is("cm/child-o", "{.metadata.ownerReferences}", "")
}

fn foreground(context: &KubectlContext) -> Result<()> {
    family(context, "parent-f", "child-f", true)?;
    let hold = r#"{"metadata":{"finalizers":["example.com/hold"]}}"#;
    context.kubectl.run_args(&["patch", "cm/child-f", "--type=merge", "-p", hold])?;
    context.kubectl.run("delete cm/parent-f --cascade=foreground --wait=false")?;
    context.path_becomes("cm/child-f", "{.metadata.finalizers}", r#"["example.com/hold"]"#)?;
    poll::until("the child is being deleted", Duration::from_secs(60), || {
        ensure!(!context.path("cm/child-f", "{.metadata.deletionTimestamp}")?.is_empty(), "no deletionTimestamp");
        Ok(())
    })?;
    context.path_is("cm/parent-f", "{.metadata.finalizers}", r#"["foregroundDeletion"]"#)?;
    context.kubectl.run_args(&["patch", "cm/child-f", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    wait_until_gone(context, "cm/child-f")?;
    wait_until_gone(context, "cm/parent-f")
}

fn deployment(context: &KubectlContext) -> Result<()> {
    context.kubectl.run("delete deploy/web")?;
    poll::until("sets and pods go", Duration::from_secs(90), || {
        let left = context.kubectl.run("get rs,pods -l app=web -o name")?;
        ensure!(left.is_empty(), "left: {left}");
        Ok(())
    })
}

fn namespace(context: &KubectlContext) -> Result<()> {
    let slow = context.anywhere.within(Duration::from_secs(150));
    contains("delete", &slow.run(&format!("delete namespace {NAMESPACE} --timeout=140s"))?, &["\"verbs\" deleted"])?;
    let out = context.kubectl.run("get cm,secret,sa,deploy,rs,sts,job,pod,svc,pvc,role,rolebinding -o name")?;
    ensure!(out.is_empty(), "left: {out}");
    Ok(())
}
