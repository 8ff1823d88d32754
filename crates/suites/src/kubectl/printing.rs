//! Output of `kubectl get` and `describe`, and the selection of objects.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{KubectlCheck, KubectlContext, config_map, contains};

pub(super) const CHECKS: &[KubectlCheck] = &[
    ("get: columns of the kinds an app team uses", columns),
    ("get -l: equality, sets, absence", label_selectors),
    ("get -L and --show-labels print labels", label_columns),
    ("get --field-selector by name and namespace", field_selectors),
    ("get -o name, custom-columns, jsonpath, go-template, yaml", output_formats),
    ("get --sort-by a field", sort_by),
    ("get --chunk-size pages through a list without loss", chunks),
    ("get -A and several kinds at once", several),
    ("get --watch shows the list, then changes", watch),
    ("get --ignore-not-found is quiet", ignore_not_found),
    ("describe: configmap, secret, service, namespace", describe),
    ("events and get events answer", events),
];

fn columns(context: &KubectlContext) -> Result<()> {
    for (kind, header) in [
        ("configmaps", "NAME DATA AGE"),
        ("secrets", "NAME TYPE DATA AGE"),
        ("serviceaccounts", "NAME AGE"),
        ("namespaces", "NAME STATUS AGE"),
        ("services", "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE"),
        ("ingresses", "NAME CLASS HOSTS ADDRESS PORTS AGE"),
        ("deployments", "NAME READY UP-TO-DATE AVAILABLE AGE"),
        ("statefulsets", "NAME READY AGE"),
        ("jobs", "NAME STATUS COMPLETIONS DURATION AGE"),
        ("poddisruptionbudgets", "NAME MIN AVAILABLE MAX UNAVAILABLE ALLOWED DISRUPTIONS AGE"),
        ("roles", "NAME CREATED AT"),
    ] {
        let manifest = sample(kind);
        if !manifest.is_empty() {
            context.kubectl.run_with("create -f -", &manifest)?;
        }
        let out = context.kubectl.run(&format!("get {kind}"))?;
        let found = out.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(found == header, "columns of {kind}: {found:?}, expected {header:?}");
        if !manifest.is_empty() {
            context.kubectl.run_with("delete -f - --wait=false", &manifest)?;
        }
    }
    Ok(())
}

/// One object of a kind of which no earlier check left any. It runs no pods.
fn sample(kind: &str) -> String {
    let of = |api: &str, kind: &str, rest: &str| {
        format!("{{apiVersion: {api}, kind: {kind}, metadata: {{name: shown}}, {rest}}}")
    };
    let template = "template: {metadata: {labels: {app: shown}}, spec: {containers: [{name: c, image: i}]}}";
    match kind {
        "services" => of("v1", "Service", "spec: {ports: [{port: 80}]}"),
        "ingresses" => of(
            "networking.k8s.io/v1",
            "Ingress",
            "spec: {defaultBackend: {service: {name: shown, port: {number: 80}}}}",
        ),
        "deployments" => of(
            "apps/v1",
            "Deployment",
            &format!("spec: {{replicas: 0, selector: {{matchLabels: {{app: shown}}}}, {template}}}"),
        ),
        "statefulsets" => of(
            "apps/v1",
            "StatefulSet",
            &format!("spec: {{replicas: 0, serviceName: s, selector: {{matchLabels: {{app: shown}}}}, {template}}}"),
        ),
        "jobs" => of(
            "batch/v1",
            "Job",
            "spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}",
        ),
        "poddisruptionbudgets" => of("policy/v1", "PodDisruptionBudget", "spec: {minAvailable: 1}"),
        "roles" => of("rbac.authorization.k8s.io/v1", "Role", "rules: []"),
        _ => String::new(),
    }
}

fn label_selectors(context: &KubectlContext) -> Result<()> {
    for (name, labels) in [("sel-a", "{set: s, tier: web}"), ("sel-b", "{set: s, tier: db}"), ("sel-c", "{set: s}")] {
        context.apply(&format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, labels: {labels}}}}}"))?;
    }
    for (selector, expected) in [
        ("set=s,tier=web", "sel-a"),
        ("set=s,tier!=web", "sel-b sel-c"),
        ("set=s,tier in (web,db)", "sel-a sel-b"),
        ("set=s,tier notin (web)", "sel-b sel-c"),
        ("set=s,!tier", "sel-c"),
        ("set,tier", "sel-a sel-b"),
    ] {
        let out =
            context.kubectl.run_args(&["get", "cm", "-l", selector, "-o", "jsonpath={.items[*].metadata.name}"])?;
        ensure!(out == expected, "{selector}: {out:?}, expected {expected:?}");
    }
    Ok(())
}

fn label_columns(context: &KubectlContext) -> Result<()> {
    context.prints(
        "get cm -l set=s -L tier",
        "NAME DATA AGE TIER\nsel-a 0 <age> web\nsel-b 0 <age> db\nsel-c 0 <age>\n",
    )?;
    context.prints(
        "get cm -l set=s --show-labels",
        "NAME DATA AGE LABELS\nsel-a 0 <age> set=s,tier=web\nsel-b 0 <age> set=s,tier=db\nsel-c 0 <age> set=s\n",
    )
}

fn field_selectors(context: &KubectlContext) -> Result<()> {
    let out = context.kubectl.run("get cm --field-selector metadata.name=sel-b -o name")?;
    ensure!(out.trim() == "configmap/sel-b", "{out}");
    let out = context.anywhere.run("get cm -A --field-selector metadata.namespace=verbs -o name")?;
    contains("-A", &out, &["configmap/sel-a", "configmap/sel-c"])?;
    let out = context.kubectl.run("get cm --field-selector metadata.name!=sel-b -l set=s -o name")?;
    ensure!(out.split_whitespace().eq(["configmap/sel-a", "configmap/sel-c"]), "{out}");
    context.refuses("get cm --field-selector data.k=v", "", &["\"data.k\" is not a known field selector"])
}

fn output_formats(context: &KubectlContext) -> Result<()> {
    for (format, expected) in [
        ("name", "configmap/sel-a\n"),
        ("jsonpath={.metadata.labels.tier}", "web"),
        ("custom-columns=N:.metadata.name,T:.metadata.labels.tier", "N       T\nsel-a   web\n"),
        ("go-template={{.kind}}", "ConfigMap"),
    ] {
        let out = context.kubectl.run(&format!("get cm/sel-a -o {format}"))?;
        ensure!(out == expected, "{format}: {out:?}, expected {expected:?}");
    }
    context.says("get cm/sel-a -o yaml", &["apiVersion: v1\n", "kind: ConfigMap\n", "name: sel-a\n"])?;
    context.says("get cm -l set=s -o yaml", &["kind: List\n"]).map(drop)
}

fn sort_by(context: &KubectlContext) -> Result<()> {
    let args = "get cm -l tier --sort-by=.metadata.labels.tier --no-headers -o custom-columns=N:.metadata.name";
    let out = context.kubectl.run(args)?;
    let names: Vec<&str> = out.split_whitespace().collect();
    let place = |name| names.iter().position(|found| *found == name);
    ensure!(place("sel-b").is_some() && place("sel-b") < place("sel-a"), "order {names:?}");
    Ok(())
}

fn chunks(context: &KubectlContext) -> Result<()> {
    let manifests: String = (0..23).map(|number| config_map(&format!("page-{number:02}"), "v")).collect();
    context.kubectl.run_with("create -f -", &manifests)?;
    let out = context.kubectl.run("get cm --chunk-size=5 -o name")?;
    let pages: Vec<&str> = out.lines().filter(|name| name.contains("/page-")).collect();
    let expected: Vec<String> = (0..23).map(|number| format!("configmap/page-{number:02}")).collect();
    ensure!(pages == expected, "{pages:?}");
    context.kubectl.run_with("delete -f - --wait=false", &manifests).map(drop)
}

fn several(context: &KubectlContext) -> Result<()> {
    context.says("get cm,secret,sa", &["configmap/sel-a", "secret/hush", "serviceaccount/default"])?;
    let out = context.anywhere.run("get serviceaccounts -A")?;
    contains("get -A", &out, &["NAMESPACE", "kube-system", "verbs"])?;
    context.kubectl.run("get all").map(drop)
}

fn watch(context: &KubectlContext) -> Result<()> {
    let watching = context.kubectl.clone();
    let watcher = std::thread::spawn(move || {
        watching.call("get cm -l seen --watch --output-watch-events --request-timeout=4s", "")
    });
    std::thread::sleep(Duration::from_millis(1000));
    context.kubectl.run("create configmap watched --from-literal=a=b")?;
    context.kubectl.run("label cm/watched seen=yes")?;
    context.kubectl.run("annotate cm/watched note=x")?;
    context.kubectl.run("label cm/watched seen-")?;
    let output = watcher.join().map_err(|_| anyhow::anyhow!("the watching thread panicked"))??;
    let events: Vec<&str> = output.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
    // An object that stops matching is deleted from this watch's point of view.
    ensure!(events == ["EVENT", "ADDED", "MODIFIED", "DELETED"], "{output}");
    Ok(())
}

fn ignore_not_found(context: &KubectlContext) -> Result<()> {
    let output = context.kubectl.call("get cm/never-made --ignore-not-found", "")?;
    ensure!(output.code == Some(0) && output.stdout.is_empty(), "{output}");
    Ok(())
}

const DESCRIBED_CONFIG_MAP: &str = "Name: sel-a
Namespace: verbs
Labels: set=s
              tier=web
Annotations: <none>

Data
====

BinaryData
====

Events: <none>
";

const DESCRIBED_SECRET: &str = "Name: hush
Namespace: verbs
Labels: <none>
Annotations: <none>

Type: Opaque

Data
====
password: 6 bytes
";

fn describe(context: &KubectlContext) -> Result<()> {
    context.prints("describe cm/sel-a", DESCRIBED_CONFIG_MAP)?;
    context.prints("describe secret/hush", DESCRIBED_SECRET)?;
    context.kubectl.run("create service clusterip told --tcp=80:8080")?;
    context.says("describe service/told", &["Selector:", "app=told", "Port:", "80/TCP", "TargetPort:", "8080/TCP"])?;
    context.kubectl.run("delete service/told")?;
    let out = context.anywhere.run("describe namespace/verbs")?;
    contains("describe", &out, &["Name:         verbs", "Status:       Active"])
}

fn events(context: &KubectlContext) -> Result<()> {
    let uid = context.path("cm/sel-a", "{.metadata.uid}")?;
    let event = format!(
        "{{apiVersion: v1, kind: Event, metadata: {{name: told}}, reason: Told, message: by hand, type: Normal, count: 1,
           involvedObject: {{apiVersion: v1, kind: ConfigMap, name: sel-a, namespace: verbs, uid: {uid}}},
           lastTimestamp: 2026-01-01T00:00:00Z}}"
    );
    context.kubectl.run_with("create -f -", &event)?;
    context.says("get events", &["LAST SEEN", "Told", "configmap/sel-a", "by hand"])?;
    let told = "LAST SEEN TYPE REASON OBJECT MESSAGE\n<age> Normal Told configmap/sel-a by hand\n";
    context.prints("get events --field-selector involvedObject.name=sel-a,reason=Told", told)?;
    context.says("events --for cm/sel-a", &["Told", "ConfigMap/sel-a"])?;
    context.says("describe cm/sel-a", &["Told", "by hand"]).map(drop)
}
