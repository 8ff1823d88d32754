//! Upstream side of a join: the registration, its Secret, and tokens for the agent.

use std::time::Duration;

use anyhow::{Context as _, bail};
use portolan_types::{
    object,
    placement::{NamespaceMapping, PhysicalClusterSpec},
};
use serde_json::{Value, json};

use super::super::cluster_api::ClusterApi;

/// Annotation with the uid of the namespace `kube-system` of the physical cluster.
const MEMBER: &str = "portolan.dev/member-uid";
/// Time for a physical cluster to become ready.
const READY_TIME: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(300);
const NAMESPACES: &str = "/api/v1/namespaces";

/// Bootstrap token of an agent.
pub(super) struct AgentBootstrap {
    pub(super) token: String,
}

/// Returns the path of a physical cluster.
pub(super) fn path_of(name: &str) -> String {
    format!("/apis/portolan.dev/v1alpha1/physicalclusters/{name}")
}

/// Refuses a name under which another physical cluster is registered.
///
/// # Errors
/// It is taken; the server does not answer.
pub(super) async fn check_same(upstream: &ClusterApi, name: &str, member: &str) -> anyhow::Result<()> {
    let Some(registered) = upstream.get(&path_of(name)).await? else { return Ok(()) };
    if is_of_another(&registered, member) {
        bail!(
            "{name} is registered for another physical cluster; choose another name, or remove it first: portolan cluster unjoin {name}"
        );
    }
    Ok(())
}

/// Refuses a name whose registration was connected and does not say to which physical cluster.
///
/// # Errors
/// It is; the server does not answer.
pub(super) async fn check_named(upstream: &ClusterApi, name: &str, member: &str) -> anyhow::Result<()> {
    let registered = upstream.get(&path_of(name)).await?.unwrap_or_default();
    if is_of_unknown(&registered, member) {
        bail!(
            "{name} is connected to a physical cluster, and its registration does not say to which; choose another name, or replace \
             it with --replace-connection if it is this one"
        );
    }
    Ok(())
}

/// Refuses a name that is registered with another kind of connection than `kind`.
///
/// # Errors
/// It is; the server does not answer.
pub(super) async fn check_kind(upstream: &ClusterApi, name: &str, kind: &str) -> anyhow::Result<()> {
    let registered = upstream.get(&path_of(name)).await?.unwrap_or_default();
    if let Some(other) = other_kind(&registered, kind) {
        bail!(
            "{name} is registered with the connection {other}; choose another name, or replace it with --replace-connection"
        );
    }
    Ok(())
}

/// Returns the kind of connection of a registration, if it is another than `kind`.
fn other_kind<'a>(registered: &'a Value, kind: &str) -> Option<&'a str> {
    let connection = registered["spec"]["connection"].as_object()?;
    connection.iter().filter(|(_, value)| !value.is_null()).map(|(own, _)| own.as_str()).find(|own| *own != kind)
}

/// Returns true if a registration is that of another physical cluster than `member`, as far as both are known.
pub(super) fn is_of_another(registered: &Value, member: &str) -> bool {
    let known = object::annotation(registered, MEMBER).unwrap_or_default();
    !known.is_empty() && !member.is_empty() && known != member
}

/// Returns true if a registration does not say which physical cluster it is for, but was connected to one.
fn is_of_unknown(registered: &Value, member: &str) -> bool {
    let is_named = object::annotation(registered, MEMBER).is_some_and(|known| !known.is_empty());
    let was_connected = registered["status"]["version"].as_str().is_some_and(|version| !version.is_empty());
    !is_named && !member.is_empty() && was_connected
}

/// Connection by an agent.
pub(super) fn tunnel() -> Value {
    json!({"tunnel": {}})
}

/// Connection by the kubeconfig in a Secret, named by namespace and name.
pub(super) fn direct((namespace, name): &(String, String)) -> Value {
    json!({"direct": {"kubeconfigSecretRef": {"namespace": namespace, "name": name, "key": "kubeconfig"}}})
}

/// Applies the Secret with the kubeconfig of a physical cluster, and its namespace. Returns namespace and name.
///
/// # Errors
/// A refusal.
pub(super) async fn apply_secret(
    upstream: &ClusterApi,
    namespace: &str,
    cluster: &str,
    kubeconfig: &str,
) -> anyhow::Result<(String, String)> {
    if upstream.get(&format!("{NAMESPACES}/{namespace}")).await?.is_none() {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        upstream.apply(&object).await.with_context(|| format!("the namespace {namespace} cannot be created"))?;
    }
    let name = format!("{cluster}-kubeconfig");
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": namespace, "name": name},
        "stringData": {"kubeconfig": kubeconfig}});
    upstream.apply(&secret).await.with_context(|| format!("the Secret {namespace}/{name} cannot be stored"))?;
    Ok((namespace.to_owned(), name))
}

/// Registration of a physical cluster.
pub(super) struct Registration<'a> {
    pub(super) name: &'a str,
    /// Uid of its namespace `kube-system`; empty if it is not known.
    pub(super) member: &'a str,
    pub(super) connection: Value,
    /// `namespaceMapping` of a new one; `None` for the server's default.
    pub(super) mapping: Option<NamespaceMapping>,
}

/// Registers a physical cluster, or changes its connection. Other fields of the spec stay.
///
/// # Errors
/// A refusal; a registration that maps namespaces in another way.
pub(super) async fn register(upstream: &ClusterApi, registration: Registration<'_>) -> anyhow::Result<()> {
    let Registration { name, member, connection, mapping } = registration;
    let exists = upstream.get(&path_of(name)).await?;
    if let Some(existing) = exists {
        let spec: PhysicalClusterSpec = serde_json::from_value(existing["spec"].clone()).unwrap_or_default();
        if let Some(wanted) = mapping.filter(|wanted| *wanted != spec.namespace_mapping) {
            bail!(
                "{name} is registered with namespaceMapping: {:?}, which cannot become {wanted:?}; remove it first: portolan cluster unjoin {name}",
                spec.namespace_mapping
            );
        }
        // A merge patch with nulls also replaces a connection that was applied by somebody else.
        let mut whole = json!({"direct": null, "tunnel": null, "simulated": null});
        for (kind, value) in connection.as_object().into_iter().flatten() {
            whole[kind] = value.clone();
        }
        let mut patch = json!({"spec": {"connection": whole}});
        if !member.is_empty() {
            patch["metadata"]["annotations"][MEMBER] = member.into();
        }
        upstream.merge(&path_of(name), &patch).await.with_context(|| format!("{name} cannot be changed"))?;
        return Ok(());
    }
    let mut object = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster",
        "metadata": {"name": name}, "spec": {"connection": connection}});
    if !member.is_empty() {
        object["metadata"]["annotations"] = json!({MEMBER: member});
    }
    if let Some(mapping) = mapping {
        object["spec"]["namespaceMapping"] = serde_json::to_value(mapping)?;
    }
    let path = path_of("");
    upstream
        .create(path.trim_end_matches('/'), &object)
        .await
        .with_context(|| format!("{name} cannot be registered"))?;
    Ok(())
}

/// Creates a bootstrap token for the agent of a physical cluster.
///
/// # Errors
/// A refusal; the physical cluster is not registered.
pub(super) async fn create_token(
    upstream: &ClusterApi,
    name: &str,
    ttl: Option<Duration>,
) -> anyhow::Result<AgentBootstrap> {
    let mut request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    if upstream.get(&path_of(name)).await?.is_none() {
        bail!(
            "no physical cluster \"{name}\" is registered in this workspace; \
             `portolan cluster join {name} --print-command` registers it"
        );
    }
    if let Some(ttl) = ttl {
        request["spec"]["expirationSeconds"] = ttl.as_secs().into();
    }
    let answer = upstream.create(&format!("{}/token", path_of(name)), &request).await;
    let answer = answer.with_context(|| format!("there is no token for the agent of {name}"))?;
    let token = answer["status"]["token"].as_str().context("the server's answer has no token")?.to_owned();
    Ok(AgentBootstrap { token })
}

/// Condition `Ready` of a physical cluster.
pub(super) struct ReadyCondition {
    pub(super) is_true: bool,
    pub(super) text: String,
}

/// Returns the condition `Ready`; `None` before the server has looked at the current registration.
pub(super) fn ready(physical: &Value) -> Option<ReadyCondition> {
    let conditions = physical["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    // One about an earlier connection says nothing.
    if ready["observedGeneration"].as_i64().unwrap_or_default() < physical["metadata"]["generation"].as_i64()? {
        return None;
    }
    let text = |key: &str| ready[key].as_str().unwrap_or_default();
    Some(ReadyCondition { is_true: text("status") == "True", text: format!("{}: {}", text("reason"), text("message")) })
}

/// Waits until a physical cluster is ready, and returns it.
///
/// # Errors
/// The reason that it is not, after a minute.
pub(super) async fn wait_ready(upstream: &ClusterApi, name: &str) -> anyhow::Result<Value> {
    let mut last = "the server has not looked at it yet".to_owned();
    let waiting = async {
        loop {
            let physical = upstream.get(&path_of(name)).await?.unwrap_or_default();
            match ready(&physical) {
                Some(ready) if ready.is_true => return anyhow::Ok(physical),
                Some(ready) => last = ready.text,
                None => {}
            }
            tokio::time::sleep(POLL).await;
        }
    };
    match tokio::time::timeout(READY_TIME, waiting).await {
        Ok(done) => done,
        Err(_) => bail!("{name} is registered, and not ready after a minute\n  why:  {last}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_about_an_earlier_connection_is_none() {
        for (observed, expected) in [(json!(2), Some(true)), (json!(1), None), (Value::Null, None)] {
            let condition = json!({"type": "Ready", "status": "True", "observedGeneration": observed});
            let physical = json!({"metadata": {"generation": 2}, "status": {"conditions": [condition]}});
            assert_eq!(ready(&physical).map(|ready| ready.is_true), expected, "{observed}");
        }
    }

    #[test]
    fn registrations_are_not_taken_over() {
        let registered = |known: &str, version: &str| json!({"metadata": {"annotations": {MEMBER: known}}, "status": {"version": version}});
        for (case, registered, member, is_another, is_unknown) in [
            ("the same", registered("a", "v1.36.0"), "a", false, false),
            ("another", registered("b", "v1.36.0"), "a", true, false),
            ("one that was applied by hand and is connected", registered("", "v1.36.0"), "a", false, true),
            ("one whose agent was never there", registered("", ""), "a", false, false),
            ("a printed command knows no physical cluster", registered("a", "v1.36.0"), "", false, false),
        ] {
            assert_eq!(is_of_another(&registered, member), is_another, "{case}");
            assert_eq!(is_of_unknown(&registered, member), is_unknown, "{case}");
        }
    }

    #[test]
    fn another_kind_of_connection_is_found() {
        for (connection, kind, expected) in [
            (json!({"simulated": {}}), "direct", Some("simulated")),
            (json!({"simulated": {}}), "tunnel", Some("simulated")),
            (json!({"direct": {}}), "tunnel", Some("direct")),
            (json!({"tunnel": {}}), "direct", Some("tunnel")),
            (json!({"tunnel": {}}), "tunnel", None),
            (json!({"direct": {}, "tunnel": null}), "direct", None),
            (Value::Null, "tunnel", None),
        ] {
            let registered = json!({"spec": {"connection": connection}});
            assert_eq!(other_kind(&registered, kind), expected, "{registered} {kind}");
        }
    }
}
