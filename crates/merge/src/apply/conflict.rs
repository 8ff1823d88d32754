//! Fields that the applied configuration sets to another value than their owner did.

use portolan_types::{Reason, Status, StatusCause};

use super::{managers::ManagerId, set::FieldSet};

/// The fields in conflict, by owner.
#[derive(Debug, Default)]
pub(super) struct Conflicts(pub(super) Vec<(ManagerId, FieldSet)>);

impl Conflicts {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the conflicts that are not in `allowed`.
    pub(super) fn outside(&self, allowed: &FieldSet) -> Self {
        let left = self.0.iter().map(|(id, fields)| (id.clone(), fields.difference(allowed)));
        Self(left.filter(|(_, fields)| !fields.is_empty()).collect())
    }

    /// Returns a 409 with a cause for each field, with owners in kube-apiserver's order.
    pub(super) fn to_status(&self) -> Status {
        let mut owners: Vec<_> = self.0.iter().collect();
        owners.sort_by_cached_key(|(id, _)| id.identifier());
        let paths: Vec<(String, Vec<String>)> =
            owners.into_iter().map(|(id, fields)| (id.to_string(), fields.paths())).collect();
        let causes = paths.iter().flat_map(|(id, paths)| paths.iter().map(move |path| (id, path)));
        causes.fold(Status::new(Reason::Conflict, message(&paths)), |status, (id, path)| {
            status.with_cause(StatusCause {
                reason: "FieldManagerConflict".into(),
                message: format!("conflict with {id}"),
                field: path.clone(),
            })
        })
    }
}

fn message(conflicts: &[(String, Vec<String>)]) -> String {
    let count: usize = conflicts.iter().map(|(_, paths)| paths.len()).sum();
    if let ([(id, paths)], 1) = (conflicts, count) {
        return format!("Apply failed with 1 conflict: conflict with {id}: {}", paths.concat());
    }
    let line = |(id, paths): &(String, Vec<String>)| {
        let paths: String = paths.iter().map(|path| format!("\n- {path}")).collect();
        format!("conflicts with {id}:{paths}")
    };
    let lines: Vec<String> = conflicts.iter().map(line).collect();
    format!("Apply failed with {count} conflicts: {}", lines.join("\n"))
}
