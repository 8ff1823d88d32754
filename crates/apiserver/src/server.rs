//! The server as a whole: what all requests share.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use portolan_store::DynStore;
use portolan_types::{Seams, Status};
use prometheus::Registry;
use tokio::task::JoinSet;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    ApiServerConfig, ConfigError, Directory, InProcess,
    admission::{Chain, Configured, Expressions, Lines, quota},
    authn::{Authenticator, Identity, ServiceAccountTokens, TokenKeys},
    authz::{Authorizer, RbacAuthorizer, UseGrants},
    conversion::ConvertedEvents,
    directory::{IdAllocator, found_root},
    handlers::Failing,
    kinds::Catalog,
    limits::{Admittance, FairShare},
    measured::measured,
    metrics::Metrics,
    pki::Pki,
    version::Version,
    watch::FrameCache,
    webhooks,
};
use portolan_machinery::{kinds::Kinds, rbac::User};
use portolan_types::{LogicalClusterId, ObjectKey};

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Keys or files.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store or what is in it.
    #[error("the directory of logical clusters cannot be read: {0}")]
    Directory(Status),
}

/// An API server over a store.
pub struct ApiServer {
    pub(crate) store: DynStore,
    pub(crate) seams: Seams,
    pub(crate) config: ApiServerConfig,
    pub(crate) pki: Pki,
    pub(crate) version: Version,
    pub(crate) directory: Arc<Directory>,
    pub(crate) ids: IdAllocator,
    pub(crate) authenticator: Authenticator,
    pub(crate) tokens: Arc<ServiceAccountTokens>,
    pub(crate) rbac: Arc<RbacAuthorizer>,
    pub(crate) admission: Chain,
    pub(crate) configured: Arc<Configured>,
    pub(crate) expressions: Expressions,
    /// Who charges quotas.
    pub(crate) charging: Lines<quota::Namespace>,
    /// Writes that wait to be charged.
    pub(crate) together: quota::Together,
    /// Who takes up bounded room.
    pub(crate) furnishing: Lines<ObjectKey>,
    /// Who has lost several races for an object.
    pub(crate) racing: Lines<ObjectKey>,
    pub(crate) webhooks: webhooks::Clients,
    pub(crate) conversions: ConvertedEvents,
    pub(crate) admittance: Admittance,
    pub(crate) metrics: Metrics,
    pub(crate) failing: Failing,
    pub(crate) frames: FrameCache,
    pub(crate) kinds: Catalog,
    /// Set when the server stops: `/readyz` says no, watches end.
    pub(crate) stopping: CancellationToken,
    background: Mutex<JoinSet<()>>,
    /// Streams that have left their requests: WebSockets.
    pub(crate) streams: TaskTracker,
}

/// Time for streams to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

impl ApiServer {
    /// Loads keys and the directory; founds `root` in an empty store.
    ///
    /// # Errors
    /// When keys or the directory cannot be read.
    pub async fn new(store: DynStore, config: ApiServerConfig) -> Result<Arc<Self>, StartError> {
        let pki = Pki::open(&config)?;
        let seams = config.seams.clone();
        let version = Version::new(&config.build);
        let metrics = Metrics::new(config.registry.clone());
        metrics.built(&version);
        let store = measured(store, metrics.storage.clone());
        let directory = Arc::new(Directory::load(store.clone()).await.map_err(StartError::Directory)?);
        if directory.is_empty() {
            directory.insert(found_root(&store, &seams).await.map_err(StartError::Directory)?);
        }
        let keys = TokenKeys { signing: &pki.service_accounts, verifying: &pki.verification_keys };
        let tokens = ServiceAccountTokens::new(&keys, config.issuer.clone(), store.clone(), seams.clone())?;
        let tokens = Arc::new(tokens);
        let rbac = Arc::new(RbacAuthorizer::new(store.clone()));
        let mut background = JoinSet::new();
        background.spawn(directory.clone().follow());
        let kinds =
            Catalog::new(store.clone(), metrics.compiled(), Arc::new(metrics.expressions()), config.computes_nodes);
        background.spawn(kinds.clone().follow());
        for resource in crate::authz::RESOURCES {
            background.spawn(rbac.clone().follow(resource));
        }
        let configured = Arc::new(Configured::new(store.clone()));
        for resource in Configured::resources() {
            background.spawn(configured.clone().follow(resource));
        }
        let frames = FrameCache::new(metrics.frames_encoded());
        Ok(Arc::new(Self {
            store,
            seams,
            directory,
            ids: IdAllocator::new(),
            authenticator: Authenticator::new(config.static_tokens.clone(), tokens.clone()),
            tokens,
            rbac,
            admission: Chain::new(&config.hooks.admission),
            configured,
            expressions: Expressions::new(metrics.expressions()),
            charging: Lines::default(),
            together: quota::Together::default(),
            furnishing: Lines::default(),
            racing: Lines::default(),
            webhooks: webhooks::Clients::new(config.webhooks),
            conversions: ConvertedEvents::default(),
            admittance: Admittance::new(&config.limits, &metrics),
            metrics,
            failing: Failing::default(),
            frames,
            kinds,
            stopping: CancellationToken::new(),
            background: Mutex::new(background),
            streams: TaskTracker::new(),
            config,
            pki,
            version,
        }))
    }

    /// Time and randomness.
    pub fn seams(&self) -> &Seams {
        &self.seams
    }

    /// Which logical clusters there are.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// What each logical cluster serves.
    pub fn kinds(&self) -> Arc<dyn Kinds> {
        Arc::new(self.kinds.clone())
    }

    /// Where clients reach the server.
    pub fn address(&self) -> std::net::SocketAddr {
        crate::pki::reachable(self.config.bind_address)
    }

    /// Decides who may do what.
    pub fn authorizer(&self) -> &dyn Authorizer {
        &*self.rbac
    }

    /// Who may use the physical clusters that are registered in a logical cluster, as its RBAC says now.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn use_grants(&self, home: LogicalClusterId) -> Result<UseGrants, Status> {
        // Whoever asks may have seen a write before the cache did.
        self.rbac.forget(home);
        Ok(UseGrants::of(&*self.rbac.whole_roles(home).await?))
    }

    /// Makes and verifies tokens of service accounts.
    pub fn tokens(&self) -> &Arc<ServiceAccountTokens> {
        &self.tokens
    }

    /// Keys and certificates.
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// Where the binary registers numbers of its own for `/metrics`.
    pub fn registry(&self) -> &Registry {
        self.metrics.registry()
    }

    /// The server without a socket: requests are those of `user`, whatever credentials they carry.
    pub fn service_as(self: &Arc<Self>, user: User) -> InProcess {
        InProcess::new(self.clone(), Identity::global(user))
    }

    /// The server without a socket, for an identity that is good in one logical cluster only.
    pub fn service_in(self: &Arc<Self>, user: User, home: LogicalClusterId) -> InProcess {
        InProcess::new(self.clone(), Identity::local(user, home))
    }

    /// Returns the share of the processors of the tenant that a logical cluster belongs to, for work in the name of `user` that no
    /// request brings.
    pub fn fair_share(&self, cluster: LogicalClusterId, user: &str) -> FairShare {
        let tenant = self.directory.by_id(cluster).map_or(cluster, |cluster| self.directory.tenant(&cluster));
        self.admittance.share(tenant, user)
    }

    /// Ends watches and background work; requests under way finish.
    pub async fn stop(&self) {
        self.stopping.cancel();
        let mut tasks = std::mem::take(&mut *self.background.lock());
        tasks.shutdown().await;
        self.streams.close();
        // Whoever does not take the goodbye goes without.
        let _ = tokio::time::timeout(GOODBYE, self.streams.wait()).await;
    }
}
