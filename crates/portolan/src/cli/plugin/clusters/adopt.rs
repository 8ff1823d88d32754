//! `kubectl portolan adopt`: takes over an object that runs on a physical cluster without Portolan.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use http::Method;
use portolan_syncer::{ADOPTABLE_NAMESPACE, NamespaceIdentity};
use portolan_types::{
    LogicalClusterPath, MonotonicInstant, annotations, object,
    placement::{CopyIdentity, NamespaceMapping, PhysicalClusterSpec},
};
use serde_json::{Map, Value, json};

use super::{RegisteredCluster, path_of};
use crate::cli::plugin::{
    context::PluginContext,
    flags::{OutputFlags, wait_timeout},
    formats,
    placements::{AdoptionState, DryRun, adoption_state, encoded},
    resources::{ObjectArg, ResourceCatalog, ResourceType},
    session::{ApiRequest, ApiSession, JSON, RequestError},
    waiting::{INTERRUPTED, TIMED_OUT, WaitEnd, WaitProgress, wait_until},
};

/// Time in which an object gets a decision of its own, if it is placed by itself.
const DECIDED: Duration = Duration::from_secs(5);

/// Take over an object that runs on a physical cluster: create it in the workspace, pinned there, and wait until it is
/// synced.
///
/// The object stays as it is, unless --overwrite or --allow-restart allow a change. It takes the right to the proxy of
/// the physical cluster, whose namespaces have the names of the workspace's (`namespaceMapping: Identity`), and there
/// the right to annotate the namespace, which releases it to Portolan. Adopt what a workload refers to before the
/// workload.
#[derive(Args)]
pub(crate) struct AdoptArgs {
    /// Object of the physical cluster: TYPE/NAME or TYPE NAME, in the namespace of -n.
    #[arg(value_name = "TYPE/NAME", required = true)]
    object: Vec<String>,
    /// Physical cluster that has the object.
    #[arg(long, value_name = "CLUSTER")]
    from: String,
    /// Overwrite fields that differ from those that the server sets.
    #[arg(long)]
    overwrite: bool,
    /// Allow that the pods of a workload restart: their template gets labels.
    #[arg(long)]
    allow_restart: bool,
    /// Print the object that would be created, and change nothing.
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_value = "none", default_missing_value = "server")]
    dry_run: DryRun,
    /// Wait until the object is taken over.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true",
        action = clap::ArgAction::Set)]
    wait: bool,
    /// Longest wait.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = wait_timeout)]
    timeout: Duration,
    #[command(flatten)]
    format: OutputFlags,
}

impl AdoptArgs {
    /// Runs the command, and returns its exit code.
    ///
    /// # Errors
    /// A refusal; an object that does not exist or cannot be taken over.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<u8> {
        ctx.connect().await?;
        let member = self.member(ctx).await?;
        let (of, found) = self.read(ctx, &member).await?;
        let made = self.adopted(&of, &found)?;
        let path = of.path(&encoded(&ctx.session().namespace), None);
        let is_dry = self.dry_run == DryRun::Server;
        if !is_dry {
            member.release_namespace(ctx).await?;
        }
        let created = ctx.session().create_object(&path, &made, is_dry).await?;
        ctx.print_warnings();
        let title = of.title(object::name(&created));
        match self.format.object_format() {
            Some(format) => formats::print_object(&mut ctx.terminal, &format, &created)?,
            None => ctx.terminal.line(&format!("{title} created{}", if is_dry { " (server dry run)" } else { "" }))?,
        }
        if is_dry || !self.wait { Ok(0) } else { self.follow(ctx, &of, &created).await }
    }

    /// Reads the registration of the physical cluster.
    ///
    /// # Errors
    /// Fails if its namespaces have other names than those of the workspace.
    async fn member(&self, ctx: &PluginContext) -> anyhow::Result<ProxiedCluster> {
        let cluster = RegisteredCluster::read(ctx.session(), &self.from).await?;
        let spec: PhysicalClusterSpec = serde_json::from_value(cluster.object["spec"].clone()).unwrap_or_default();
        if spec.namespace_mapping != NamespaceMapping::Identity {
            bail!(
                "nothing on \"{0}\" can be adopted: its namespaces have other names than those of the workspace\n  \
                 why:  {0} is registered with namespaceMapping: Hashed\n  \
                 fix:  join it with --namespace-mapping identity, which is for a physical cluster of one workspace",
                self.from
            );
        }
        Ok(ProxiedCluster { proxy: format!("{}/proxy", path_of(&self.from)), home: cluster.home })
    }

    /// Reads the object from the physical cluster.
    async fn read(&self, ctx: &PluginContext, member: &ProxiedCluster) -> anyhow::Result<(ResourceType, Value)> {
        let mut args = ObjectArg::parse(&self.object)?;
        let (Some(ObjectArg { kind, name: Some(name) }), None) = (args.pop(), args.pop()) else {
            bail!("name one object: TYPE/NAME")
        };
        let session = ctx.session();
        let read = async |path: &'static str, accept: &'static str| member.read(session, path, accept).await;
        let catalog = ResourceCatalog::discover_with(read).await?;
        let of = catalog.find(&kind)?.clone();
        if !of.is_namespaced {
            bail!("{} is not namespaced: only objects in namespaces are placed", of.title(&name));
        }
        let found = member.read(session, &of.path(&encoded(&session.namespace), Some(&name)), JSON).await?;
        Ok((of, found))
    }

    /// Returns the object of the workspace for one of the physical cluster.
    ///
    /// # Errors
    /// Fails for an object that another one or Portolan controls.
    fn adopted(&self, of: &ResourceType, found: &Value) -> anyhow::Result<Value> {
        let title = of.title(object::name(found));
        if let Some(owner) = object::controller_of(found) {
            let text = |key: &str| owner[key].as_str().unwrap_or_default();
            bail!("{title} belongs to {}/{}: adopt that", text("kind").to_lowercase(), text("name"));
        }
        if CopyIdentity::of(found).is_some() {
            bail!("{title} is a copy of an object of Portolan already");
        }
        let mut made = without_server_fields(found);
        let metadata = made["metadata"].as_object_mut().context("the object has no metadata")?;
        let own = metadata.entry("annotations").or_insert_with(|| json!({}));
        own[annotations::PIN] = self.from.as_str().into();
        own[annotations::ADOPT] = if self.overwrite { "Always" } else { "IfNoDiff" }.into();
        if self.allow_restart {
            own[annotations::ADOPT_RESTART] = "true".into();
        }
        Ok(made)
    }

    async fn follow(&self, ctx: &mut PluginContext, of: &ResourceType, created: &Value) -> anyhow::Result<u8> {
        let title = of.title(object::name(created));
        let progress = WaitProgress::start(&ctx.terminal);
        let started = MonotonicInstant::now();
        let end = wait_until(self.timeout, async || {
            let state = adoption_state(ctx.session(), of, created, &self.from).await?;
            progress.update(0, 1, format!("{title} on {}", self.from));
            Ok(match state {
                AdoptionState::Undecided if started.elapsed() < DECIDED => None,
                AdoptionState::Waiting => None,
                settled => Some(settled),
            })
        })
        .await;
        let took = progress.finish();
        match end? {
            WaitEnd::Reached(AdoptionState::Refused(why)) => bail!(
                "{title} is not adopted: {why}\n  fix:  kubectl annotate {title} {key}=Always --overwrite, or kubectl delete {title}, \
                 which leaves the object of {} as it is",
                self.from,
                key = annotations::ADOPT
            ),
            WaitEnd::Reached(AdoptionState::Undecided) => {
                ctx.terminal
                    .note(&format!("{title} follows the objects that use it, and is adopted with the first of them"));
                Ok(0)
            }
            WaitEnd::Reached(_) => {
                ctx.terminal.note(&format!("{title} of {} is adopted   {took}", self.from));
                Ok(0)
            }
            WaitEnd::TimedOut => {
                ctx.terminal
                    .note(&format!("error: timed out waiting for {title}\n  see:  kubectl portolan where {title}"));
                Ok(TIMED_OUT)
            }
            WaitEnd::Interrupted => {
                ctx.terminal.note(&format!("the adoption continues; see it with: kubectl portolan where {title}"));
                Ok(INTERRUPTED)
            }
        }
    }
}

/// Physical cluster behind the proxy of its registration.
struct ProxiedCluster {
    proxy: String,
    /// Workspace that it is registered in; `None` for that of the session.
    home: Option<LogicalClusterPath>,
}

impl ProxiedCluster {
    async fn read(&self, session: &ApiSession, path: &str, accept: &str) -> Result<Value, RequestError> {
        let path = format!("{}{path}", self.proxy);
        session.send(ApiRequest { accept, ..ApiRequest::new(Method::GET, &path).to(self.home.as_ref()) }).await
    }

    /// Lets Portolan use the namespace of the session on the physical cluster, unless it created it.
    ///
    /// # Errors
    /// A refusal of the physical cluster: its RBAC decides who may do this.
    async fn release_namespace(&self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        let session = ctx.session();
        let name = session.namespace.clone();
        let path = format!("/api/v1/namespaces/{}", encoded(&name));
        let live = self.read(session, &path, JSON).await?;
        if NamespaceIdentity::of(&live).is_some() || object::annotation(&live, ADOPTABLE_NAMESPACE) == Some("true") {
            return Ok(());
        }
        let patch = json!({"metadata": {"annotations": {ADOPTABLE_NAMESPACE: "true"}}});
        session.patch(self.home.as_ref(), &format!("{}{path}", self.proxy), &patch).await?;
        ctx.terminal.note(&format!("namespace/{name} released to Portolan by the annotation {ADOPTABLE_NAMESPACE}"));
        Ok(())
    }
}

/// Labels and fields that a server sets, by the kind that has them.
const SERVER_FIELDS: [(&str, &[&str]); 5] = [
    (
        "Service",
        &[
            "/spec/clusterIP",
            "/spec/clusterIPs",
            "/spec/ipFamilies",
            "/spec/ipFamilyPolicy",
            "/spec/healthCheckNodePort",
        ],
    ),
    ("PersistentVolumeClaim", &["/spec/volumeName"]),
    ("Pod", &["/spec/nodeName"]),
    ("ServiceAccount", &["/secrets"]),
    (
        "Job",
        &[
            "/spec/selector",
            "/spec/template/metadata/labels/controller-uid",
            "/spec/template/metadata/labels/job-name",
            "/spec/template/metadata/labels/batch.kubernetes.io~1controller-uid",
            "/spec/template/metadata/labels/batch.kubernetes.io~1job-name",
        ],
    ),
];
/// Annotations of a server or client that have no meaning elsewhere.
const SERVER_ANNOTATIONS: [&str; 5] = [
    annotations::LAST_APPLIED,
    annotations::REVISION,
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
    "volume.kubernetes.io/selected-node",
];

/// Returns an object without its status, and without what its server has set.
fn without_server_fields(found: &Value) -> Value {
    let mut made = found.clone();
    let kind = found["kind"].as_str().unwrap_or_default();
    let is_headless = found.pointer("/spec/clusterIP").is_some_and(|ip| ip == "None");
    for pointer in SERVER_FIELDS.iter().filter(|(of, _)| *of == kind).flat_map(|(_, pointers)| *pointers) {
        if !(is_headless && pointer.starts_with("/spec/clusterIP")) {
            remove(&mut made, pointer);
        }
    }
    for port in made.pointer_mut("/spec/ports").and_then(Value::as_array_mut).into_iter().flatten() {
        remove(port, "/nodePort");
    }
    remove(&mut made, "/status");
    let mut metadata = Map::new();
    for key in ["name", "namespace", "labels", "annotations"] {
        metadata.extend(found["metadata"].get(key).map(|value| (key.to_owned(), value.clone())));
    }
    if let Some(own) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        own.retain(|key, _| !SERVER_ANNOTATIONS.contains(&key.as_str()));
    }
    made["metadata"] = metadata.into();
    made
}

fn remove(object: &mut Value, pointer: &str) {
    let Some((parent, field)) = pointer.rsplit_once('/') else { return };
    let field = field.replace("~1", "/");
    if let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        parent.remove(&field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(overwrite: bool) -> AdoptArgs {
        AdoptArgs {
            object: Vec::new(),
            from: "east".into(),
            overwrite,
            allow_restart: overwrite,
            dry_run: DryRun::None,
            wait: true,
            timeout: Duration::ZERO,
            format: OutputFlags::default(),
        }
    }

    fn kind(kind: &str) -> ResourceType {
        ResourceType { kind: kind.into(), is_namespaced: true, ..ResourceType::default() }
    }

    #[test]
    fn server_fields_are_left_behind() {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop",
            "uid": "u", "resourceVersion": "7", "labels": {"app": "web"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "a"}},
            "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80, "nodePort": 30001}]},
            "status": {"loadBalancer": {}}});
        let made = args(false).adopted(&kind("Service"), &service).unwrap();
        assert_eq!(
            made,
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop",
                "labels": {"app": "web"},
                "annotations": {"team": "a", "portolan.dev/pin": "east", "portolan.dev/adopt": "IfNoDiff"}},
                "spec": {"ports": [{"port": 80}]}})
        );
        let headless = json!({"kind": "Service", "metadata": {"name": "db"}, "spec": {"clusterIP": "None"}});
        let made = args(true).adopted(&kind("Service"), &headless).unwrap();
        assert_eq!(made["spec"], json!({"clusterIP": "None"}));
        let own =
            json!({"portolan.dev/pin": "east", "portolan.dev/adopt": "Always", "portolan.dev/adopt-restart": "true"});
        assert_eq!(made["metadata"]["annotations"], own);
        let job = json!({"kind": "Job", "metadata": {"name": "j"}, "spec": {"selector": {"matchLabels": {}}, "template":
            {"metadata": {"labels": {"batch.kubernetes.io/controller-uid": "u", "controller-uid": "u", "app": "j"}}}}});
        let made = args(false).adopted(&kind("Job"), &job).unwrap();
        assert_eq!(made["spec"], json!({"template": {"metadata": {"labels": {"app": "j"}}}}));
    }

    #[test]
    fn controlled_objects_are_not_adopted() {
        let owned = json!({"metadata": {"name": "web-1",
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}]}});
        let refused = args(false).adopted(&kind("Pod"), &owned).unwrap_err().to_string();
        assert_eq!(refused, "pod/web-1 belongs to replicaset/web: adopt that");
    }
}
