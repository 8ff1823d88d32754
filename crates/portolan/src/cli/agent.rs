//! `portolan agent`.

use std::{
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use clap::Args;
use hyper_util::{client::legacy::Client as HttpClient, rt::TokioExecutor};
use kube::{
    client::ConfigExt as _,
    config::{KubeConfigOptions, Kubeconfig},
};
use portolan_syncer::{AccessService, AccessTokens};
use portolan_tunnel::{
    agent::{
        Agent, AgentConfig, AgentCredential, CredentialFile, CredentialStore, MemberBody, MemberService,
        MemberServices, PodListener, ServerUrl, boxed,
    },
    session::Keepalive,
};
use portolan_types::{BoxFuture, Seams};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, ServiceBuilder, ServiceExt as _, util::BoxCloneSyncService};

use super::{cluster_api::ClusterApi, server};

/// File of the credential in the data directory.
const CREDENTIAL: &str = "agent-credential.json";
/// Key of the credential in its Secret.
const SECRET_KEY: &str = "credential.json";
/// Connections to the API server that are kept for later.
const MAX_IDLE: usize = 32;

/// Run the agent of a physical cluster: it connects to the server, and passes the server's requests on to the API
/// server of the physical cluster.
#[derive(Args)]
pub(crate) struct AgentArgs {
    /// Address of the server: https://HOST[:PORT].
    #[arg(long, value_name = "URL")]
    server: ServerUrl,
    /// File of the bootstrap token. It is read while there is no valid certificate; put a new token there after a long
    /// time offline.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Kubeconfig of the physical cluster; by default the ServiceAccount of the agent's pod.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Directory that keeps key and certificate across restarts; readable by its owner only.
    #[arg(long, value_name = "DIR", conflicts_with = "credential_secret")]
    data_dir: Option<PathBuf>,
    /// Secret in the agent's namespace that keeps key and certificate; it must exist.
    #[arg(long, value_name = "NAME")]
    credential_secret: Option<String>,
    /// Address at which pods of the physical cluster reach the server, as 0.0.0.0:6443; by default none.
    #[arg(long, value_name = "ADDRESS")]
    pod_address: Option<std::net::SocketAddr>,
}

impl AgentArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        server::init_logging("info");
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime =
            builder.worker_threads(2).enable_all().build().context("the asynchronous runtime does not start")?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<()> {
        let config = self.member().await?;
        let agent = Agent::new(AgentConfig {
            server: self.server.clone(),
            token_file: self.token_file.clone(),
            credentials: self.credentials(&config)?,
            member: member_services(&config)?,
            keepalive: Keepalive::default(),
            version: super::version::PORTOLAN.to_owned(),
            seams: Seams::system(),
        });
        tracing::info!(server = %self.server, member = %config.cluster_url, "starting");
        let pods = self.pod_listener().await?;
        let shutdown = CancellationToken::new();
        let serving = async {
            match pods {
                Some(pods) => pods.run(shutdown.clone()).await,
                None => shutdown.cancelled().await,
            }
        };
        let stopping = async {
            let stopped = server::stop_signal().await;
            shutdown.cancel();
            stopped
        };
        let ((), (), stopped) = tokio::join!(agent.run(shutdown.clone()), serving, stopping);
        stopped
    }

    /// Returns the listener for pods, if there is to be one.
    async fn pod_listener(&self) -> anyhow::Result<Option<PodListener>> {
        let Some(address) = self.pod_address else { return Ok(None) };
        let bound = PodListener::bind(address, self.server.clone()).await;
        let bound = bound.with_context(|| format!("cannot listen on {address}; fix: another --pod-address"))?;
        Ok(Some(bound))
    }

    /// Returns the connection to the physical cluster.
    async fn member(&self) -> anyhow::Result<kube::Config> {
        let mut config = match &self.kubeconfig {
            None => kube::Config::incluster().context(
                "the agent does not run in a pod with a ServiceAccount; name a kubeconfig with --kubeconfig",
            )?,
            Some(path) => {
                let unusable = || format!("{} cannot be used", path.display());
                let kubeconfig = Kubeconfig::read_from(path).with_context(unusable)?;
                let options = KubeConfigOptions::default();
                kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.with_context(unusable)?
            }
        };
        // Watches and streams have no time-out.
        (config.read_timeout, config.write_timeout, config.default_retry) = (None, None, false);
        Ok(config)
    }

    fn credentials(&self, config: &kube::Config) -> anyhow::Result<Arc<dyn CredentialStore>> {
        match (&self.data_dir, &self.credential_secret) {
            (Some(folder), _) => {
                create_private(folder).with_context(|| format!("{} cannot be used", folder.display()))?;
                Ok(Arc::new(CredentialFile::new(folder.join(CREDENTIAL))))
            }
            (None, Some(name)) => {
                let path = format!("/api/v1/namespaces/{}/secrets/{name}", config.default_namespace);
                Ok(Arc::new(CredentialSecret { api: ClusterApi::new(config.clone())?, path }))
            }
            (None, None) => {
                bail!("name a place for the certificate: --data-dir DIR, or in a pod --credential-secret NAME")
            }
        }
    }
}

/// Creates a directory that only its owner can read, and refuses one that others can.
fn create_private(folder: &Path) -> anyhow::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    portolan_apiserver::pki::check_private(folder)?;
    Ok(())
}

/// Returns the services that reach the API server of the physical cluster: with the credential of `config`, and with
/// tokens of the account for users, which that credential mints.
pub(super) fn member_services(config: &kube::Config) -> anyhow::Result<MemberServices> {
    let mut plain = config.clone();
    // A client certificate would win over the token.
    plain.auth_info = kube::config::AuthInfo::default();
    let client = kube::Client::try_from(config.clone()).context("the physical cluster's credential cannot be used")?;
    let access = AccessService::new(member_service(&plain)?, AccessTokens::new(client));
    Ok(MemberServices { own: member_service(config)?, access: BoxCloneSyncService::new(access) })
}

/// Returns the service that reaches the API server of the physical cluster, with the credential of `config`. Redirects
/// are not followed.
fn member_service(config: &kube::Config) -> anyhow::Result<MemberService> {
    let http: HttpClient<_, MemberBody> = HttpClient::builder(TokioExecutor::new())
        .pool_max_idle_per_host(MAX_IDLE)
        .build(config.rustls_https_connector().context("the physical cluster's certificates cannot be used")?);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().context("the physical cluster's credential cannot be used")?)
        .map_err(BoxError::from)
        .service(http)
        .map_response(|response: http::Response<_>| response.map(boxed));
    Ok(BoxCloneSyncService::new(service))
}

/// Credential in a Secret of the physical cluster.
struct CredentialSecret {
    api: ClusterApi,
    path: String,
}

impl CredentialStore for CredentialSecret {
    fn load(&self) -> BoxFuture<'_, Result<Option<AgentCredential>, String>> {
        Box::pin(async move {
            let secret = self.api.get(&self.path).await.map_err(|error| format!("{}: {error}", self.path))?;
            let secret = secret.ok_or_else(|| format!("{} does not exist", self.path))?;
            let Some(encoded) = secret["data"][SECRET_KEY].as_str() else { return Ok(None) };
            let bytes = STANDARD.decode(encoded).map_err(|error| format!("{}: {error}", self.path))?;
            serde_json::from_slice(&bytes).map(Some).map_err(|error| format!("{}: {error}", self.path))
        })
    }

    fn save<'a>(&'a self, credential: &'a AgentCredential) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let bytes = serde_json::to_vec(credential).map_err(|error| error.to_string())?;
            let patch = json!({"data": {SECRET_KEY: STANDARD.encode(bytes)}});
            let saved = self.api.merge(&self.path, &patch).await.map_err(|error| format!("{}: {error}", self.path))?;
            saved.map(drop).ok_or_else(|| format!("{} does not exist", self.path))
        })
    }
}
