//! Errors: Kubernetes' own words, and kubectl's own exit codes.

use anyhow::{Result, ensure};

use super::{KubectlCheck, KubectlContext, config_map, refused};

pub(super) const CHECKS: &[KubectlCheck] = &[
    ("not found, already there, unknown kinds", names),
    ("manifests that cannot be", manifests),
    ("an unknown field is refused by strict validation, warned of by warn", unknown_field),
    ("invalid values name their field", invalid_values),
    ("a server that is not there", no_server),
    ("a workspace that is not there is named once", no_workspace),
    ("an unknown API path is 404", unknown_path),
    ("a namespace that is not there", no_namespace),
];

fn names(context: &KubectlContext) -> Result<()> {
    for (args, texts) in [
        ("get cm/nope", &["Error from server (NotFound): configmaps \"nope\" not found"][..]),
        ("delete cm/nope", &["Error from server (NotFound): configmaps \"nope\" not found"]),
        ("get deploy/nope", &["deployments.apps \"nope\" not found"]),
        ("scale deploy/nope --replicas=1", &["deployments.apps \"nope\" not found"]),
        ("patch cm/nope -p {}", &["configmaps \"nope\" not found"]),
        ("create configmap plain", &["failed to create configmap: configmaps \"plain\" already exists"]),
        ("create namespace verbs", &["namespaces \"verbs\" already exists"]),
        ("get nopes", &["the server doesn't have a resource type \"nopes\""]),
        ("explain nopes", &["the server doesn't have a resource type \"nopes\""]),
        ("create configmap Bad_Name", &["is invalid", "metadata.name: Invalid value: \"Bad_Name\"", "RFC 1123"]),
    ] {
        context.refuses(args, "", texts)?;
    }
    Ok(())
}

fn manifests(context: &KubectlContext) -> Result<()> {
    for (case, manifest, texts) in [
        ("an unknown kind", "{apiVersion: v1, kind: Nope, metadata: {name: x}}", &["no matches for kind \"Nope\""][..]),
        ("an unknown group", "{apiVersion: no.pe/v1, kind: Nope, metadata: {name: x}}", &["no matches for kind"]),
        (
            "no name",
            "{apiVersion: v1, kind: ConfigMap}",
            &["metadata.name: Required value: name or generateName is required"],
        ),
        ("not YAML", "{apiVersion: v1, kind: [", &["error parsing"]),
        ("no kind", "{apiVersion: v1, metadata: {name: x}}", &["kind not set"]),
        (
            "another namespace",
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: other}}",
            &["the namespace from the provided object \"other\" does not match"],
        ),
    ] {
        let output = context.kubectl.call("create -f -", manifest)?;
        refused(&output, texts).map_err(|error| error.context(case))?;
    }
    Ok(())
}

fn unknown_field(context: &KubectlContext) -> Result<()> {
    let manifest = "{apiVersion: v1, kind: ConfigMap, metadata: {name: odd}, dta: {k: v}}";
    context.refuses("create -f -", manifest, &["strict decoding error: unknown field \"dta\""])?;
    context.refuses("apply -f -", manifest, &["strict decoding error: unknown field \"dta\""])?;
    let output = context.kubectl.call("create --validate=warn -f -", manifest)?;
    ensure!(output.code == Some(0), "{output}");
    ensure!(output.stderr.contains("Warning: unknown field \"dta\""), "{output}");
    context.kubectl.run("delete cm/odd")?;
    let output = context.kubectl.call("create --validate=false -f -", manifest)?;
    ensure!(output.code == Some(0) && output.stderr.is_empty(), "{output}");
    context.kubectl.run("delete cm/odd").map(drop)
}

fn invalid_values(context: &KubectlContext) -> Result<()> {
    let deployment =
        |spec: &str| format!("{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: bad}}, spec: {{{spec}}}}}");
    let template = "template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: i}]}}";
    for (manifest, texts) in [
        (
            deployment(&format!("selector: {{matchLabels: {{app: other}}}}, {template}")),
            &["The Deployment \"bad\" is invalid", "spec.template.metadata.labels", "`selector` does not match"][..],
        ),
        (deployment(&format!("replicas: -1, selector: {{matchLabels: {{app: x}}}}, {template}")), &["spec.replicas"]),
        (
            deployment("selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {}}"),
            &["spec.template.spec.containers: Required value"],
        ),
        (
            "{apiVersion: v1, kind: Service, metadata: {name: bad}, spec: {ports: [{port: 0}]}}".to_owned(),
            &["spec.ports[0].port: Invalid value: 0", "between 1 and 65535"],
        ),
        (
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: bad}, data: {'a b': x}}".to_owned(),
            &["data[a b]: Invalid value: \"a b\""],
        ),
        (
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: bad, labels: {'-': x}}}".to_owned(),
            &["metadata.labels: Invalid value: \"-\""],
        ),
        (
            "{apiVersion: apps/v1, kind: Deployment, metadata: {name: bad}, spec: {replicas: many}}".to_owned(),
            &["(BadRequest)", "cannot be handled as a Deployment"],
        ),
    ] {
        refused(&context.kubectl.call("create --validate=false -f -", &manifest)?, texts)?;
    }
    Ok(())
}

fn no_server(context: &KubectlContext) -> Result<()> {
    let away = context.kubectl.config().with_server("https://127.0.0.1:9");
    let output = context.kubectl.with_config(&away, "away")?.call("get cm", "")?;
    refused(&output, &["The connection to the server 127.0.0.1:9 was refused"])
}

fn no_workspace(context: &KubectlContext) -> Result<()> {
    let config = context.kubectl.config();
    let (server, _) = config.server().split_once("/clusters/").unwrap_or((config.server(), ""));
    let nowhere = config.with_server(&format!("{server}/clusters/root:nope"));
    let kubectl = context.kubectl.with_config(&nowhere, "nowhere")?;
    for command in ["get pods", "get deployments.apps web", "delete cm x"] {
        let output = kubectl.call(command, "")?;
        let (begins, ends) = ("Error from server (NotFound): ", "workspace \"root:nope\" not found");
        let told = output.stderr.trim();
        let is_told_once = told.starts_with(begins) && told.ends_with(ends) && told.lines().count() == 1;
        ensure!(output.code == Some(1) && is_told_once, "{command}: {output}");
    }
    Ok(())
}

fn unknown_path(context: &KubectlContext) -> Result<()> {
    let output = context.anywhere.call("get --raw /apis/no.pe/v1/things", "")?;
    refused(&output, &["(NotFound)", "the server could not find the requested resource"])
}

fn no_namespace(context: &KubectlContext) -> Result<()> {
    let elsewhere = context.anywhere.in_namespace("nowhere");
    refused(&elsewhere.call("create -f -", &config_map("x", "v"))?, &["namespaces \"nowhere\" not found"])?;
    let output = elsewhere.call("get cm", "")?;
    ensure!(output.code == Some(0) && output.stderr.contains("No resources found in nowhere namespace."), "{output}");
    Ok(())
}
