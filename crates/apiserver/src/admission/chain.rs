//! The order of steps.

use std::sync::Arc;

use portolan_machinery::{custom, lifecycle};
use portolan_store::Expect;
use portolan_types::{ObjectKey, Status, object};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    ApiServer,
    metrics::Step,
    objects::{Commit, CommitError},
};

use super::{
    Admission, Operation, Request, aggregation, builtin, definitions, escalation, lookup, namespaces,
    physical_clusters, policies, quota, room, services, webhooks, workspaces,
};

/// Kubernetes' own steps come first, then the binary's.
pub(crate) struct Chain {
    steps: Vec<Arc<dyn Admission>>,
}

impl Chain {
    pub(crate) fn new(further: &[Arc<dyn Admission>]) -> Self {
        Self { steps: further.to_vec() }
    }

    /// What must hold of the place where `object` is made, and must still hold when it is committed.
    pub(crate) async fn guard(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: &Value,
    ) -> Result<Vec<(ObjectKey, Expect)>, Status> {
        namespaces::guard(api, request, object).await
    }

    pub(crate) async fn mutate(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let outcome = self.mutated(api, request, object, old).await;
        api.metrics.admission.step("admit", request.operation.word(), outcome.is_err(), started.elapsed());
        outcome
    }

    async fn mutated(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let (mut by_policies, mut by_webhooks) = (policies::Rounds::default(), webhooks::Rounds::default());
        self.steps(api, request, object, old).await?;
        if request.subresource != "binding" {
            changed_by_policies(api, request, object, old, &mut by_policies).await?;
            changed_by_webhooks(api, request, Some(object), old, &mut by_webhooks).await?;
        }
        if by_policies.changed() || by_webhooks.changed() {
            self.steps(api, request, object, old).await?;
            by_policies.begin_second(object);
            changed_by_policies(api, request, object, old, &mut by_policies).await?;
            by_webhooks.begin_second(object);
            changed_by_webhooks(api, request, Some(object), old, &mut by_webhooks).await?;
        }
        if let Some(old) = old.filter(|_| request.is("tenancy.kcp.io", "workspaces")) {
            workspaces::keep(object, old);
        }
        Ok(())
    }

    async fn steps(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        builtin::mutate(api, request, object, old).await?;
        for step in &self.steps {
            step.mutate(request, object, old).await?;
        }
        Ok(())
    }

    /// What a deletion must pass. Webhooks may not change what is deleted.
    pub(crate) async fn admit_removal(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        old: &Value,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let outcome = changed_by_webhooks(api, request, None, Some(old), &mut webhooks::Rounds::default()).await;
        api.metrics.admission.step("admit", request.operation.word(), outcome.is_err(), started.elapsed());
        outcome?;
        self.validate(api, request, None, Some(old)).await
    }

    /// What must pass that is never stored: reviews, evictions, bindings, and options of streams.
    pub(crate) async fn admit_passing(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
    ) -> Result<(), Status> {
        self.mutate_passing(api, request, object).await?;
        self.validate_passing(api, request, object).await
    }

    /// The first half of `admit_passing`: for what is completed before it is validated.
    pub(crate) async fn mutate_passing(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let admitted = async {
            builtin::mutate_passing(api, request, object).await?;
            changed_by_policies(api, request, object, None, &mut policies::Rounds::default()).await?;
            changed_by_webhooks(api, request, Some(object), None, &mut webhooks::Rounds::default()).await
        };
        let outcome = admitted.await;
        api.metrics.admission.step("admit", request.operation.word(), outcome.is_err(), started.elapsed());
        outcome
    }

    /// The second half of `admit_passing`.
    pub(crate) async fn validate_passing(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: &Value,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let outcome = by_configuration(api, request, Some(object), None).await;
        api.metrics.admission.step("validate", request.operation.word(), outcome.is_err(), started.elapsed());
        outcome
    }

    pub(crate) async fn validate(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let outcome = self.validated(api, request, object, old).await;
        api.metrics.admission.step("validate", request.operation.word(), outcome.is_err(), started.elapsed());
        outcome
    }

    async fn validated(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        if let Some(object) = object {
            builtin::validate(api, request, object, old).await?;
        }
        for step in &self.steps {
            step.validate(request, object, old).await?;
        }
        let is_workspace = *request.kind.gvk.group == *"tenancy.kcp.io" && *request.kind.resource == *"workspaces";
        if let (true, Some(object), Some(old)) = (is_workspace, object, old) {
            workspaces::check_held(api, request, object, old)?;
        }
        escalation::check(api, request, object, old).await?;
        // What is bound has been admitted as the binding that it came as.
        match request.subresource {
            "binding" => Ok(()),
            _ => by_configuration(api, request, object, old).await,
        }
    }

    /// Whether claims in the namespace of the request may have admin access to devices; it is looked at only where one asks for it.
    pub(crate) async fn grants_admin_access(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        (old, new): (Option<&Value>, &Value),
    ) -> Result<bool, Status> {
        let subresource = Some(request.subresource).filter(|name| !name.is_empty());
        if lifecycle::asks_for_admin_access(request.kind, subresource, old, new).is_none() {
            return Ok(true);
        }
        let namespace = lookup::namespace(api, request.cluster.id, request.namespace).await?;
        let label = namespace.as_ref().and_then(|namespace| object::label(namespace, lifecycle::ADMIN_ACCESS));
        Ok(label == Some("true"))
    }

    /// Gives the object addresses and ports, and adds to the commit what reserves them. As upstream, this comes before validating
    /// admission, which sees them.
    pub(crate) async fn allocate(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
        commit: &mut Commit,
    ) -> Result<(), CommitError> {
        match request.is("", "services") {
            true => services::furnish(api, request, object, old, commit).await,
            false => Ok(()),
        }
    }

    /// Adds to the commit what must be written with the object, and to the object what follows from that.
    pub(crate) async fn furnish(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
        commit: &mut Commit,
    ) -> Result<(), CommitError> {
        if request.is(custom::GROUP, custom::RESOURCE) {
            definitions::furnish(api, request, object, old, commit).await?;
        }
        if request.is("", "resourcequotas") && request.operation == Operation::Create {
            quota::check_count(api, request, object, commit).await?;
        }
        if request.is("rbac.authorization.k8s.io", "clusterroles") {
            aggregation::furnish(api, request, object, commit).await?;
        }
        if room::is_configuration(request) {
            room::check_configuration(api, request, object, old, commit).await?;
        }
        if request.is("portolan.dev", "physicalclusters") && old.is_none() {
            physical_clusters::check_name(api, request, object, commit).await?;
        }
        if request.is("tenancy.kcp.io", "workspaces") {
            match old {
                None => workspaces::furnish(api, request, object, commit).await?,
                Some(old) => workspaces::limit(api, request, (object, old), commit).await?,
            }
        }
        Ok(())
    }

    /// Adds to the commit what follows from the mark that the object is being deleted.
    pub(crate) fn doom(&self, api: &ApiServer, request: &Request<'_>, object: &Value, commit: &mut Commit) {
        if request.is("tenancy.kcp.io", "workspaces") {
            workspaces::doom(api, object, commit);
        }
    }

    /// Adds to the commit what goes with the object.
    pub(crate) async fn clear(
        &self,
        api: &ApiServer,
        request: &Request<'_>,
        old: &Value,
        commit: &mut Commit,
    ) -> Result<(), Status> {
        if *request.kind.gvk.group == *"" && *request.kind.resource == *"services" {
            services::clear(api, request, old, commit).await?;
        }
        Ok(())
    }
}

/// What the logical cluster has configured itself to be asked: its policies, then its webhooks.
async fn by_configuration(
    api: &ApiServer,
    request: &Request<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    let step = |name| Step { name, kind: "validate", operation: request.operation.word() };
    let by_policies = policies::validate(api, request, object, old);
    api.metrics.admission.controller(step("ValidatingAdmissionPolicy"), by_policies).await?;
    let by_webhooks = webhooks::validate(api, request, object, old);
    api.metrics.admission.controller(step("ValidatingAdmissionWebhook"), by_webhooks).await
}

async fn changed_by_policies(
    api: &ApiServer,
    request: &Request<'_>,
    object: &mut Value,
    old: Option<&Value>,
    rounds: &mut policies::Rounds,
) -> Result<(), Status> {
    let step = Step { name: "MutatingAdmissionPolicy", kind: "admit", operation: request.operation.word() };
    api.metrics.admission.controller(step, policies::mutate(api, request, object, old, rounds)).await
}

async fn changed_by_webhooks(
    api: &ApiServer,
    request: &Request<'_>,
    object: Option<&mut Value>,
    old: Option<&Value>,
    rounds: &mut webhooks::Rounds,
) -> Result<(), Status> {
    let step = Step { name: "MutatingAdmissionWebhook", kind: "admit", operation: request.operation.word() };
    api.metrics.admission.controller(step, webhooks::mutate(api, request, object, old, rounds)).await
}
