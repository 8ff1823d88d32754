//! Admission of a pod or volume claim that a controller would create from a template: it passes the write pipeline as a
//! dry run before the object with the template is placed.

use portolan_kinds::Served;
use portolan_store::Expect;
use portolan_strategy::rbac::User;
use portolan_types::{InvalidName, LogicalClusterId, NamespaceName, ObjectKey, Scope, Status, object};
use serde_json::Value;

use crate::{
    commit::CommitError,
    hooks::{
        AdmissionOptions, AdmissionRequest, InlineBudget, Operation, annotations::AuditAnnotations, warnings::Warnings,
    },
    request::ResourceTarget,
    requester::Requester,
};

use super::{
    PipelineContext,
    write_pipeline::{FieldTracking, Received, WriteScope},
};

/// Pod or claim that a controller would create from a template.
#[derive(Clone, Copy, Debug)]
pub struct TemplatedObject<'a> {
    /// Logical cluster.
    pub cluster: LogicalClusterId,
    /// Namespace.
    pub namespace: &'a str,
    /// Resource of the core group.
    pub resource: &'a str,
    /// User of the controller.
    pub user: &'a User,
}

/// Returns the pod or claim as it would be stored if the user of `templated` created `made`: a dry run of
/// everything but quotas.
///
/// # Errors
/// The error that such a request would get.
pub(crate) async fn admit_from_template(
    context: &PipelineContext,
    templated: TemplatedObject<'_>,
    made: Value,
) -> Result<Value, Status> {
    let TemplatedObject { cluster, namespace, resource, user } = templated;
    let cluster = context.reads.storage.directory.by_id(cluster).ok_or_else(Status::no_such_path)?;
    let served = context.kinds.served(cluster.id).await?.surface.resource("", "v1", resource);
    let Served { table, kind } = served.ok_or_else(Status::no_such_path)?;
    let parsed = namespace.parse::<NamespaceName>().map_err(|e| Status::bad_request(e.to_string()))?;
    let target = ResourceTarget { table, kind, namespace: Some(parsed), definition: None };
    let (warnings, notes, inline_budget) = (Warnings::default(), AuditAnnotations::default(), InlineBudget::default());
    let name = object::name(&made).to_owned();
    let request = AdmissionRequest {
        cluster: &cluster,
        kind: &target.kind,
        namespace,
        name: &name,
        url_name: "",
        operation: Operation::Create,
        subresource: "",
        user,
        requester: Requester { user, home: Some(cluster.id) },
        dry_run: true,
        warnings: &warnings,
        notes: &notes,
        inline_budget: &inline_budget,
        view: None,
        table: &target.table,
        options: AdmissionOptions::Nothing,
    };
    let scope = WriteScope {
        context,
        target: &target,
        request,
        url_name: None,
        path: "",
        verb: "create",
        fields: FieldTracking::Nothing,
        body: None,
    };
    let mut prepared = Received::new(&scope, made, None).admit().await?.prepare(false).await?;
    let key = ObjectKey {
        cluster: cluster.id,
        resource: target.stored_as(),
        scope: Scope::from(target.namespace.clone()),
        name: prepared.name().parse().map_err(|e: InvalidName| Status::bad_request(e.to_string()))?,
    };
    if name.is_empty() {
        // Refusals name it by the prefix of its generated name, so that repeated ones are equal.
        prepared = prepared.without_name();
    }
    let validated = prepared.validate(key, Expect::Absent).await.map_err(CommitError::into_status)?;
    Ok(validated.into_object())
}
