//! `portolan kubeconfig`.

mod all;
mod create;

#[cfg(test)]
pub(super) use all::AllWorkspaces;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use kube::config::Kubeconfig;
use portolan_types::LogicalClusterPath;

/// Time for the server to say whether it has the workspace.
const PATIENCE: Duration = Duration::from_secs(2);

/// Print a kubeconfig for a workspace, with the administrator's credentials of `admin.kubeconfig`. They are valid in
/// all workspaces; docs/access.md explains how to let others in.
#[derive(Args)]
#[command(subcommand_negates_reqs = true)]
pub(crate) struct KubeconfigArgs {
    #[command(subcommand)]
    pub(super) command: Option<KubeconfigCommand>,
    /// Data directory of the server.
    #[arg(long, required = true)]
    pub(super) data_dir: Option<PathBuf>,
    /// Path of the workspace.
    #[arg(long, default_value = "root")]
    pub(super) workspace: String,
    /// Name of the server in the kubeconfig, whose context is named <workspace>@<name>; by default the name in
    /// admin.kubeconfig.
    #[arg(long, value_name = "NAME", value_parser = super::values::server_name)]
    pub(super) name: Option<String>,
    #[command(flatten)]
    pub(super) all: AllWorkspacesFlags,
}

/// Flags of a kubeconfig with a context for every workspace.
#[derive(Args, Default)]
pub(crate) struct AllWorkspacesFlags {
    /// Print a context for the workspace and each one below it, named as root-shop.
    #[arg(long, conflicts_with = "name")]
    all_workspaces: bool,
    /// File to write instead of standard output.
    #[arg(long, value_name = "FILE", requires = "all_workspaces")]
    out: Option<PathBuf>,
    /// Keep the file current, until Ctrl-C, as workspaces come and go.
    #[arg(long, requires = "out")]
    watch: bool,
}

#[derive(Subcommand)]
pub(crate) enum KubeconfigCommand {
    /// Create a kubeconfig for a user, with a client certificate of her own.
    Create(create::KubeconfigCreateArgs),
}

impl KubeconfigArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let data_dir = match (self.command, self.data_dir) {
            (Some(KubeconfigCommand::Create(create)), _) => return create.run(),
            (None, Some(data_dir)) => data_dir,
            (None, None) => bail!("--data-dir must say which server"),
        };
        let admin = read_admin(&data_dir)?;
        let workspace: LogicalClusterPath =
            self.workspace.parse().with_context(|| format!("{:?} is no path of a workspace", self.workspace))?;
        if self.all.all_workspaces {
            let AllWorkspacesFlags { out, watch, .. } = self.all;
            let all = all::AllWorkspaces { admin: &admin, top: &workspace, out, watch };
            return super::runtime()?.block_on(all.run());
        }
        let config = for_workspace(&admin, &workspace, self.name.as_deref())?;
        if super::runtime()?.block_on(is_missing(&config)) {
            bail!("the server has no workspace {workspace}");
        }
        super::output::print(&config)
    }
}

/// Reads the administrator's kubeconfig in a data directory.
fn read_admin(data_dir: &std::path::Path) -> anyhow::Result<String> {
    let path = data_dir.join("admin.kubeconfig");
    std::fs::read_to_string(&path)
        .with_context(|| format!("{} cannot be read; has a server been started there?", path.display()))
}

/// Server of an administrator's kubeconfig.
struct NamedServer {
    /// Scheme, host and port.
    host: String,
    /// Name in contexts and users.
    name: String,
}

impl NamedServer {
    /// Reads the server of a kubeconfig; `name` overrides its name.
    ///
    /// # Errors
    /// Fails if the kubeconfig names no logical cluster.
    fn of(config: &serde_json::Value, name: Option<&str>) -> anyhow::Result<Self> {
        let server = config.pointer("/clusters/0/cluster/server").and_then(serde_json::Value::as_str);
        let Some((host, _)) = server.and_then(|server| server.split_once("/clusters/")) else {
            bail!("admin.kubeconfig names no server with a logical cluster");
        };
        let named = config["current-context"].as_str().and_then(|context| context.split_once('@'));
        // Files of earlier versions name no server.
        let of_file = named.map_or_else(|| host.trim_start_matches("https://"), |(_, name)| name);
        Ok(Self { host: host.to_owned(), name: name.unwrap_or(of_file).to_owned() })
    }
}

/// Returns true if a server says that it does not have the workspace of `config`; false if it does not respond.
async fn is_missing(config: &str) -> bool {
    let asking = async {
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(Kubeconfig::from_yaml(config)?, &options).await?;
        // Discovery lists the built-in kinds for missing workspaces too.
        let request = http::Request::get("/api/v1/namespaces?limit=1").body(kube::client::Body::empty())?;
        anyhow::Ok(kube::Client::try_from(config)?.send(request).await?.status())
    };
    let answer = tokio::time::timeout(PATIENCE, asking).await;
    matches!(answer, Ok(Ok(http::StatusCode::NOT_FOUND)))
}

/// Returns the administrator's kubeconfig for another workspace. Context and cluster are named after the workspace and
/// the server, the user after the server, so that kubeconfigs of several workspaces and servers can be merged.
pub(crate) fn for_workspace(
    admin: &str,
    workspace: &LogicalClusterPath,
    server_name: Option<&str>,
) -> anyhow::Result<String> {
    let mut config: serde_json::Value = serde_saphyr::from_str(admin).context("admin.kubeconfig is damaged")?;
    let NamedServer { host, name: server_name } = NamedServer::of(&config, server_name)?;
    let user = config["users"][0]["name"].as_str().unwrap_or_default();
    let user = format!("{}@{server_name}", user.split_once('@').map_or(user, |(user, _)| user));
    let context = format!("{workspace}@{server_name}");
    config["clusters"][0]["cluster"]["server"] = format!("{host}/clusters/{workspace}").into();
    config["clusters"][0]["name"] = context.as_str().into();
    config["contexts"][0]["name"] = context.as_str().into();
    config["contexts"][0]["context"] = serde_json::json!({"cluster": context, "user": user});
    config["users"][0]["name"] = user.into();
    config["current-context"] = context.into();
    Ok(serde_saphyr::to_string(&config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admin(context: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {context}\nclusters:\n- name: {context}\n  cluster:\n    \
             server: https://127.0.0.1:6443/clusters/root\ncontexts:\n- name: {context}\n  context:\n    cluster: {context}\n    \
             user: {user}\nusers:\n- name: {user}\n  user: {{}}\n"
        )
    }

    #[test]
    fn kubeconfigs_of_workspaces_and_servers_have_names_of_their_own() {
        for (case, context, user, name, context_of_shop, user_of_shop) in [
            ("a named server", "root@prod", "portolan-admin@prod", None, "root:shop@prod", "portolan-admin@prod"),
            ("another name", "root@prod", "portolan-admin@prod", Some("eu"), "root:shop@eu", "portolan-admin@eu"),
            (
                "a file of an earlier version",
                "root",
                "portolan-admin",
                None,
                "root:shop@127.0.0.1:6443",
                "portolan-admin@127.0.0.1:6443",
            ),
        ] {
            let shop = for_workspace(&admin(context, user), &"root:shop".parse().unwrap(), name).unwrap();
            let config: serde_json::Value = serde_saphyr::from_str(&shop).unwrap();
            assert_eq!(config["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443/clusters/root:shop");
            for pointer in ["/current-context", "/contexts/0/name", "/contexts/0/context/cluster", "/clusters/0/name"] {
                assert_eq!(config.pointer(pointer).unwrap(), context_of_shop, "{case}: {pointer}");
            }
            for pointer in ["/contexts/0/context/user", "/users/0/name"] {
                assert_eq!(config.pointer(pointer).unwrap(), user_of_shop, "{case}: {pointer}");
            }
        }
    }
}
