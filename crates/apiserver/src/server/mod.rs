//! State that all requests share: the contexts of the parts of the server. A function takes the narrowest context that
//! it needs; only the pipeline, the entry points of handlers and the HTTP floor take the whole server.

mod assembly;
mod lifecycle;

use std::sync::Arc;

use parking_lot::Mutex;
use portolan_kinds::Kinds;
use portolan_store::{AccountLimit, DynStore};
use portolan_strategy::{
    quota::{charged_claim, charged_pods},
    rbac::User,
};
use portolan_types::{
    BoxFuture, LogicalClusterId, Seams, Status,
    placement::{ChargedClaims, ChargedPods},
};
use prometheus::Registry;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::{
    ApiServerConfig, ConfigError, Directory, InProcess,
    admission::{TemplateCharge, TemplateOwner, TemplateQuotaWrites, templates},
    aggregation::AggregatedResources,
    audit::Auditor,
    authn::{AccessContext, BootstrapTokens, ClientTrust, Identity, ServiceAccountTokens, TokenKeys},
    authz::{Authorizer, UseGrants},
    commit::default_limits,
    directory::ClusterTemplate,
    front_proxy::FrontProxies,
    kinds::DefinitionCatalog,
    limits::{FairShare, RequestLimiter},
    metrics::{CacheSizes, FailedHealthChecks, Metrics, ServerVersion, metered},
    objects::{PipelineContext, ReadContext, TemplatedObject, admit_from_template},
    pki::Pki,
    storage::StorageContext,
    sync::StreamContext,
    watch::WatchContext,
};

use assembly::{SharedParts, open_storage};

/// Error at the start of a server.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Unusable keys or files.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Failure of the store or damage in it.
    #[error("the directory of logical clusters cannot be read: {0}")]
    Directory(Status),
}

/// An API server over a store.
pub struct ApiServer {
    pub(crate) config: ApiServerConfig,
    pub(crate) pki: Pki,
    pub(crate) version: ServerVersion,
    pub(crate) storage: Arc<StorageContext>,
    pub(crate) kinds: DefinitionCatalog,
    pub(crate) tokens: Arc<ServiceAccountTokens>,
    pub(crate) bootstrap_tokens: Arc<BootstrapTokens>,
    pub(crate) access: Arc<AccessContext>,
    pub(crate) reads: Arc<ReadContext>,
    pub(crate) writes: Arc<PipelineContext>,
    pub(crate) watches: Arc<WatchContext>,
    pub(crate) streams: StreamContext,
    pub(crate) limiter: Arc<RequestLimiter>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) failing: FailedHealthChecks,
    pub(crate) aggregated: AggregatedResources,
    pub(crate) front_proxies: FrontProxies,
    /// Audit, if it is configured.
    pub(crate) auditor: Option<Arc<Auditor>>,
    pub(crate) client_trust: ClientTrust,
    background: Mutex<JoinSet<()>>,
}

impl ApiServer {
    /// Loads keys and the directory; creates `root` in an empty store.
    ///
    /// # Errors
    /// Failure to read keys or the directory.
    pub fn new(store: DynStore, config: ApiServerConfig) -> BoxFuture<'static, Result<Arc<Self>, StartError>> {
        // Boxed here and elsewhere, so that the crates of the callers do not compile the server again.
        Box::pin(Self::open(store, config))
    }

    async fn open(store: DynStore, config: ApiServerConfig) -> Result<Arc<Self>, StartError> {
        let pki = Pki::open(&config)?;
        let version = ServerVersion::new(&config.build);
        let metrics = Arc::new(Metrics::new(config.registry.clone()));
        metrics.built(&version);
        let store = metered(store, metrics.storage.clone());
        let storage = Arc::new(open_storage(store.clone(), &config).await.map_err(StartError::Directory)?);
        let keys = TokenKeys { signing: &pki.service_accounts, verifying: &pki.verification_keys };
        let tokens = ServiceAccountTokens::new(&keys, config.issuer.clone(), store.clone(), config.seams.clone())?;
        let tokens = Arc::new(tokens.within(storage.directory.clone()));
        let bootstrap_tokens = Arc::new(BootstrapTokens::new(store, config.seams.clone()));
        let parts = SharedParts::new(storage, metrics, &config)?;
        let access = Arc::new(parts.access(&config, &tokens, &bootstrap_tokens, &pki)?);
        let reads = Arc::new(parts.reads(&config, &pki));
        let root_ca = config.makes_default_objects.then_some(&*pki.ca);
        let template = ClusterTemplate::new(&config.seams, root_ca).map_err(StartError::Directory)?;
        let audit = config.audit.as_ref();
        let auditor = audit.map(|audit| Auditor::open(audit, config.seams.clone(), &config.registry)).transpose()?;
        Ok(Arc::new(Self {
            background: Mutex::new(parts.follow()),
            writes: Arc::new(parts.writes(&config, &reads, template)),
            watches: Arc::new(parts.watches(&reads, &access)),
            failing: FailedHealthChecks::default(),
            aggregated: AggregatedResources::default(),
            front_proxies: FrontProxies::new(&pki.continue_key),
            auditor,
            client_trust: ClientTrust::open(&pki.ca, &config.access)?,
            storage: parts.storage,
            kinds: parts.kinds,
            streams: parts.streams,
            limiter: parts.limiter,
            metrics: parts.metrics,
            config,
            pki,
            version,
            tokens,
            bootstrap_tokens,
            access,
            reads,
        }))
    }

    /// Returns the sources of time and randomness.
    pub fn seams(&self) -> &Seams {
        &self.storage.seams
    }

    /// Returns the directory of logical clusters.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.storage.directory
    }

    /// Returns the kinds that each logical cluster serves.
    pub fn kinds(&self) -> Arc<dyn Kinds> {
        Arc::new(self.kinds.clone())
    }

    /// Returns the URL at which clients reach the server, without a path.
    pub fn url(&self) -> String {
        self.config.public_url()
    }

    /// Returns an address at which clients on this machine reach the server.
    pub fn address(&self) -> std::net::SocketAddr {
        crate::config::reachable(self.config.bind_address)
    }

    /// Returns the authorizer.
    pub fn authorizer(&self) -> &dyn Authorizer {
        &*self.access.rbac
    }

    /// Returns the current grants of `use` on the physical clusters of a logical cluster.
    ///
    /// # Errors
    /// Failure of the store.
    pub async fn use_grants(&self, home: LogicalClusterId) -> Result<UseGrants, Status> {
        // The caller may know of a write that the cache has not seen yet.
        self.access.rbac.forget(home);
        Ok(UseGrants::of(&*self.access.rbac.undamaged_roles(home).await?))
    }

    /// Returns the issuer and verifier of service account tokens.
    pub fn tokens(&self) -> &Arc<ServiceAccountTokens> {
        &self.tokens
    }

    /// Returns keys and certificates.
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// Returns the registry of metrics.
    pub fn registry(&self) -> &Registry {
        self.metrics.registry()
    }

    /// Returns the server as a service without a socket. All requests act as `user`, regardless of their credentials.
    pub fn service_as(self: &Arc<Self>, user: User) -> InProcess {
        InProcess::new(self.clone(), Identity::global(user))
    }

    /// Returns the server as a service without a socket, for an identity of one logical cluster.
    pub fn service_in(self: &Arc<Self>, user: User, home: LogicalClusterId) -> InProcess {
        InProcess::new(self.clone(), Identity::local(user, home))
    }

    /// Returns the processor share of a logical cluster's tenant, for work of `user` outside of requests.
    pub fn fair_share(&self, cluster: LogicalClusterId, user: &str) -> FairShare {
        let directory = self.directory();
        let tenant = directory.by_id(cluster).map_or(cluster, |cluster| directory.tenant(&cluster));
        self.limiter.share(tenant, user)
    }

    /// Returns the accounts that objects of a logical cluster count towards: its own and those of its ancestors.
    pub fn accounts(&self, cluster: LogicalClusterId) -> Vec<AccountLimit> {
        self.directory().accounts(cluster, default_limits(&self.config.limits))
    }

    /// Measures `count` pods like this one for quotas.
    pub fn measure_pods(&self, pod: &Value, count: i64) -> ChargedPods {
        charged_pods(pod, count, self.seams().clock.now())
    }

    /// Measures one claim of a template for quotas.
    pub fn measure_claim(&self, template: &str, start: i64, claim: &Value) -> ChargedClaims {
        charged_claim(template, start, claim, self.seams().clock.now())
    }

    /// Charges the quotas of a namespace for the pods and claims of the templates of `owner`.
    ///
    /// # Errors
    /// 403 if a quota would be exceeded, as for a claim or a pod.
    pub fn charge_templates<'a>(
        &'a self,
        owner: &'a TemplateOwner<'a>,
        charge: &'a TemplateCharge<'a>,
    ) -> BoxFuture<'a, Result<TemplateQuotaWrites, Status>> {
        Box::pin(templates::charge(self.writes.admission.quotas(), owner, charge))
    }

    /// Returns the pod or claim as it would be stored if the user of `templated` created `made`: a dry run without
    /// quotas.
    ///
    /// # Errors
    /// The error that such a request would get.
    pub fn admit_from_template<'a>(
        &'a self,
        templated: TemplatedObject<'a>,
        made: Value,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(admit_from_template(&self.writes, templated, made))
    }

    /// Returns true if a logical cluster has webhooks that may be called.
    ///
    /// # Errors
    /// Failure to read its configuration.
    pub async fn calls_webhooks(&self, cluster: LogicalClusterId) -> Result<bool, Status> {
        self.writes.admission.calls_webhooks(cluster).await
    }

    /// Measures all caches.
    pub(crate) fn measure_caches(&self) {
        let admission = &self.writes.admission.context;
        self.metrics.caches.set(&CacheSizes {
            frames: self.watches.frames.bytes(),
            definitions: self.kinds.definition_bytes(),
            documents: self.kinds.document_bytes(),
            conversions: self.reads.conversion.events.bytes(),
            expressions: admission.expressions.bytes(),
            configuration: admission.configuration.bytes(),
            roles: self.access.rbac.bytes(),
            tokens: self.tokens.remembered(),
            webhooks: self.reads.conversion.webhooks.clients.cached(),
        });
    }

    /// Ends watches and background work; running requests finish.
    pub async fn stop(&self) {
        self.streams.stopping.cancel();
        let mut tasks = std::mem::take(&mut *self.background.lock());
        tasks.shutdown().await;
        self.streams.wait().await;
        if let Some(auditor) = &self.auditor {
            auditor.flush().await;
        }
    }
}
