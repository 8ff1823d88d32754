//! Downstream side of a join: preflight, the account of the syncer, and its kubeconfig.

use std::time::Duration;

use anyhow::{Context as _, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube::config::Kubeconfig;
use portolan_types::object;
use serde_json::{Value, json};

use super::{
    super::cluster_api::{ClusterApi, objects_of, path_of},
    manifests,
};

/// Minor versions of Kubernetes that physical clusters may have.
const MINORS: std::ops::RangeInclusive<u32> = 33..=36;
/// Time for Kubernetes to write a token into its Secret.
const TOKEN_TIME: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(200);
/// Secret with the token of the syncer.
const TOKEN: &str = "/api/v1/namespaces/portolan/secrets/syncer";

/// Physical cluster that passed the preflight.
pub(super) struct MemberFacts {
    pub(super) version: String,
    /// Uid of the namespace `kube-system`, which stands for the cluster.
    pub(super) uid: String,
}

/// Checks that the physical cluster answers, has a version that is supported, and that the user may create accounts and
/// roles.
///
/// # Errors
/// All that is missing.
pub(super) async fn preflight(member: &ClusterApi) -> anyhow::Result<MemberFacts> {
    let version = member.get("/version").await?.unwrap_or_default();
    let text = version["gitVersion"].as_str().unwrap_or_default().to_owned();
    let minor = version["minor"].as_str().unwrap_or_default();
    let minor: u32 =
        minor.trim_end_matches('+').parse().with_context(|| format!("{} tells no version", member.server()))?;
    if !MINORS.contains(&minor) {
        bail!("{} runs {text}; Kubernetes 1.{} to 1.{} is supported", member.server(), MINORS.start(), MINORS.end());
    }
    let mut missing = Vec::new();
    for (group, resource) in [
        ("", "namespaces"),
        ("", "serviceaccounts"),
        ("", "secrets"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ] {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "create", "group": group, "resource": resource, "namespace": ""}}});
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = member.create(path, &review).await?;
        if answer["status"]["allowed"] != true {
            missing.push(resource);
        }
    }
    if !missing.is_empty() {
        bail!("the user of the kubeconfig may not create these in {}: {}", member.server(), missing.join(", "));
    }
    Ok(MemberFacts { version: text, uid: uid_of(member).await? })
}

/// Returns the uid of the namespace `kube-system`, which stands for the cluster; empty if there is none.
///
/// # Errors
/// No answer, or a refusal.
pub(super) async fn uid_of(member: &ClusterApi) -> anyhow::Result<String> {
    let system = member.get("/api/v1/namespaces/kube-system").await?;
    Ok(system.map(|system| object::meta_text(&system, "uid").to_owned()).unwrap_or_default())
}

/// Applies the account of the syncer and its roles, and the Secret of its token if `with_token`.
///
/// # Errors
/// The object that was refused.
pub(super) async fn apply_rights(member: &ClusterApi, with_token: bool) -> anyhow::Result<()> {
    apply_manifest(member, &manifests::rights(with_token)?).await
}

/// Applies the objects of a manifest in order.
///
/// # Errors
/// The object that was refused.
pub(super) async fn apply_manifest(member: &ClusterApi, manifest: &str) -> anyhow::Result<()> {
    for object in objects_of(manifest)? {
        let what = format!("{} {}", object["kind"].as_str().unwrap_or_default(), object::name(&object));
        member.apply(&object).await.with_context(|| format!("{what} cannot be applied"))?;
    }
    Ok(())
}

/// Returns the kubeconfig of the syncer: the address and authority of the administrator's, and the account's token.
///
/// # Errors
/// A kubeconfig without an authority; no token in time.
pub(super) async fn syncer_kubeconfig(member: &ClusterApi, admin: &Kubeconfig) -> anyhow::Result<String> {
    let current = admin.current_context.as_deref().unwrap_or_default();
    let context =
        admin.contexts.iter().find(|context| context.name == current).and_then(|named| named.context.as_ref());
    let cluster = context.and_then(|context| admin.clusters.iter().find(|cluster| cluster.name == context.cluster));
    let cluster = cluster.and_then(|named| named.cluster.as_ref()).context("the kubeconfig names no cluster")?;
    let server = cluster.server.as_deref().context("the kubeconfig names no server")?;
    let authority = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(data), _) => data.clone(),
        (None, Some(path)) => STANDARD.encode(std::fs::read(path).with_context(|| format!("{path} cannot be read"))?),
        (None, None) => {
            bail!("the kubeconfig has no certificate-authority-data: the server checks {server} against it")
        }
    };
    let token = token(member).await?;
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "syncer",
        "clusters": [{"name": "member", "cluster": {"server": server, "certificate-authority-data": authority}}],
        "contexts": [{"name": "syncer", "context": {"cluster": "member", "user": "syncer"}}],
        "users": [{"name": "syncer", "user": {"token": token}}],
    });
    Ok(serde_saphyr::to_string(&kubeconfig)?)
}

async fn token(member: &ClusterApi) -> anyhow::Result<String> {
    let reading = async {
        loop {
            let secret = member.get(TOKEN).await?.unwrap_or_default();
            if let Some(encoded) = secret["data"]["token"].as_str() {
                return String::from_utf8(STANDARD.decode(encoded)?).context("the token of the syncer");
            }
            tokio::time::sleep(POLL).await;
        }
    };
    let read = tokio::time::timeout(TOKEN_TIME, reading).await;
    read.context("Kubernetes wrote no token into the Secret portolan/syncer; does its controller manager run?")?
}

/// Deletes the objects that a join has applied, the namespace last.
///
/// # Errors
/// The object that was refused.
pub(super) async fn remove(member: &ClusterApi) -> anyhow::Result<()> {
    let (agent, dns) = (manifests::agent("", "", ""), manifests::dns(""));
    let mut objects: Vec<Value> = objects_of(&format!("{}\n---\n{agent}\n---\n{dns}", manifests::rights(true)?))?;
    objects.extend(super::access::objects()?);
    objects.reverse();
    for object in &objects {
        member
            .delete(&path_of(object)?)
            .await
            .with_context(|| format!("{} cannot be deleted", object::name(object)))?;
    }
    Ok(())
}
