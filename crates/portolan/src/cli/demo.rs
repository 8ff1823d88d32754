//! `portolan demo`: a whole control plane in one process, with simulated physical clusters and a sample app.

use std::{
    collections::BTreeMap,
    fs::{File, TryLockError},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::Args;
use portolan_apiserver::authn::AuthenticationSource;
use portolan_control_plane::{
    ClusterAddresses, Config, ControlPlane, FailoverTiming, HISTORY, SecurityConfig, Storage, WORKSPACE_LIMITS,
    WorkspaceClient,
};
use portolan_store::Engine;
use portolan_types::{LogicalClusterPath, placement::PlacementRecord};
use serde_json::Value;

use super::{
    console::one_time_link,
    kubeconfig::for_workspace,
    output,
    progress::{ProgressSteps, human},
    server::{init_logging, stop_signal},
    tour, values,
    version::PORTOLAN,
};

/// Manifests of the sample app.
pub(super) const MANIFESTS: [&str; 5] = [
    include_str!("../../../../manifests/demo/00-config.yaml"),
    include_str!("../../../../manifests/demo/05-policy.yaml"),
    include_str!("../../../../manifests/demo/10-web.yaml"),
    include_str!("../../../../manifests/demo/20-db.yaml"),
    include_str!("../../../../manifests/demo/30-migrate.yaml"),
];
/// File that marks the data directory of a demo, and says whether to keep it.
const MARKER: &str = ".portolan-demo";
const KEPT: &str = "kept\n";
const DELETED_ON_EXIT: &str = "deleted on exit\n";
/// Most bytes of a marker that are read.
const MARKER_BYTES: u64 = 64;
const WORKSPACE: &str = "shop";
/// Time for the sample app to become ready.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// Run everything in one process, with simulated physical clusters and a sample app.
#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Number of simulated physical clusters.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=9))]
    members: u8,
    /// Data directory for objects, keys and kubeconfigs.
    #[arg(long, default_value = "./portolan-demo")]
    data_dir: PathBuf,
    /// Keep the data directory when the demo ends.
    #[arg(long)]
    keep: bool,
    /// Then show where, why, plan, drain and undo, each with an explanation, in about a minute.
    #[arg(long)]
    tour: bool,
    /// Address and port to serve on.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6443", value_parser = values::address)]
    bind_address: SocketAddr,
}

/// Data of an earlier demo in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormerData {
    /// No store exists.
    None,
    /// The directory is kept.
    Kept,
    /// To be deleted, but the demo was killed.
    Leftover,
}

impl FormerData {
    /// Reads the marker of a directory. An empty one is an earlier version's, which did not record whether to keep it.
    fn read(marker: &mut File, is_used: bool) -> std::io::Result<Self> {
        use std::io::Read as _;
        let mut text = String::new();
        marker.take(MARKER_BYTES).read_to_string(&mut text)?;
        Ok(match (is_used, text.as_str()) {
            (false, _) => Self::None,
            (true, DELETED_ON_EXIT) => Self::Leftover,
            (true, _) => Self::Kept,
        })
    }
}

fn write_marker(marker: &mut File, text: &str) -> std::io::Result<()> {
    use std::io::{Seek as _, Write as _};
    marker.set_len(0)?;
    marker.rewind()?;
    marker.write_all(text.as_bytes())
}

impl DemoArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.tour || self.members > 2, "--tour needs at least 3 physical clusters");
        init_logging("error");
        super::runtime()?.block_on(self.demonstrate())
    }

    async fn demonstrate(self) -> anyhow::Result<()> {
        // Locked to the end: only the holder of the lock may delete the directory.
        let (_claimed, found) = self.claim_data_dir()?;
        let keep = self.keep || found == FormerData::Kept;
        let fate = match (found, keep) {
            (FormerData::Kept, _) => "of an earlier demo, kept",
            (FormerData::None | FormerData::Leftover, true) => "kept",
            (FormerData::None, false) => "deleted on exit; --keep to keep",
            (FormerData::Leftover, false) => {
                "that of a demo that was killed is deleted, this one on exit; --keep to keep"
            }
        };
        output::line(&format!("portolan {PORTOLAN}  data: {} ({fate})", self.data_dir.display()))?;
        let result = self.steps(keep).await;
        if !keep {
            std::fs::remove_dir_all(&self.data_dir)
                .with_context(|| format!("{} could not be deleted", self.data_dir.display()))?;
        }
        result
    }

    /// Locks the directory while the file is open. Only a directory that a demo made is used and deleted, never one
    /// with other contents or in use by another demo. Data of a killed demo is deleted, as at its end.
    fn claim_data_dir(&self) -> anyhow::Result<(File, FormerData)> {
        use std::os::unix::fs::DirBuilderExt as _;
        let shown = self.data_dir.display();
        let marker = self.data_dir.join(MARKER);
        let is_used = self.data_dir.read_dir().is_ok_and(|mut entries| entries.next().is_some());
        if is_used && !marker.exists() {
            bail!("{shown} is there and not from a demo; name another one with --data-dir");
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.data_dir);
        // Another demo may read the marker later, so it is not truncated.
        let mut options = File::options();
        let opened = made.and_then(|()| options.read(true).write(true).create(true).truncate(false).open(&marker));
        let mut claimed = opened.with_context(|| format!("{shown} cannot be made"))?;
        match claimed.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("{shown} is in use by another demo; name another one with --data-dir")
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("{shown} cannot be locked")),
        }
        let found = FormerData::read(&mut claimed, is_used).with_context(|| format!("{shown} cannot be read"))?;
        if found == FormerData::Leftover && !self.keep {
            self.clear_data_dir().with_context(|| format!("{shown} could not be emptied"))?;
        }
        let fate = if self.keep || found == FormerData::Kept { KEPT } else { DELETED_ON_EXIT };
        write_marker(&mut claimed, fate).with_context(|| format!("{} cannot be written", marker.display()))?;
        Ok((claimed, found))
    }

    /// Deletes everything in the directory except its locked marker.
    fn clear_data_dir(&self) -> std::io::Result<()> {
        for entry in self.data_dir.read_dir()? {
            let entry = entry?;
            if entry.file_name() == MARKER {
                continue;
            }
            if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(entry.path())?;
            } else {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    async fn steps(&self, keep: bool) -> anyhow::Result<()> {
        let mut steps = ProgressSteps::new(6);
        steps.waiting("opening the store");
        let config = Config {
            data_dir: self.data_dir.clone(),
            bind_address: self.bind_address,
            storage: Storage::Embedded(Engine::Redb),
            name: None,
            tls_sans: Vec::new(),
            addresses: ClusterAddresses::default(),
            simulate_for_tenants: true,
            webhooks: portolan_apiserver::webhooks::WebhookAddresses::default(),
            goaway_chance: 0.0,
            workspace_limits: WORKSPACE_LIMITS,
            sync_limits: portolan_syncer::SyncLimits::default(),
            sync_memory: portolan_syncer::SyncMemoryBudget::DEFAULT_BYTES,
            computes_nodes: true,
            tokens: Vec::new(),
            authentication: AuthenticationSource::None,
            token_max: portolan_apiserver::config::TOKEN_MAX,
            token_signing_key: None,
            token_keys: Vec::new(),
            history: HISTORY,
            failover: FailoverTiming::default(),
            console: super::console::files(),
            security: SecurityConfig::default(),
        };
        let opened = portolan_control_plane::open(config).await?;
        steps.done("store opened")?;
        steps.waiting("starting the API server");
        let mut plane = opened.start().await?;
        steps.done(&format!("API server ready  https://{}", plane.address()))?;
        let shown = tokio::select! {
            shown = self.show(&plane, &mut steps, keep) => shown,
            stop = stop_signal() => stop,
        };
        let ended = match shown {
            Err(error) => Err(error),
            Ok(()) => tokio::select! {
                stop = stop_signal() => stop,
                () = plane.failed() => Err(anyhow::anyhow!("a part of the control plane failed")),
            },
        };
        steps.finish();
        let said = output::line("stopping");
        plane.stop().await;
        ended.and(said)
    }

    async fn show(&self, plane: &ControlPlane, steps: &mut ProgressSteps, keep: bool) -> anyhow::Result<()> {
        let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
        let names = member_names(self.members);
        steps.waiting("joining simulated physical clusters");
        root.apply(&member_manifests(&names)).await?;
        wait_for("the simulated physical clusters to be ready", || members_ready(&root)).await?;
        steps.done(&format!("{} simulated physical clusters joined: {}", names.len(), names.join(" ")))?;
        steps.waiting("making the workspace");
        let manifest =
            format!("apiVersion: tenancy.kcp.io/v1alpha1\nkind: Workspace\nmetadata: {{name: {WORKSPACE}}}\n");
        root.apply(&manifest).await?;
        let path = LogicalClusterPath::root().child(WORKSPACE)?;
        self.write_kubeconfig(&path)?;
        steps.done(&format!("workspace {path} ready"))?;
        let shop = WorkspaceClient::new(plane.api(), &path);
        steps.waiting("applying the sample app");
        for manifest in MANIFESTS {
            shop.apply(manifest).await?;
        }
        steps.done("sample app applied: deployment/web (6 replicas), policy \"spread-by-region\"")?;
        steps.waiting("waiting for the sample app to be placed and ready");
        wait_for("the sample app to be ready", || app_ready(&shop)).await?;
        let placed = placed_line(&shop).await?;
        steps.done(&placed)?;
        steps.finish();
        let link = one_time_link(plane, &path).await?;
        self.say_what_next(steps.elapsed(), &names, keep, &link)?;
        if self.tour { tour::run(&self.kubeconfig(), &names[0], &names[1]).await } else { Ok(()) }
    }

    fn kubeconfig(&self) -> PathBuf {
        self.data_dir.join(format!("{WORKSPACE}.kubeconfig"))
    }

    fn write_kubeconfig(&self, path: &LogicalClusterPath) -> anyhow::Result<()> {
        use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
        let admin = std::fs::read_to_string(self.data_dir.join("admin.kubeconfig"))?;
        let file = self.kubeconfig();
        let mut options = std::fs::OpenOptions::new();
        let mut out = options.write(true).create(true).truncate(true).mode(0o600).open(&file)?;
        out.write_all(for_workspace(&admin, path, None)?.as_bytes())?;
        Ok(())
    }

    fn say_what_next(&self, took: Duration, names: &[String], keep: bool, console: &str) -> anyhow::Result<()> {
        output::line(&format!("\nReady in {}. All physical clusters and pods here are simulated.", human(took)))?;
        output::line(&format!("Console      {console}"))?;
        output::line(
            "             (it signs in once, within 10 minutes; later: kubectl portolan ui; the browser warns,",
        )?;
        output::line("             because the certificate is that of this demo)")?;
        output::line(&format!("Kubeconfigs  {} (workspace root:{WORKSPACE})", display_path(&self.kubeconfig())))?;
        output::line(&format!(
            "             {} (workspace root)",
            display_path(&self.data_dir.join("admin.kubeconfig"))
        ))?;
        output::line("\nTry, in a second terminal:")?;
        for (command, what) in commands(&self.kubeconfig(), &plugin(), names) {
            output::line(&format!("  {command:<65} # {what}"))?;
        }
        output::line(&format!("Ctrl-C stops{}.", if keep { "" } else { " and cleans up" }))
    }
}

/// Returns the commands to try; an end-to-end test runs each of them. `plugin` is the command of the plugin, and the
/// first of `names` runs the sample app.
fn commands(kubeconfig: &Path, plugin: &str, names: &[String]) -> Vec<(String, &'static str)> {
    let drained = names.first().map_or("", String::as_str);
    let pin_to = names.get(1).map_or(drained, String::as_str);
    [
        (format!("export KUBECONFIG={}", display_path(kubeconfig)), "the workspace root:shop"),
        ("kubectl get deploy,sts,job -o wide".to_owned(), "the CLUSTERS column says where"),
        ("kubectl get pods -o wide".to_owned(), "pods, with the physical cluster of each"),
        (format!("{plugin} where deploy/web"), "the state of each copy"),
        (format!("{plugin} why deploy/web"), "why there, and what would change it"),
        (format!("{plugin} drain {drained} --dry-run"), "what would move; nothing does"),
        (format!("{plugin} drain {drained}"), "new copies are ready before old ones leave"),
        (format!("{plugin} drain {drained} --undo"), "everything returns"),
        ("kubectl scale deploy/web --replicas=9".to_owned(), "the new ones are shared out too"),
        ("kubectl get deploy web -o wide -w".to_owned(), "watch it in one more terminal, while"),
        (format!("kubectl annotate deploy/web portolan.dev/pin={pin_to} --overwrite"), "one attribute moves it"),
    ]
    .into()
}

/// Returns the command of the plugin: that of kubectl if it is installed, else this program by a name that works in
/// another terminal.
fn plugin() -> String {
    let own = std::env::current_exe().and_then(std::fs::canonicalize).unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_found = |name: &str| {
        let mut found = std::env::split_paths(&path).map(|folder| folder.join(name)).filter(|file| file.is_file());
        found.next().is_some_and(|file| std::fs::canonicalize(file).is_ok_and(|file| file == own))
    };
    if is_found("kubectl-portolan") {
        return "kubectl portolan".to_owned();
    }
    let program = if is_found("portolan") { "portolan".to_owned() } else { display_path(&own) };
    format!("{program} kubectl")
}

/// Returns the path in a form that works in another terminal.
fn display_path(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

fn member_names(count: u8) -> Vec<String> {
    let in_eu = count.div_ceil(2);
    let eu = (1..=in_eu).map(|n| format!("eu-{n}"));
    let us = (1..=count - in_eu).map(|n| format!("us-{n}"));
    eu.chain(us).collect()
}

fn member_manifests(names: &[String]) -> String {
    let manifest = |name: &String| {
        let region = &name[..2];
        format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: PhysicalCluster\nmetadata:\n  name: {name}\n  labels: {{region: {region}, \
             zone: {name}, mode: simulated}}\nspec:\n  connection: {{simulated: {{nodes: 2}}}}\n"
        )
    };
    names.iter().map(manifest).collect::<Vec<_>>().join("\n---\n")
}

async fn wait_for<F: Future<Output = anyhow::Result<bool>>>(what: &str, check: impl Fn() -> F) -> anyhow::Result<()> {
    let waiting = async {
        while !check().await? {
            tokio::time::sleep(POLL).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, waiting).await.with_context(|| format!("waited {} for {what}", human(PATIENCE)))?
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

fn has_condition(object: &Value, kind: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == kind && c["status"] == "True")
}

async fn members_ready(root: &WorkspaceClient) -> anyhow::Result<bool> {
    let members = root.get("/apis/portolan.dev/v1alpha1/physicalclusters").await?;
    Ok(items(&members).iter().all(|member| has_condition(member, "Ready")))
}

async fn app_ready(shop: &WorkspaceClient) -> anyhow::Result<bool> {
    let number = |object: &Value, pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let web = shop.get("/apis/apps/v1/namespaces/default/deployments/web").await?;
    let db = shop.get("/apis/apps/v1/namespaces/default/statefulsets/db").await?;
    let migrate = shop.get("/apis/batch/v1/namespaces/default/jobs/migrate").await?;
    Ok(number(&web, "/status/readyReplicas") == number(&web, "/spec/replicas")
        && number(&db, "/status/readyReplicas") == number(&db, "/spec/replicas")
        && has_condition(&migrate, "Complete"))
}

/// Formats `placed: eu-1=3 us-1=3   6/6 ready`.
async fn placed_line(shop: &WorkspaceClient) -> anyhow::Result<String> {
    let web = shop.get("/apis/apps/v1/namespaces/default/deployments/web").await?;
    let replicas = web["spec"]["replicas"].as_i64().unwrap_or(0);
    let record = PlacementRecord::of(&web).unwrap_or_default();
    let shares: BTreeMap<&str, i64> =
        record.active().map(|copy| (copy.name.as_str(), copy.replicas.unwrap_or(replicas))).collect();
    let shares: Vec<String> = shares.into_iter().map(|(name, share)| format!("{name}={share}")).collect();
    let ready = web["status"]["readyReplicas"].as_i64().unwrap_or(0);
    Ok(format!("placed: {}   {ready}/{replicas} ready", shares.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_a_demos_own_is_never_taken() {
        let folder = tempfile::tempdir().unwrap();
        let demo = |name: &str| DemoArgs {
            members: 3,
            data_dir: folder.path().join(name),
            keep: false,
            tour: false,
            bind_address: "127.0.0.1:0".parse().unwrap(),
        };
        std::fs::create_dir(folder.path().join("real")).unwrap();
        std::fs::write(folder.path().join("real/admin.kubeconfig"), "").unwrap();
        assert!(demo("real").claim_data_dir().is_err());
        let (claimed, found) = demo("own").claim_data_dir().unwrap();
        assert_eq!(found, FormerData::None);
        assert!(demo("own").claim_data_dir().is_err(), "another demo uses it");
        drop(claimed);
    }

    #[test]
    fn leftovers_of_a_killed_demo_are_deleted_except_kept_ones() {
        let folder = tempfile::tempdir().unwrap();
        let start = |name: &str, keep: bool| {
            let (data_dir, bind_address) = (folder.path().join(name), "127.0.0.1:0".parse().unwrap());
            let (claimed, found) = DemoArgs { members: 3, data_dir: data_dir.clone(), keep, tour: false, bind_address }
                .claim_data_dir()
                .unwrap();
            let file = data_dir.join("store/store.redb");
            let is_there = file.exists();
            std::fs::create_dir_all(data_dir.join("store")).unwrap();
            std::fs::write(&file, "objects").unwrap();
            std::fs::write(data_dir.join("admin.kubeconfig"), "").unwrap();
            // A kill releases the lock and leaves everything else.
            drop(claimed);
            (found, is_there)
        };
        assert_eq!(start("killed", false), (FormerData::None, false));
        assert_eq!(start("killed", false), (FormerData::Leftover, false), "it is deleted before the start");
        assert_eq!(start("killed", true), (FormerData::Leftover, true), "unless it is to be kept");
        assert_eq!(start("killed", false), (FormerData::Kept, true), "for good");
        assert_eq!(start("kept", true), (FormerData::None, false));
        assert_eq!(start("kept", false), (FormerData::Kept, true));
        std::fs::write(folder.path().join("kept").join(MARKER), "").unwrap();
        assert_eq!(start("kept", false), (FormerData::Kept, true), "an earlier version may have kept it");
    }

    #[test]
    fn members_span_two_regions() {
        assert_eq!(member_names(3), ["eu-1", "eu-2", "us-1"]);
        assert_eq!(member_names(5), ["eu-1", "eu-2", "eu-3", "us-1", "us-2"]);
        assert_eq!(member_names(2), ["eu-1", "us-1"]);
    }
}
