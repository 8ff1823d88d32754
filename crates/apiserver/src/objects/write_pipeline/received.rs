//! First stage: the object as the client sent it.

use portolan_merge::apply::{self, UpdateRequest};
use portolan_store::Expect;
use portolan_strategy::{defaults, lifecycle, warnings};
use portolan_types::{ObjectKey, Reason, Status, annotations, number, object};
use serde_json::Value;

use crate::{authn::user_info, options::no_number, routing::routes::not_found_at};

use super::{Admitted, FieldTracking, WriteScope};

/// Decoded object of a write, before admission.
pub(crate) struct Received<'a> {
    scope: &'a WriteScope<'a>,
    object: Value,
    /// Stored state that is updated; `None` for a create.
    old: Option<&'a Value>,
}

/// Moment at which owner references are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerCheck {
    /// In the object that the client sent.
    Sent,
    /// After mutating admission.
    Admitted,
}

impl<'a> Received<'a> {
    /// Returns the first stage of a write; `old` is the stored state, unless it is a create.
    pub(crate) fn new(scope: &'a WriteScope<'a>, object: Value, old: Option<&'a Value>) -> Self {
        Self { scope, object, old }
    }

    /// Checks preconditions, sets defaults, records the field manager, and calls mutating admission.
    ///
    /// # Errors
    /// The errors of admission, and of an object that contradicts its URL.
    pub(crate) async fn admit(mut self) -> Result<Admitted<'a>, Status> {
        let expected_plan = self.take_expected_plan();
        let admitted = match self.old {
            None => self.admit_create().await,
            Some(old) => self.admit_update(old).await,
        };
        Ok(Admitted { expected_plan, ..admitted? })
    }

    /// Removes the hash of the plan that the write expects. It is a precondition of this write, not a part of the
    /// object.
    fn take_expected_plan(&mut self) -> Option<String> {
        let expected = object::annotation(&self.object, annotations::EXPECT_PLAN)?.to_owned();
        object::set_annotation(&mut self.object, annotations::EXPECT_PLAN, None);
        Some(expected)
    }

    async fn admit_create(mut self) -> Result<Admitted<'a>, Status> {
        let scope = self.scope;
        let (admission, target) = (&scope.context.admission, scope.target);
        let mut checks = admission.preconditions(&scope.request, &self.object).await?;
        lifecycle::wipe_system_fields(&mut self.object);
        lifecycle::match_namespace(&target.kind, &mut self.object, target.namespace.as_deref())?;
        checks.extend(self.definition_precondition().await?);
        let sent_revision = object::metadata_mut(&mut self.object).remove("resourceVersion");
        self.remove_duplicate_owners(OwnerCheck::Sent);
        self.record_manager().await?;
        admission.mutate(&scope.request, &mut self.object, None).await?;
        self.remove_duplicate_owners(OwnerCheck::Admitted);
        if scope.url_name.is_some() {
            check_revision(sent_revision.as_ref().and_then(Value::as_str).unwrap_or_default())?;
        }
        if target.hooks().records_requester {
            lifecycle::set_requester(&mut self.object, &user_info(scope.request.user));
        }
        scope.warn(warnings::before_create(&target.kind, &self.object));
        Ok(Admitted::by_admission(scope, self.object, None).with_preconditions(checks, sent_revision))
    }

    async fn admit_update(mut self, old: &'a Value) -> Result<Admitted<'a>, Status> {
        let (scope, admission) = (self.scope, &self.scope.context.admission);
        lifecycle::match_namespace(&scope.target.kind, &mut self.object, Some(object::namespace(old)))?;
        check_revision(object::meta_text(&self.object, "resourceVersion"))?;
        if scope.verb == "update" {
            self.remove_duplicate_owners(OwnerCheck::Sent);
        }
        self.record_manager().await?;
        admission.mutate(&scope.request, &mut self.object, Some(old)).await?;
        self.remove_duplicate_owners(OwnerCheck::Admitted);
        Ok(Admitted::by_admission(scope, self.object, Some(old)))
    }

    /// Removes duplicate owner references, with a warning.
    fn remove_duplicate_owners(&mut self, check: OwnerCheck) {
        let duplicates = lifecycle::name_owners_once(&mut self.object);
        if !duplicates.is_empty() {
            let when = match check {
                OwnerCheck::Sent => "",
                OwnerCheck::Admitted => " after mutating admission happens",
            };
            let why = "API server dedups owner references in 1.20+, and may reject such requests as early as 1.24";
            let plea = format!("please fix your requests; duplicate UID(s) observed: {}", duplicates.join(", "));
            let text = format!(".metadata.ownerReferences contains duplicate entries{when}; {why}; {plea}");
            self.scope.warn(vec![text]);
        }
    }

    /// Sets defaults and records the field manager: of what the client wrote and of defaults, not of what admission and
    /// the server set later.
    ///
    /// # Errors
    /// The errors of setting defaults.
    async fn record_manager(&mut self) -> Result<(), Status> {
        let (scope, old) = (self.scope, self.old);
        let (table, kind, object) = (&scope.target.table, &scope.target.kind, &mut self.object);
        // As in kube-apiserver, an apply that changes nothing gets no defaults, like the stored object.
        let is_applied = matches!(scope.fields, FieldTracking::Applied);
        if !is_applied || !old.is_some_and(|old| apply::equal_but_bookkeeping(old, object)) {
            defaults::apply(table, kind, object)?;
        }
        lifecycle::keep_server_keys(object, old);
        match scope.fields {
            FieldTracking::Update { manager, conversions } => {
                let (subresource, now) = (scope.subresource(), scope.context.reads.storage.seams.now_text());
                let request = UpdateRequest { old, manager, subresource, now: &now, conversions };
                let track = || Ok(apply::track_update(table, kind, &request, object)?);
                scope.converter().with_conversions(conversions, track).await
            }
            FieldTracking::Unchanged => {
                let before = old.and_then(|old| object::metadata(old).get("managedFields")).cloned();
                object::metadata_mut(object).extend(before.map(|before| ("managedFields".to_owned(), before)));
                Ok(())
            }
            FieldTracking::Applied | FieldTracking::Nothing => Ok(()),
        }
    }

    /// Returns the precondition that the definition of a custom resource still exists when a new object is committed:
    /// an object created while its definition is being deleted would outlive it. `None` for built-in kinds.
    ///
    /// # Errors
    /// 404 when the definition is gone or was replaced; 403 when it is being deleted.
    async fn definition_precondition(&self) -> Result<Option<(ObjectKey, Expect)>, Status> {
        let (kinds, target) = (&self.scope.context.kinds, self.scope.target);
        let Some(found) = &target.definition else { return Ok(None) };
        let now = kinds.definition(found.key.cluster, &found.name).await?;
        match now.filter(|now| now.created == found.created) {
            None => Err(not_found_at(self.scope.path)),
            Some(now) if now.is_deleting => {
                let why = "create not allowed while custom resource definition is terminating";
                Err(Status::forbidden(&target.resource(), object::name(&self.object), why))
            }
            Some(now) => Ok(Some((now.key, Expect::Lives { created: now.created, written: now.revision }))),
        }
    }
}

/// Checks the syntax of a resourceVersion.
///
/// # Errors
/// 500, as in kube-apiserver, when it is not a number.
fn check_revision(sent: &str) -> Result<(), Status> {
    if sent.is_empty() || number::unsigned(sent, Some(10)).is_some() {
        return Ok(());
    }
    Err(Status::new(Reason::Unknown, no_number(sent)))
}
