//! Admission: preconditions, mutating steps, validating steps, quotas, and the writes that belong to an object, in
//! this order.

mod aggregation;
mod builtin;
mod chain;
mod config_cache;
mod context;
mod defined_names;
mod definitions;
mod escalation;
mod expressions;
mod lookup;
mod matching;
mod mounts;
mod namespaces;
mod pending_write;
mod physical_clusters;
mod pod_security;
mod policies;
pub(crate) mod quota;
mod reinvocation;
mod reread;
mod reservations;
mod review;
mod services;
mod shared_apis;
pub(crate) mod templates;
mod usage_limits;
mod webhooks;
mod workspace_steps;
mod workspace_type_writes;
mod workspace_types;
mod workspaces;

pub use builtin::add_default_tolerations;
pub(crate) use chain::AdmissionChain;
pub(crate) use config_cache::AdmissionConfigCache;
pub(crate) use context::AdmissionContext;
pub(crate) use expressions::Expressions;
pub(crate) use mounts::is_mountable;
pub use templates::{QuotaGuard, TemplateCharge, TemplateOwner, TemplateQuotaWrites};
pub(crate) use usage_limits::LimitContext;
pub(crate) use workspace_steps::{begin_deletion, commit_stage, end_step};
pub use workspaces::FINALIZER as WORKSPACE_FINALIZER;
pub(crate) use workspaces::{WorkspaceContext, ownership};

use portolan_types::{Status, object};
use serde_json::Value;

pub use crate::hooks::{AdmissionPlugin, AdmissionRequest, Operation};

/// Builds a 403 in the words of kube-apiserver's plugins. An unnamed object is called by its name prefix.
fn forbidden(request: &AdmissionRequest<'_>, object: Option<&Value>, why: impl std::fmt::Display) -> Status {
    let of_object = |key| object.map(|object| object::meta_text(object, key)).filter(|text| !text.is_empty());
    let own = Some(request.name).filter(|name| !name.is_empty());
    let name = own.or_else(|| of_object("name")).or_else(|| of_object("generateName")).unwrap_or("Unknown");
    Status::forbidden(&request.kind.group_resource(), name, why)
}
