//! Third stage: the object as it would be stored.

use portolan_store::Expect;
use portolan_strategy::{lifecycle, warnings};
use portolan_types::{ObjectKey, object};
use serde_json::Value;

use crate::{
    commit::{CommitError, ObjectCommit},
    hooks::AdmissionRequest,
};

use super::{Admitted, Validated};

/// Effect of a write on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteEffect {
    Create,
    Update,
    /// The last finalizer is gone.
    Remove,
    /// The object is stored like this already.
    Nothing,
}

/// Object of a write, complete and with valid fields.
pub(crate) struct Prepared<'a> {
    /// Stage before, without its object.
    pub(super) stage: Admitted<'a>,
    /// Name of the object, which may be generated.
    pub(super) name: String,
    pub(super) object: Value,
    pub(super) effect: WriteEffect,
}

impl<'a> Prepared<'a> {
    /// Returns the name of the object.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the effect of the write.
    pub(crate) fn effect(&self) -> WriteEffect {
        self.effect
    }

    /// Removes a generated name, so that errors name the prefix and repeated ones are equal.
    pub(crate) fn without_name(mut self) -> Self {
        self.name.clear();
        object::metadata_mut(&mut self.object).remove("name");
        self
    }

    /// Returns the request with the name of the object.
    pub(super) fn request(&self) -> AdmissionRequest<'_> {
        AdmissionRequest { name: &self.name, ..self.stage.scope.request }
    }

    /// Calls validating admission, and adds to the commit the writes that belong to this one. `key` is the object's,
    /// and `expect` the state in which it is written.
    ///
    /// # Errors
    /// The errors of admission.
    pub(crate) async fn validate(mut self, key: ObjectKey, expect: Expect) -> Result<Validated<'a>, CommitError> {
        let mut commit = ObjectCommit::new(key, expect, None);
        if !self.stage.is_exempt {
            self.admit_prepared(&mut commit).await?;
        }
        commit.checks.append(&mut self.stage.checks);
        if self.effect == WriteEffect::Create
            && !self.stage.scope.request.dry_run
            && self.stage.scope.url_name.is_none()
        {
            let sent = self.stage.sent_revision.as_ref().and_then(Value::as_str);
            lifecycle::check_unset_revision(sent.unwrap_or_default())?;
        }
        Ok(Validated { prepared: self, commit })
    }

    async fn admit_prepared(&mut self, commit: &mut ObjectCommit) -> Result<(), CommitError> {
        let (scope, old) = (self.stage.scope, self.stage.old);
        let (admission, kind) = (&scope.context.admission, &scope.target.kind);
        let mut object = std::mem::take(&mut self.object);
        let request = self.request();
        match (self.effect, old) {
            // A write that changes nothing must be permitted too.
            (WriteEffect::Nothing, _) => admission.validate(&request, old, old).await?,
            (WriteEffect::Remove, Some(old)) => {
                scope.warn(warnings::on_update(kind, scope.isolated_subresource(), old, &object));
                admission.validate(&request, Some(&object), Some(old)).await?;
                admission.add_cleanup_writes(&request, old, commit).await?;
            }
            (WriteEffect::Create | WriteEffect::Update | WriteEffect::Remove, _) => {
                admission.allocate(&request, &mut object, old, commit).await?;
                scope.warn(match old {
                    None => warnings::on_create(kind, &object),
                    Some(old) => warnings::on_update(kind, scope.isolated_subresource(), old, &object),
                });
                admission.validate(&request, Some(&object), old).await?;
                admission.add_dependent_writes(&request, &mut object, old, commit).await?;
                self.stage.check_plan(&object, commit).await?;
            }
        }
        self.object = object;
        Ok(())
    }
}
