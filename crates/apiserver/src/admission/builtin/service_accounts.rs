//! ServiceAccount admission: a pod runs as the account it names, or as the namespace's `default`, which must exist. The
//! account's token is mounted where clients look for it.

use std::time::Duration;

use portolan_types::{
    GroupResource, Status,
    object::{self, Object, child_mut},
    quoted::go_quoted,
};
use serde_json::{Value, json};

use super::super::{forbidden, lookup};
use crate::hooks::{AdmissionRequest, Operation};
use crate::{request::invalid_client_name, storage::StorageContext};

const DEFAULT: &str = "default";
/// Attempts to find the default account, which is created right after its namespace.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);
const TOKEN_VOLUME: &str = "kube-api-access-";
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Lifetime of a token in seconds. After an hour the server warns clients that do not reread it.
const TOKEN_SECONDS: i64 = 3607;
const SUFFIX: usize = 5;

pub(super) async fn mutate(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    pod: &mut Value,
) -> Result<(), Status> {
    if is_mirror(pod) {
        return validate(storage, request, pod).await;
    }
    let named = account_name(pod).to_owned();
    let name = if named.is_empty() { DEFAULT.to_owned() } else { named };
    if let Some(top) = pod.as_object_mut() {
        let spec = child_mut(top, "spec");
        spec.insert("serviceAccountName".into(), name.as_str().into());
        spec.insert("serviceAccount".into(), name.as_str().into());
    }
    let account = account(storage, request, pod, &name).await?;
    let says = |of: Option<&Value>| of.and_then(|of| of.get("automountServiceAccountToken")?.as_bool());
    if says(pod.get("spec")).or_else(|| says(Some(&account))).unwrap_or(true) {
        let suffix = storage.seams.name_suffix(SUFFIX);
        mount_token(pod, &format!("{TOKEN_VOLUME}{suffix}"));
    }
    take_pull_secrets(pod, &account);
    check_secrets(request, pod, &account)
}

/// Checks that the account exists and that a mirror pod has none.
pub(super) async fn validate(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    pod: &Value,
) -> Result<(), Status> {
    if request.operation == Operation::Create && is_mirror(pod) {
        return check_mirror(request, pod);
    }
    let name = account_name(pod);
    if name.is_empty() {
        let why = format!("no service account specified for pod {}/{}", request.namespace, object::name(pod));
        return Err(forbidden(request, Some(pod), why));
    }
    let account = account(storage, request, pod, name).await?;
    check_secrets(request, pod, &account)
}

fn account_name(pod: &Value) -> &str {
    let spec = |key: &str| pod.get("spec").and_then(|spec| spec.get(key)?.as_str()).filter(|name| !name.is_empty());
    spec("serviceAccountName").or_else(|| spec("serviceAccount")).unwrap_or_default()
}

fn is_mirror(pod: &Value) -> bool {
    object::annotation(pod, "kubernetes.io/config.mirror").is_some()
}

async fn account(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    pod: &Value,
    name: &str,
) -> Result<Value, Status> {
    let attempts = if name == DEFAULT { ATTEMPTS } else { 1 };
    for attempt in 0..attempts {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let resource = GroupResource::new("", "serviceaccounts");
        if let Some(found) = lookup::namespaced(storage, request, resource, name).await? {
            return Ok(found);
        }
    }
    let at = format!("{}/{name}", request.namespace);
    let why = invalid_client_name(name).unwrap_or_else(|| format!("serviceaccount {} not found", go_quoted(name)));
    Err(forbidden(request, Some(pod), format!("error looking up service account {at}: {why}")))
}

fn take_pull_secrets(pod: &mut Value, account: &Value) {
    let has = pod.pointer("/spec/imagePullSecrets").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    let own: Vec<Value> = names_of(account, "imagePullSecrets").map(|name| json!({"name": name})).collect();
    if let Some(top) = pod.as_object_mut().filter(|_| !has && !own.is_empty()) {
        child_mut(top, "spec").insert("imagePullSecrets".into(), own.into());
    }
}

fn names_of<'a>(account: &'a Value, key: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let list = account.get(key).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|reference| reference.get("name")?.as_str())
}

/// Mounts the token into each container that mounts nothing at its path.
fn mount_token(pod: &mut Value, fresh: &str) {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let own = volumes.filter_map(|volume| volume.get("name")?.as_str()).find(|name| name.starts_with(TOKEN_VOLUME));
    let (name, has_volume) = (own.unwrap_or(fresh).to_owned(), own.is_some());
    let mut needed = false;
    for key in ["initContainers", "containers"] {
        let list = pod.pointer_mut(&format!("/spec/{key}")).and_then(Value::as_array_mut);
        for container in list.into_iter().flatten().filter_map(Value::as_object_mut) {
            needed |= mount(container, &name);
        }
    }
    let Some(top) = pod.as_object_mut().filter(|_| needed && !has_volume) else { return };
    push(child_mut(top, "spec"), "volumes", token_volume(&name));
}

/// Adds the mount if it is missing; returns true if it was.
fn mount(container: &mut Object, volume: &str) -> bool {
    let mounts = container.get("volumeMounts").and_then(Value::as_array).into_iter().flatten();
    if mounts.into_iter().any(|mount| mount["mountPath"] == TOKEN_PATH) {
        return false;
    }
    push(container, "volumeMounts", json!({"name": volume, "readOnly": true, "mountPath": TOKEN_PATH}));
    true
}

fn push(parent: &mut Object, key: &str, item: Value) {
    let list = parent.entry(key).or_insert_with(|| json!([]));
    match list.as_array_mut() {
        Some(list) => list.push(item),
        None => *list = json!([item]),
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {
        "defaultMode": 0o644,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
            ]}},
        ],
    }})
}

fn check_mirror(request: &AdmissionRequest<'_>, pod: &Value) -> Result<(), Status> {
    let refuse = |why: &str| Err(forbidden(request, Some(pod), why));
    if !account_name(pod).is_empty() {
        return refuse("a mirror pod may not reference service accounts");
    }
    let volumes = || pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let by_volume = volumes().any(|volume| volume.get("secret").is_some_and(|secret| !secret.is_null()));
    if by_volume || secrets(pod).next().is_some() {
        return refuse("a mirror pod may not reference secrets");
    }
    let sources = volumes().filter_map(|volume| volume.pointer("/projected/sources")?.as_array()).flatten();
    if sources.into_iter().any(|source| source.get("serviceAccountToken").is_some_and(|token| !token.is_null())) {
        refuse("a mirror pod may not use ServiceAccountToken volume projections")
    } else {
        Ok(())
    }
}

/// Returns the secrets in the environment of containers: type and name of the container, form of the reference, and
/// secret.
fn secrets(pod: &Value) -> impl Iterator<Item = (&'static str, &str, String, &str)> {
    let kinds = [
        ("initContainers", "init container"),
        ("containers", "container"),
        ("ephemeralContainers", "ephemeral container"),
    ];
    kinds.into_iter().flat_map(move |(key, kind)| {
        let list = pod.pointer(&format!("/spec/{key}")).and_then(Value::as_array).into_iter().flatten();
        list.flat_map(move |container| {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            let env = container.get("env").and_then(Value::as_array).into_iter().flatten();
            let by_key = env.filter_map(move |entry| {
                let variable = entry.get("name").and_then(Value::as_str).unwrap_or_default();
                let secret = entry.pointer("/valueFrom/secretKeyRef/name")?.as_str()?;
                Some((kind, name, format!("envVar {variable}"), secret))
            });
            let from = container.get("envFrom").and_then(Value::as_array).into_iter().flatten();
            let whole = from.filter_map(move |entry| {
                Some((kind, name, "envFrom".to_owned(), entry.pointer("/secretRef/name")?.as_str()?))
            });
            by_key.chain(whole)
        })
    })
}

/// Checks that a pod uses only its account's secrets, if the account demands that.
fn check_secrets(request: &AdmissionRequest<'_>, pod: &Value, account: &Value) -> Result<(), Status> {
    let enforced = object::annotation(account, "kubernetes.io/enforce-mountable-secrets");
    if !matches!(enforced, Some("1" | "t" | "T" | "true" | "TRUE" | "True")) {
        return Ok(());
    }
    let refuse = |why: String| Err(forbidden(request, Some(pod), why));
    let own = object::name(account);
    let because = format!("is not allowed because service account {own} does not reference that");
    let known = |secret: &str| names_of(account, "secrets").any(|name| name == secret);
    let only_new = request.subresource == "ephemeralcontainers";
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let mut mounted = volumes.filter_map(|volume| volume.pointer("/secret/secretName")?.as_str());
    if let Some(secret) = mounted.find(|secret| !only_new && !known(secret)) {
        return refuse(format!("volume with secret.secretName={} {because} secret", go_quoted(secret)));
    }
    let of_stage = |kind: &str| (kind == "ephemeral container") == only_new;
    if let Some((kind, name, how, secret)) = secrets(pod).find(|(kind, .., secret)| of_stage(kind) && !known(secret)) {
        return refuse(format!(
            "{kind} {name} with {how} referencing secret.secretName={} {because} secret",
            go_quoted(secret)
        ));
    }
    let pulled = pod.pointer("/spec/imagePullSecrets").and_then(Value::as_array).into_iter().flatten().enumerate();
    for (at, reference) in pulled {
        let name = reference.get("name").and_then(Value::as_str).unwrap_or_default();
        if !only_new && !names_of(account, "imagePullSecrets").any(|own| own == name) {
            return refuse(format!("imagePullSecrets[{at}].name={} {because} imagePullSecret", go_quoted(name)));
        }
    }
    Ok(())
}
