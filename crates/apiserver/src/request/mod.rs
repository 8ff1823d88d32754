//! Authorized request and its target.

pub(crate) mod computed;
mod context;
mod kind_hooks;
mod target;

pub(crate) use context::{AdmittedOperation, RequestContext};
pub(crate) use kind_hooks::{ComputedResource, CreateOnly, KindHooks, hooks_of_kind, hooks_of_resource};
pub(crate) use target::{
    DefinitionIdentity, ResourceTarget, invalid_client_name, invalid_path_name, method_not_allowed,
};
