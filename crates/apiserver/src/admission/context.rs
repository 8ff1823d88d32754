//! Context of the steps of admission. Most steps take only the part of it that they need.

use std::sync::Arc;

use crate::{
    authz::RbacAuthorizer, conversion::ConversionContext, kinds::DefinitionCatalog, limits::RequestLimiter,
    metrics::Metrics, storage::StorageContext,
};

use super::{
    AdmissionConfigCache, Expressions, quota::QuotaContext, usage_limits::LimitContext, workspaces::WorkspaceContext,
};

/// Configuration of admission and everything that its steps read.
pub(crate) struct AdmissionContext {
    pub(crate) storage: Arc<StorageContext>,
    pub(crate) kinds: DefinitionCatalog,
    pub(crate) rbac: Arc<RbacAuthorizer>,
    pub(crate) conversion: Arc<ConversionContext>,
    pub(crate) configuration: Arc<AdmissionConfigCache>,
    pub(crate) expressions: Expressions,
    pub(crate) quotas: QuotaContext,
    pub(crate) limits: LimitContext,
    pub(crate) workspaces: WorkspaceContext,
    pub(crate) limiter: Arc<RequestLimiter>,
    pub(crate) metrics: Arc<Metrics>,
}
