//! Admission chain: the order of its steps.

use std::sync::Arc;

use portolan_kinds::custom;
use portolan_store::Expect;
use portolan_strategy::lifecycle;
use portolan_types::{LogicalClusterId, ObjectKey, Status, apis, object};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    commit::{CommitError, ObjectCommit},
    metrics::AdmissionStepLabels,
};

use super::{
    AdmissionContext, aggregation, builtin, definitions, escalation, lookup, namespaces,
    pending_write::PendingWrite,
    physical_clusters, policies,
    quota::{self, QuotaContext},
    reinvocation::MutatingRequest,
    services, shared_apis, usage_limits, webhooks, workspace_type_writes, workspaces,
};
use crate::hooks::{AdmissionPlugin, AdmissionRequest, Operation};

/// Admission chain: Kubernetes' own plugins first, then those of the binary.
pub(crate) struct AdmissionChain {
    plugins: Vec<Arc<dyn AdmissionPlugin>>,
    pub(crate) context: AdmissionContext,
}

impl AdmissionChain {
    pub(crate) fn new(further: &[Arc<dyn AdmissionPlugin>], context: AdmissionContext) -> Self {
        Self { plugins: further.to_vec(), context }
    }

    /// Returns the context of charges to quotas.
    pub(crate) fn quotas(&self) -> &QuotaContext {
        &self.context.quotas
    }

    /// Returns true if a logical cluster has webhooks that may be called.
    ///
    /// # Errors
    /// Failure to read its configuration.
    pub(crate) async fn calls_webhooks(&self, cluster: LogicalClusterId) -> Result<bool, Status> {
        let configured = self.context.configuration.of(cluster).await?;
        Ok(configured.is_some_and(|own| !own.mutating.is_empty() || !own.validating.is_empty()))
    }

    /// Returns the preconditions under which `object` is created; the commit checks them again.
    pub(crate) async fn preconditions(
        &self,
        request: &AdmissionRequest<'_>,
        object: &Value,
    ) -> Result<Vec<(ObjectKey, Expect)>, Status> {
        namespaces::preconditions(&self.context.storage, request, object).await
    }

    pub(crate) async fn mutate(
        &self,
        request: &AdmissionRequest<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let outcome = self.run_mutating(request, object, old).await;
        self.context.metrics.admission.step("admit", request.operation.word(), outcome.is_err(), started.elapsed());
        outcome
    }

    async fn run_mutating(
        &self,
        request: &AdmissionRequest<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let (mut by_policies, mut by_webhooks) =
            (policies::PolicyReinvocation::default(), webhooks::WebhookReinvocation::default());
        self.plugins(request, object, old).await?;
        if request.subresource != "binding" {
            self.mutate_by_policies(request, object, old, &mut by_policies).await?;
            self.mutate_by_webhooks(request, Some(object), old, &mut by_webhooks).await?;
        }
        if by_policies.is_changed() || by_webhooks.is_changed() {
            self.plugins(request, object, old).await?;
            by_policies.begin_second_round(object);
            self.mutate_by_policies(request, object, old, &mut by_policies).await?;
            by_webhooks.begin_second_round(object);
            self.mutate_by_webhooks(request, Some(object), old, &mut by_webhooks).await?;
        }
        // A write of the status cannot show a step as ended, either.
        if let Some(old) = old.filter(|_| is_workspace(request)) {
            workspaces::restore_server_fields(object, old);
        }
        Ok(())
    }

    async fn plugins(
        &self,
        request: &AdmissionRequest<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        builtin::mutate(&self.context, request, object, old).await?;
        for plugin in &self.plugins {
            plugin.mutate(request, object, old).await?;
        }
        Ok(())
    }

    /// Admits a deletion. Webhooks cannot change the deleted object.
    pub(crate) async fn admit_deletion(&self, request: &AdmissionRequest<'_>, old: &Value) -> Result<(), Status> {
        let started = Instant::now();
        let outcome =
            self.mutate_by_webhooks(request, None, Some(old), &mut webhooks::WebhookReinvocation::default()).await;
        self.context.metrics.admission.step("admit", request.operation.word(), outcome.is_err(), started.elapsed());
        outcome?;
        self.validate(request, None, Some(old)).await
    }

    /// Admits an object that is never stored: a review, an eviction, a binding, or options of a stream.
    pub(crate) async fn admit_unstored(
        &self,
        request: &AdmissionRequest<'_>,
        object: &mut Value,
    ) -> Result<(), Status> {
        self.mutate_unstored(request, object).await?;
        self.validate_unstored(request, object).await
    }

    /// Runs the mutating half of `admit_unstored`, for objects that are completed before validation.
    pub(crate) async fn mutate_unstored(
        &self,
        request: &AdmissionRequest<'_>,
        object: &mut Value,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let admitted = async {
            builtin::mutate_unstored(&self.context, request, object).await?;
            self.mutate_by_policies(request, object, None, &mut policies::PolicyReinvocation::default()).await?;
            self.mutate_by_webhooks(request, Some(object), None, &mut webhooks::WebhookReinvocation::default()).await
        };
        let outcome = admitted.await;
        self.context.metrics.admission.step("admit", request.operation.word(), outcome.is_err(), started.elapsed());
        outcome
    }

    /// Runs the validating half of `admit_unstored`.
    pub(crate) async fn validate_unstored(&self, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), Status> {
        let started = Instant::now();
        let outcome = self.validate_by_configuration(request, Some(object), None).await;
        self.context.metrics.admission.step("validate", request.operation.word(), outcome.is_err(), started.elapsed());
        outcome
    }

    pub(crate) async fn validate(
        &self,
        request: &AdmissionRequest<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        if let Some(view) = request.view {
            shared_apis::check_viewed_write(view, request, (object, old))?;
        }
        let started = Instant::now();
        let outcome = self.run_validating(request, object, old).await;
        self.context.metrics.admission.step("validate", request.operation.word(), outcome.is_err(), started.elapsed());
        outcome
    }

    async fn run_validating(
        &self,
        request: &AdmissionRequest<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        if let Some(object) = object {
            builtin::validate(&self.context, request, object, old).await?;
        }
        for plugin in &self.plugins {
            plugin.validate(request, object, old).await?;
        }
        if let (true, Some(object), Some(old)) = (is_workspace(request), object, old) {
            workspaces::check_finalizer(&self.context.storage.directory, request, object, old)?;
        }
        escalation::check(&self.context.rbac, request, object, old).await?;
        // Binding and eviction requests have been admitted as the object that the client sent.
        match request.subresource {
            "binding" => Ok(()),
            _ => self.validate_by_configuration(request, object, old).await,
        }
    }

    /// Returns true if claims in the request's namespace may have admin access to devices. Read only if a claim asks
    /// for it.
    pub(crate) async fn grants_admin_access(
        &self,
        request: &AdmissionRequest<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<bool, Status> {
        let subresource = Some(request.subresource).filter(|name| !name.is_empty());
        if lifecycle::asks_for_admin_access(request.kind, subresource, old, new).is_none() {
            return Ok(true);
        }
        let namespace = lookup::namespace(&self.context.storage, request.cluster.id, request.namespace).await?;
        let label = namespace.as_ref().and_then(|namespace| object::label(namespace, lifecycle::ADMIN_ACCESS));
        Ok(label == Some("true"))
    }

    /// Allocates addresses and ports of the object and adds their reservations to the commit. As in kube-apiserver,
    /// validating admission runs later and sees them.
    pub(crate) async fn allocate(
        &self,
        request: &AdmissionRequest<'_>,
        object: &mut Value,
        old: Option<&Value>,
        commit: &mut ObjectCommit,
    ) -> Result<(), CommitError> {
        if request.is("", "services") {
            let mut write = PendingWrite { request, object, old, commit };
            services::allocate(&self.context.storage, &mut write).await?;
        }
        Ok(())
    }

    /// Adds to the commit the writes that belong to the object, and completes the object accordingly.
    pub(crate) async fn add_dependent_writes(
        &self,
        request: &AdmissionRequest<'_>,
        object: &mut Value,
        old: Option<&Value>,
        commit: &mut ObjectCommit,
    ) -> Result<(), CommitError> {
        let AdmissionContext { storage, limits, workspaces, .. } = &self.context;
        let write = &mut PendingWrite { request, object, old, commit };
        if request.is(custom::GROUP, custom::RESOURCE) {
            definitions::add_dependent_writes(limits, write).await?;
        }
        if request.is("", "resourcequotas") && request.operation == Operation::Create {
            quota::check_count(limits, write).await?;
        }
        if request.is("rbac.authorization.k8s.io", "clusterroles") {
            aggregation::add_dependent_writes(storage, write).await?;
        }
        if usage_limits::is_configuration(request) {
            usage_limits::check_configuration(limits, write).await?;
        }
        if request.is("portolan.dev", "physicalclusters") && old.is_none() {
            physical_clusters::check_name(storage, write).await?;
        }
        if request.is("tenancy.kcp.io", "workspaces") {
            workspaces::add_dependent_writes(workspaces, write).await?;
        }
        if request.is("tenancy.kcp.io", "workspacetypes") {
            Box::pin(workspace_type_writes::complete(workspaces, write)).await?;
        }
        let names_export = request.is(apis::GROUP, apis::BINDINGS) || request.is(apis::GROUP, apis::SLICES);
        if names_export && old.is_none() {
            shared_apis::check_export(workspaces, write).await?;
        }
        if request.is(apis::GROUP, apis::SCHEMAS) && old.is_none() {
            shared_apis::check_schema(limits, write).await?;
        }
        Ok(())
    }

    /// Adds to the commit the writes that follow from the deletion mark of the object.
    pub(crate) fn on_deletion_marked(&self, request: &AdmissionRequest<'_>, object: &Value, commit: &mut ObjectCommit) {
        if request.is("tenancy.kcp.io", "workspaces") {
            workspaces::on_deletion_marked(&self.context.storage, request.cluster.id, object, commit);
        }
    }

    /// Adds to the commit the writes that remove what belongs to the object.
    pub(crate) async fn add_cleanup_writes(
        &self,
        request: &AdmissionRequest<'_>,
        old: &Value,
        commit: &mut ObjectCommit,
    ) -> Result<(), Status> {
        if *request.kind.gvk.group == *"" && *request.kind.resource == *"services" {
            services::release_all(&self.context.storage, request, old, commit).await?;
        }
        Ok(())
    }

    /// Runs the validating policies and webhooks that the logical cluster has configured.
    async fn validate_by_configuration(
        &self,
        request: &AdmissionRequest<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let step = |name| AdmissionStepLabels { name, kind: "validate", operation: request.operation.word() };
        let (context, metrics) = (&self.context, &self.context.metrics.admission);
        let by_policies = policies::validate(context, request, object, old);
        metrics.controller(step("ValidatingAdmissionPolicy"), by_policies).await?;
        let by_webhooks = webhooks::validate(context, request, object, old);
        metrics.controller(step("ValidatingAdmissionWebhook"), by_webhooks).await
    }

    async fn mutate_by_policies(
        &self,
        request: &AdmissionRequest<'_>,
        object: &mut Value,
        old: Option<&Value>,
        reinvocation: &mut policies::PolicyReinvocation,
    ) -> Result<(), Status> {
        let operation = request.operation.word();
        let step = AdmissionStepLabels { name: "MutatingAdmissionPolicy", kind: "admit", operation };
        let asked = MutatingRequest { context: &self.context, request, old };
        self.context.metrics.admission.controller(step, policies::mutate(asked, object, reinvocation)).await
    }

    async fn mutate_by_webhooks(
        &self,
        request: &AdmissionRequest<'_>,
        object: Option<&mut Value>,
        old: Option<&Value>,
        reinvocation: &mut webhooks::WebhookReinvocation,
    ) -> Result<(), Status> {
        let operation = request.operation.word();
        let step = AdmissionStepLabels { name: "MutatingAdmissionWebhook", kind: "admit", operation };
        let asked = MutatingRequest { context: &self.context, request, old };
        self.context.metrics.admission.controller(step, webhooks::mutate(asked, object, reinvocation)).await
    }
}

/// Returns true for a write of a Workspace, or of a part of it.
fn is_workspace(request: &AdmissionRequest<'_>) -> bool {
    *request.kind.gvk.group == *"tenancy.kcp.io" && *request.kind.resource == *"workspaces"
}
