//! Writes of objects: create, apply, patch, edit, replace, label, and their diffs.

use anyhow::{Result, ensure};

use super::{KubectlCheck, KubectlContext, config_map, contains, refused};

pub(super) const CHECKS: &[KubectlCheck] = &[
    ("create configmap from literals and read it back", create_config_map),
    ("create secret: values are base64, the type is kept", create_secret),
    ("create -f: several documents and kinds in one file", create_documents),
    ("create: generateName makes a name", generate_name),
    ("create --dry-run=server answers and stores nothing", create_dry_run),
    ("create: the other generators are accepted", generators),
    ("apply: created, unchanged, configured", apply),
    ("apply: a key taken out of the manifest goes, others' keys stay", apply_prunes_fields),
    ("apply --dry-run=server stores nothing", apply_dry_run),
    ("apply --server-side: owners, a conflict, and --force-conflicts", server_side_apply),
    ("diff: exit code 0 when equal, 1 and a diff when not", diff),
    ("patch: merge, JSON and strategic merge", patch),
    ("patch --subresource=status changes status and no generation", patch_status),
    ("patch: a failing JSON test changes nothing", patch_test),
    ("edit: the editor's change is stored", edit),
    ("edit: no change is no write", edit_nothing),
    ("replace: the object is as in the file", replace),
    ("replace: a stale resourceVersion is a conflict", replace_stale),
    ("replace --force makes a new object", replace_force),
    ("label: set, refuse to overwrite, overwrite, remove", label),
    ("annotate: set and remove", annotate),
    ("set: env, resources, service account", set),
    ("an immutable configmap refuses a change", immutable),
    ("generation: spec changes count, metadata changes do not", generation),
];

fn create_config_map(context: &KubectlContext) -> Result<()> {
    let args = "create configmap plain --from-literal=color=blue --from-literal=size=9";
    context.prints(args, "configmap/plain created\n")?;
    context.path_is("cm/plain", "{.data.color}/{.data.size}", "blue/9")?;
    for path in ["{.metadata.uid}", "{.metadata.resourceVersion}", "{.metadata.creationTimestamp}"] {
        ensure!(!context.path("cm/plain", path)?.is_empty(), "{path} is empty");
    }
    Ok(())
}

fn create_secret(context: &KubectlContext) -> Result<()> {
    context.prints("create secret generic hush --from-literal=password=s3cret", "secret/hush created\n")?;
    context.path_is("secret/hush", "{.data.password} {.type}", "czNjcmV0 Opaque")?;
    context.prints("get secret/hush", "NAME TYPE DATA AGE\nhush Opaque 1 <age>\n")
}

fn create_documents(context: &KubectlContext) -> Result<()> {
    let service = "{apiVersion: v1, kind: Service, metadata: {name: two}, spec: {ports: [{port: 80}]}}";
    let out = context.kubectl.run_with("create -f -", &format!("{}{service}", config_map("one", "1")))?;
    ensure!(out == "configmap/one created\nservice/two created\n", "{out}");
    // Defaults of the server.
    context.path_is("svc/two", "{.spec.type} {.spec.ports[0].protocol}", "ClusterIP TCP")?;
    context.path_is("svc/two", "{.spec.ports[0].targetPort} {.spec.sessionAffinity}", "80 None")?;
    context.kubectl.run("delete cm/one svc/two").map(drop)
}

fn generate_name(context: &KubectlContext) -> Result<()> {
    let manifest = "{apiVersion: v1, kind: ConfigMap, metadata: {generateName: made-, labels: {made: here}}}";
    let first = context.kubectl.run_with("create -f - -o name", manifest)?;
    let second = context.kubectl.run_with("create -f - -o name", manifest)?;
    ensure!(first.starts_with("configmap/made-") && first != second, "names {first:?} and {second:?}");
    context.kubectl.run("delete cm -l made=here").map(drop)
}

fn create_dry_run(context: &KubectlContext) -> Result<()> {
    let args = "create configmap ghost --from-literal=a=b --dry-run=server";
    context.prints(args, "configmap/ghost created (server dry run)\n")?;
    context.says(&format!("{args} -o yaml"), &["uid:", "creationTimestamp:"])?;
    context.refuses("get cm/ghost", "", &["(NotFound)"])
}

fn generators(context: &KubectlContext) -> Result<()> {
    for (args, created) in [
        ("serviceaccount robot", "serviceaccount/robot created"),
        ("role reader --verb=get,list --resource=configmaps", "role.rbac.authorization.k8s.io/reader created"),
        ("quota cap --hard=pods=1000", "resourcequota/cap created"),
        ("poddisruptionbudget keep --selector=app=x --min-available=1", "poddisruptionbudget.policy/keep created"),
        ("ingress web --rule=shop.example/*=two:80", "ingress.networking.k8s.io/web created"),
        ("cronjob tick --image=busybox:1 --schedule=0_0_1_1_*", "cronjob.batch/tick created"),
        ("service clusterip plain --tcp=80:8080", "service/plain created"),
    ] {
        let args: Vec<String> = args.split(' ').map(|arg| arg.replace("0_0_1_1_*", "0 0 1 1 *")).collect();
        let mut all = vec!["create"];
        all.extend(args.iter().map(String::as_str));
        let out = context.kubectl.run_args(&all)?;
        ensure!(out == format!("{created}\n"), "{args:?} prints {out:?}");
    }
    context.kubectl.run("delete role/reader quota/cap pdb/keep ingress/web cronjob/tick service/plain").map(drop)
}

fn apply(context: &KubectlContext) -> Result<()> {
    for (value, said) in [("x", "created"), ("x", "unchanged"), ("new", "configured")] {
        let out = context.apply(&config_map("applied", value))?;
        ensure!(out == format!("configmap/applied {said}\n"), "{out}");
    }
    context.path_is("cm/applied", "{.data.k}", "new")
}

fn apply_prunes_fields(context: &KubectlContext) -> Result<()> {
    let with =
        |data: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: pruned}}, data: {{{data}}}}}");
    context.apply(&with("a: '1', b: '2'"))?;
    context.kubectl.run_args(&["patch", "cm/pruned", "--type=merge", "-p", r#"{"data":{"other":"3"}}"#])?;
    context.apply(&with("a: '1'"))?;
    context.path_is("cm/pruned", "{.data}", r#"{"a":"1","other":"3"}"#)
}

fn apply_dry_run(context: &KubectlContext) -> Result<()> {
    let out = context.kubectl.run_with("apply --dry-run=server -f -", &config_map("applied", "z"))?;
    ensure!(out == "configmap/applied configured (server dry run)\n", "{out}");
    context.path_is("cm/applied", "{.data.k}", "new")
}

fn server_side_apply(context: &KubectlContext) -> Result<()> {
    let as_manager = |manager: &str, value: &str, more: &str| {
        let args = format!("apply --server-side --field-manager={manager} {more} -f -");
        context.kubectl.call(&args, &config_map("owned", value))
    };
    let out = as_manager("first", "a", "")?;
    ensure!(out.stdout == "configmap/owned serverside-applied\n", "{out}");
    refused(&as_manager("second", "b", "")?, &["conflict with \"first\"", ".data.k"])?;
    context.path_is("cm/owned", "{.data.k}", "a")?;
    as_manager("second", "b", "--force-conflicts")?;
    context.path_is("cm/owned", "{.data.k}", "b")?;
    let out = context.kubectl.run("get cm/owned -o yaml --show-managed-fields")?;
    contains("managedFields", &out, &["manager: second", "operation: Apply", "f:data"])
}

fn diff(context: &KubectlContext) -> Result<()> {
    let same = context.kubectl.call("diff -f -", &config_map("applied", "new"))?;
    ensure!(same.code == Some(0), "{same}");
    let other = context.kubectl.call("diff -f -", &config_map("applied", "changed"))?;
    ensure!(other.code == Some(1), "{other}");
    contains("diff", &other.stdout, &["-  k: new", "+  k: changed"])
}

fn patch(context: &KubectlContext) -> Result<()> {
    for (kind, body, data) in [
        ("merge", r#"{"data":{"color":"red","size":null}}"#, r#"{"color":"red"}"#),
        ("json", r#"[{"op":"add","path":"/data/size","value":"7"}]"#, r#"{"color":"red","size":"7"}"#),
        ("strategic", r#"{"data":{"size":"8"}}"#, r#"{"color":"red","size":"8"}"#),
    ] {
        let out = context.kubectl.run_args(&["patch", "cm/plain", "--type", kind, "-p", body])?;
        ensure!(out == "configmap/plain patched\n", "{kind}: {out}");
        context.path_is("cm/plain", "{.data}", data)?;
    }
    context.prints("patch cm/plain --type=merge -p {}", "configmap/plain patched (no change)\n")?;
    strategic_lists(context)
}

/// Lists with a merge key are merged by it, and deleted from by a directive.
fn strategic_lists(context: &KubectlContext) -> Result<()> {
    context.kubectl.run("create deployment lists --image=one:1 --replicas=0")?;
    let add = r#"{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"two:1"}]}}}}"#;
    context.kubectl.run_args(&["patch", "deploy/lists", "-p", add])?;
    let names = "{.spec.template.spec.containers[*].name}";
    let found = context.path("deploy/lists", names)?;
    ensure!(found.contains("one") && found.contains("side"), "containers {found:?}");
    let remove = r#"{"spec":{"template":{"spec":{"containers":[{"name":"side","$patch":"delete"}]}}}}"#;
    context.kubectl.run_args(&["patch", "deploy/lists", "-p", remove])?;
    context.path_is("deploy/lists", names, "one")?;
    context.kubectl.run("delete deploy/lists").map(drop)
}

fn patch_status(context: &KubectlContext) -> Result<()> {
    let hpa = "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: sub}, spec: {minAvailable: 1}}";
    context.apply(hpa)?;
    // No controller of this suite writes the field, so the value stays.
    let body = r#"{"status":{"conditions":[{"type":"Seen","status":"True","reason":"Test","message":"",
        "lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#;
    context.kubectl.run_args(&["patch", "pdb/sub", "--subresource=status", "--type=merge", "-p", body])?;
    context.path_is("pdb/sub", "{.status.conditions[?(@.type=='Seen')].status} {.metadata.generation}", "True 1")?;
    let spec = r#"{"status":{"currentHealthy":99}}"#;
    context.kubectl.run_args(&["patch", "pdb/sub", "--type=merge", "-p", spec])?;
    ensure!(
        context.path("pdb/sub", "{.status.currentHealthy}")? != "99",
        "status was written through the main resource"
    );
    context.kubectl.run("delete pdb/sub").map(drop)
}

fn patch_test(context: &KubectlContext) -> Result<()> {
    let body = r#"[{"op":"test","path":"/data/size","value":"0"},{"op":"remove","path":"/data/size"}]"#;
    let output = context.kubectl.call_with(&["patch", "cm/plain", "--type=json", "-p", body], "", &[])?;
    ensure!(output.code == Some(1), "{output}");
    context.path_is("cm/plain", "{.data.size}", "8")
}

fn edit(context: &KubectlContext) -> Result<()> {
    let editor = [("KUBE_EDITOR", "sed -i s/red/green/")];
    let output = context.kubectl.call_with(&["edit", "cm/plain"], "", &editor)?;
    ensure!(output.code == Some(0), "{output}");
    ensure!(output.stdout == "configmap/plain edited\n", "{output}");
    context.path_is("cm/plain", "{.data.color}", "green")
}

fn edit_nothing(context: &KubectlContext) -> Result<()> {
    let before = context.path("cm/plain", "{.metadata.resourceVersion}")?;
    let output = context.kubectl.call_with(&["edit", "cm/plain"], "", &[("KUBE_EDITOR", "true")])?;
    ensure!(output.stderr == "Edit cancelled, no changes made.\n", "{output}");
    context.path_is("cm/plain", "{.metadata.resourceVersion}", &before)
}

fn replace(context: &KubectlContext) -> Result<()> {
    let out = context.kubectl.run_with("replace -f -", &config_map("plain", "only"))?;
    ensure!(out == "configmap/plain replaced\n", "{out}");
    context.path_is("cm/plain", "{.data}", r#"{"k":"only"}"#)
}

fn replace_stale(context: &KubectlContext) -> Result<()> {
    let old = context.kubectl.run("get cm/plain -o yaml")?;
    context.kubectl.run("label cm/plain moved=on")?;
    let texts = ["(Conflict)", "the object has been modified; please apply your changes to the latest version"];
    context.refuses("replace -f -", &old, &texts)
}

fn replace_force(context: &KubectlContext) -> Result<()> {
    let uid = context.path("cm/plain", "{.metadata.uid}")?;
    context.kubectl.run_with("replace --force -f -", &config_map("plain", "again"))?;
    ensure!(context.path("cm/plain", "{.metadata.uid}")? != uid, "the uid is still {uid}");
    Ok(())
}

fn label(context: &KubectlContext) -> Result<()> {
    context.prints("label cm/plain tier=web team=a", "configmap/plain labeled\n")?;
    context.refuses("label cm/plain tier=db", "", &["already has a value (web), and --overwrite is false"])?;
    context.prints("label cm/plain tier=db --overwrite", "configmap/plain labeled\n")?;
    context.prints("label cm/plain team-", "configmap/plain unlabeled\n")?;
    context.path_is("cm/plain", "{.metadata.labels}", r#"{"tier":"db"}"#)
}

fn annotate(context: &KubectlContext) -> Result<()> {
    context.prints("annotate cm/plain note=hello", "configmap/plain annotated\n")?;
    context.path_is("cm/plain", "{.metadata.annotations.note}", "hello")?;
    context.prints("annotate cm/plain note-", "configmap/plain annotated\n")?;
    context.path_is("cm/plain", "{.metadata.annotations.note}", "")
}

fn set(context: &KubectlContext) -> Result<()> {
    context.kubectl.run("create deployment settings --image=one:1 --replicas=0")?;
    context.prints("set env deploy/settings MODE=fast", "deployment.apps/settings env updated\n")?;
    let updated = "deployment.apps/settings resource requirements updated\n";
    context.prints("set resources deploy/settings --requests=cpu=100m", updated)?;
    context.prints("set serviceaccount deploy/settings robot", "deployment.apps/settings serviceaccount updated\n")?;
    let container = "{.spec.template.spec.containers[0]";
    context.path_is("deploy/settings", &format!("{container}.env[0].value}}"), "fast")?;
    context.path_is("deploy/settings", &format!("{container}.resources.requests.cpu}}"), "100m")?;
    context.path_is("deploy/settings", "{.spec.template.spec.serviceAccountName}", "robot")?;
    context.kubectl.run("delete deploy/settings").map(drop)
}

fn immutable(context: &KubectlContext) -> Result<()> {
    let manifest = |value: &str| {
        format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: stone}}, immutable: true, data: {{k: {value}}}}}")
    };
    context.apply(&manifest("a"))?;
    context.refuses("apply -f -", &manifest("b"), &["is invalid", "field is immutable when `immutable` is set"])?;
    context.kubectl.run("delete cm/stone").map(drop)
}

fn generation(context: &KubectlContext) -> Result<()> {
    context.kubectl.run("create deployment counted --image=one:1 --replicas=0")?;
    context.path_is("deploy/counted", "{.metadata.generation}", "1")?;
    context.kubectl.run("label deploy/counted some=label")?;
    context.path_is("deploy/counted", "{.metadata.generation}", "1")?;
    context.kubectl.run("set image deploy/counted one=one:2")?;
    context.path_is("deploy/counted", "{.metadata.generation}", "2")?;
    context.kubectl.run("delete deploy/counted").map(drop)
}
