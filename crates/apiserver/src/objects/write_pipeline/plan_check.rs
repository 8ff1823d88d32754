//! Plans in the write pipeline. A dry run reports its plan in a `Warning` header. A write with the annotation
//! `portolan.dev/expect-plan` is refused if its plan has changed. It is committed only if no policy or physical cluster
//! was written or created since the plan.

use portolan_store::Expect;
use portolan_types::{Status, StatusCause, annotations, quoted::go_quoted};
use serde_json::Value;

use crate::{
    commit::{CommitError, ObjectCommit},
    hooks::AdmittedWrite,
};

use super::Admitted;

impl Admitted<'_> {
    /// Plans a write that is about to be committed, if it is a dry run or expects a plan.
    ///
    /// # Errors
    /// 409 if the plan is another than the expected one; 422 if a write that expects a plan has none; the errors of the
    /// planner.
    pub(super) async fn check_plan(&self, object: &Value, commit: &mut ObjectCommit) -> Result<(), CommitError> {
        let request = &self.scope.request;
        let expected = self.expected_plan.as_deref();
        if expected.is_none() && !request.dry_run {
            return Ok(());
        }
        let planner = self.scope.context.planner.as_deref().filter(|_| request.subresource.is_empty());
        let (cluster, kind, key, old) = (request.cluster, request.kind, commit.key.clone(), self.old);
        let write = AdmittedWrite { cluster, kind, key: &key, object, old };
        let Some(planner) = planner.filter(|planner| planner.concerns(&write)) else {
            return if expected.is_some() { Err(self.without_plan(&key.name).into()) } else { Ok(()) };
        };
        let plan = match (planner.plan(write).await, expected) {
            (Ok(plan), _) => plan,
            (Err(status), Some(_)) => return Err(status.into()),
            (Err(status), None) => {
                request.warn(format!("the effect on placements is unknown: {}", status.message()));
                return Ok(());
            }
        };
        if request.dry_run {
            request.warn(plan.summary.clone());
        }
        if expected.is_some_and(|expected| expected != plan.hash) {
            let why = format!("its plan is not the expected one any more: {}", plan.summary);
            return Err(Status::conflict(&kind.group_resource(), &key.name, why).into());
        }
        if expected.is_some() {
            let expect = |read: Option<_>| read.map_or(Expect::Absent, Expect::At);
            commit.fences = plan.fences.into_iter().map(|(fence, read)| (fence, expect(read))).collect();
        }
        Ok(())
    }

    /// Returns the 422 for a write that expects a plan although no placement depends on it.
    fn without_plan(&self, name: &str) -> Status {
        let value = go_quoted(self.expected_plan.as_deref().unwrap_or_default());
        let why = "only writes of policies, PhysicalClusters and pins have a plan";
        let cause = StatusCause {
            reason: "FieldValueInvalid".into(),
            message: format!("Invalid value: {value}: {why}"),
            field: format!("metadata.annotations[{}]", annotations::EXPECT_PLAN),
        };
        Status::invalid(&self.scope.request.kind.gvk.group_kind(), name, vec![cause])
    }
}
