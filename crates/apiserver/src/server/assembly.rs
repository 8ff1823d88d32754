//! Assembly of the contexts of a server.

use std::sync::Arc;

use portolan_store::DynStore;
use portolan_types::Status;
use tokio::task::JoinSet;

use crate::{
    ApiServerConfig, Directory,
    admission::{
        AdmissionChain, AdmissionConfigCache, AdmissionContext, Expressions, LimitContext, WorkspaceContext,
        quota::QuotaContext,
    },
    authn::{
        AccessContext, Authenticator, BootstrapTokens, JwtAuthenticators, ServiceAccountTokens, StaticTokens,
        TokenVerifiers, TokenWebhook, WorkspaceIssuers, console::ConsoleSessions,
    },
    authz::{AuthorizerChain, RbacAuthorizer, SharedObjects},
    commit::{CommitContext, default_limits},
    config::ConfigError,
    conversion::{ConversionContext, ConvertedEvents},
    directory::{ClusterTemplate, IdAllocator, found_root},
    kinds::DefinitionCatalog,
    limits::RequestLimiter,
    metrics::Metrics,
    objects::{ObjectLocks, PipelineContext, ReadContext},
    pki::Pki,
    reach::ReachContext,
    storage::StorageContext,
    sync::{KeyedMutex, StreamContext},
    watch::{FrameCache, WatchContext},
    webhooks::{ServiceNetwork, WebhookClients, WebhookContext},
};

/// Opens the store: loads the directory, and creates `root` in an empty one.
///
/// # Errors
/// Failure of the store or damage in it.
pub(super) async fn open_storage(store: DynStore, config: &ApiServerConfig) -> Result<StorageContext, Status> {
    let directory = Arc::new(Directory::load(store.clone()).await?);
    if directory.is_empty() {
        directory.insert(found_root(&store, &config.seams).await?);
    }
    Ok(StorageContext { store, directory, seams: config.seams.clone() })
}

/// Parts of a server that its contexts share.
pub(super) struct SharedParts {
    pub(super) storage: Arc<StorageContext>,
    pub(super) kinds: DefinitionCatalog,
    pub(super) rbac: Arc<RbacAuthorizer>,
    configuration: Arc<AdmissionConfigCache>,
    conversion: Arc<ConversionContext>,
    pub(super) limiter: Arc<RequestLimiter>,
    pub(super) streams: StreamContext,
    pub(super) metrics: Arc<Metrics>,
}

impl SharedParts {
    /// # Errors
    /// An unusable configuration of authorization.
    pub(super) fn new(
        storage: Arc<StorageContext>,
        metrics: Arc<Metrics>,
        config: &ApiServerConfig,
    ) -> Result<Self, ConfigError> {
        let chain = config.access.authorization.as_deref().map(AuthorizerChain::open).transpose()?;
        let limiter = Arc::new(RequestLimiter::new(&config.limits, &metrics));
        let services = ServiceNetwork { storage: storage.clone(), streams: config.hooks.streams.clone() };
        let webhooks = Arc::new(WebhookContext { clients: WebhookClients::new(config.webhooks), services });
        let conversion = ConversionContext {
            storage: storage.clone(),
            webhooks,
            limiter: limiter.clone(),
            timeout: config.limits.conversion,
            events: ConvertedEvents::default(),
        };
        let rbac = RbacAuthorizer::new(storage.store.clone()).with_chain(chain).within(storage.directory.clone());
        Ok(Self {
            kinds: DefinitionCatalog::new(
                storage.store.clone(),
                metrics.compiled(),
                Arc::new(metrics.expressions()),
                config.computes_nodes,
            ),
            rbac: Arc::new(rbac),
            configuration: Arc::new(AdmissionConfigCache::new(storage.store.clone())),
            conversion: Arc::new(conversion),
            limiter,
            streams: StreamContext::default(),
            metrics,
            storage,
        })
    }

    /// Starts the followers that keep the caches current.
    pub(super) fn follow(&self) -> JoinSet<()> {
        let mut background = JoinSet::new();
        background.spawn(self.storage.directory.clone().follow());
        for resource in DefinitionCatalog::followed() {
            background.spawn(self.kinds.clone().follow(resource));
        }
        for resource in crate::authz::RESOURCES {
            background.spawn(self.rbac.clone().follow(resource));
        }
        background.spawn(self.rbac.clone().keep_index());
        for resource in AdmissionConfigCache::resources() {
            background.spawn(self.configuration.clone().follow(resource));
        }
        background
    }

    pub(super) fn access(
        &self,
        config: &ApiServerConfig,
        tokens: &Arc<ServiceAccountTokens>,
        bootstrap: &Arc<BootstrapTokens>,
        pki: &Pki,
    ) -> Result<AccessContext, ConfigError> {
        let jwt = JwtAuthenticators::open(&config.authentication, &config.issuer, config.seams.clone())?;
        let tokens = TokenVerifiers {
            static_tokens: StaticTokens::new(config.static_tokens.clone()),
            service_accounts: tokens.clone(),
            bootstrap: bootstrap.clone(),
            jwt,
            console: ConsoleSessions::new(
                &pki.continue_key,
                config.seams.clone(),
                self.storage.store.clone(),
                pki.revoked.clone(),
            ),
            webhook: config.access.token_webhook.as_ref().map(TokenWebhook::open).transpose()?,
            workspaces: WorkspaceIssuers::new(
                self.storage.clone(),
                self.conversion.webhooks.clone(),
                config.issuer.clone(),
            ),
        };
        Ok(AccessContext {
            authenticator: Authenticator::new(tokens),
            rbac: self.rbac.clone(),
            directory: self.storage.directory.clone(),
            store: self.storage.store.clone(),
            metrics: self.metrics.clone(),
        })
    }

    pub(super) fn reads(&self, config: &ApiServerConfig, pki: &Pki) -> ReadContext {
        let (storage, rbac) = (self.storage.clone(), self.rbac.clone());
        ReadContext {
            storage: storage.clone(),
            shared: SharedObjects::new(rbac.clone(), pki.ca.clone(), &pki.continue_key),
            url: config.public_url(),
            reach: ReachContext { storage, rbac, computes_nodes: config.computes_nodes },
            conversion: self.conversion.clone(),
            continue_key: pki.continue_key.clone(),
        }
    }

    pub(super) fn writes(
        &self,
        config: &ApiServerConfig,
        reads: &Arc<ReadContext>,
        template: ClusterTemplate,
    ) -> PipelineContext {
        let commits = Arc::new(CommitContext {
            storage: self.storage.clone(),
            kinds: self.kinds.clone(),
            listeners: [self.rbac.clone(), self.configuration.clone()],
            default_limits: default_limits(&config.limits),
        });
        PipelineContext {
            reads: reads.clone(),
            kinds: self.kinds.clone(),
            admission: AdmissionChain::new(&config.hooks.admission, self.admission(config, &commits, template)),
            commits,
            object_locks: ObjectLocks::new(self.metrics.given_up().clone()),
            planner: config.hooks.planner.clone(),
            tasks: self.streams.tasks.clone(),
        }
    }

    fn admission(
        &self,
        config: &ApiServerConfig,
        commits: &Arc<CommitContext>,
        template: ClusterTemplate,
    ) -> AdmissionContext {
        let (storage, rbac) = (self.storage.clone(), self.rbac.clone());
        AdmissionContext {
            storage: storage.clone(),
            kinds: self.kinds.clone(),
            rbac: rbac.clone(),
            conversion: self.conversion.clone(),
            configuration: self.configuration.clone(),
            expressions: Expressions::new(self.metrics.expressions()),
            quotas: QuotaContext::new(commits.clone(), self.configuration.clone()),
            limits: LimitContext {
                storage: storage.clone(),
                limits: config.limits.clone(),
                locks: KeyedMutex::default(),
            },
            workspaces: WorkspaceContext { storage, rbac, ids: IdAllocator::new(), template, url: config.public_url() },
            limiter: self.limiter.clone(),
            metrics: self.metrics.clone(),
        }
    }

    pub(super) fn watches(&self, reads: &Arc<ReadContext>, access: &Arc<AccessContext>) -> WatchContext {
        WatchContext {
            reads: reads.clone(),
            kinds: self.kinds.clone(),
            access: access.clone(),
            metrics: self.metrics.clone(),
            frames: FrameCache::new(self.metrics.frames_encoded()),
            streams: self.streams.clone(),
        }
    }
}
