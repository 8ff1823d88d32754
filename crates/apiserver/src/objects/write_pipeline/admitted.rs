//! Second stage: the object after mutating admission.

use portolan_merge::apply;
use portolan_store::Expect;
use portolan_strategy::{
    lifecycle::{self, Update, WriteContext},
    warnings,
};
use portolan_types::{ObjectKey, Status, object};
use serde_json::Value;

use super::{Prepared, WriteEffect, WriteScope};

/// Object of a write after mutating admission.
pub(crate) struct Admitted<'a> {
    pub(super) scope: &'a WriteScope<'a>,
    pub(super) object: Value,
    pub(super) old: Option<&'a Value>,
    /// Preconditions on other objects.
    pub(super) checks: Vec<(ObjectKey, Expect)>,
    /// resourceVersion that the client sent for a create.
    pub(super) sent_revision: Option<Value>,
    /// Hash of the plan that the write expects.
    pub(super) expected_plan: Option<String>,
    /// True for a write of the server itself, which passes no admission and no quota.
    pub(super) is_exempt: bool,
}

impl<'a> Admitted<'a> {
    /// Returns the stage of an object that admission has passed.
    pub(super) fn by_admission(scope: &'a WriteScope<'a>, object: Value, old: Option<&'a Value>) -> Self {
        let checks = Vec::new();
        Self { scope, object, old, checks, sent_revision: None, expected_plan: None, is_exempt: false }
    }

    /// Returns the stage of an update that the server makes on its own, which passes no admission.
    pub(crate) fn by_server(scope: &'a WriteScope<'a>, object: Value, old: &'a Value) -> Self {
        Self { is_exempt: true, ..Self::by_admission(scope, object, Some(old)) }
    }

    /// Adds the preconditions of a create and the resourceVersion that the client sent.
    pub(super) fn with_preconditions(mut self, checks: Vec<(ObjectKey, Expect)>, sent_revision: Option<Value>) -> Self {
        (self.checks, self.sent_revision) = (checks, sent_revision);
        self
    }

    /// Completes the object by the rules of its life cycle and validates its fields. `is_outdated` is true if the
    /// stored state is not in the current storage version, so that an unchanged object is written too.
    ///
    /// # Errors
    /// 400, 409 and 422 of the life cycle and of validation.
    pub(crate) async fn prepare(mut self, is_outdated: bool) -> Result<Prepared<'a>, Status> {
        let grants_admin_access = self.grants_admin_access().await?;
        let object = std::mem::take(&mut self.object);
        let (scope, old) = (self.scope, self.old);
        let sent = || scope.body.and_then(|body| body.decode_untyped(old));
        let names = |word: &str| scope.body.is_some_and(|body| body.contains(word));
        let warn = |texts| scope.warn(texts);
        let mut context = WriteContext {
            allocates: scope.allocates(),
            grants_admin_access,
            // A patch has no uid precondition; a uid in it is a change.
            asks_uid: scope.verb != "patch",
            ..WriteContext::new(&scope.target.table, &scope.context.reads.storage.seams)
        };
        if scope.body.is_some() {
            context.sent = Some(&sent);
            context.names = Some(&names);
        }
        let Some(old) = old else {
            let (kind, namespace) = (&scope.target.kind, scope.target.namespace.as_deref());
            let object = lifecycle::prepare_create(&context, kind, object, namespace, scope.url_name)?;
            let name = object::name(&object).to_owned();
            return Ok(Prepared { stage: self, name, object, effect: WriteEffect::Create });
        };
        if !self.is_exempt {
            context.warn = Some(&warn);
        }
        let subresource = scope.isolated_subresource();
        let update = lifecycle::prepare_update(&context, &scope.target.kind, subresource, old, object)?;
        let (object, effect) = match update {
            Update::Unchanged if !is_outdated => {
                if !self.is_exempt {
                    scope.warn(warnings::on_update(&scope.target.kind, subresource, old, old));
                }
                (Value::Null, WriteEffect::Nothing)
            }
            // Clients migrate objects to the current storage version by writing them unchanged.
            Update::Unchanged => (old.clone(), WriteEffect::Update),
            // As in kube-apiserver, changes that the server reverted do not count, and neither do their timestamps.
            Update::Changed(mut object) => {
                let is_unchanged = apply::keep_times(old, &mut object) && !is_outdated;
                if is_unchanged { (Value::Null, WriteEffect::Nothing) } else { (object, WriteEffect::Update) }
            }
            Update::Removed(object) => (object, WriteEffect::Remove),
        };
        Ok(Prepared { name: scope.request.name.to_owned(), stage: self, object, effect })
    }

    async fn grants_admin_access(&self) -> Result<bool, Status> {
        if self.is_exempt {
            return Ok(true);
        }
        let WriteScope { context, request, .. } = self.scope;
        context.admission.grants_admin_access(request, self.old, &self.object).await
    }
}
