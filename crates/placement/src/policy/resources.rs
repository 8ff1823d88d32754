//! Selectors of the objects that a policy is about.

use std::sync::Arc;

use portolan_types::{LabelSelector, placement::ResourceSelector};

use crate::{
    expressions::{CelVerdict, CompiledCel},
    object_role::Role,
    workload::Workload,
};

/// Result of the selectors of a policy for one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResourceMatch {
    /// The policy is about the object.
    About,
    /// The policy is about others.
    Others,
    /// An expression has no value for the object: the sentence.
    Unknown(Arc<str>),
}

/// Compiled selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CompiledResource {
    pub(super) spec: ResourceSelector,
    /// `None` if it cannot be read.
    labels: Option<LabelSelector>,
    cel: Option<CompiledCel>,
}

impl CompiledResource {
    /// Compiles a selector. `fault` receives the first error.
    pub(super) fn compile(spec: &ResourceSelector, fault: &mut Option<String>) -> Self {
        let labels = match LabelSelector::try_from(&spec.selector) {
            Ok(labels) => Some(labels),
            Err(error) => {
                fault.get_or_insert(error.to_string());
                None
            }
        };
        let cel = match CompiledCel::of_object(&spec.cel) {
            _ if spec.cel.is_empty() => None,
            Ok(cel) => Some(cel),
            Err(error) => {
                fault.get_or_insert(format!("resources.cel: {error}"));
                None
            }
        };
        Self { spec: spec.clone(), labels, cel }
    }

    /// Returns true if the group and kind match, or are `*`.
    pub(super) fn has_kind(&self, group: &str, kind: &str) -> bool {
        let any_kind = self.spec.kinds.is_empty() || self.spec.kinds.iter().any(|k| k == kind || k == "*");
        any_kind && (self.spec.api_group == group || self.spec.api_group == "*")
    }

    /// Returns true if the group is named explicitly, not only matched by `*`.
    pub(super) fn names_group(&self, group: &str) -> bool {
        self.spec.api_group == group
    }

    /// Returns true with an expression.
    pub(super) fn reads_objects(&self) -> bool {
        self.cel.is_some()
    }

    /// Matches an object; labels that cannot be read match if `unreadable` is true, and then also custom kinds whose
    /// group is not named.
    pub(super) fn matches(&self, workload: &Workload, unreadable: bool) -> ResourceMatch {
        let named = unreadable || workload.role != Role::Explicit || self.names_group(&workload.kind.group);
        let fits = named
            && self.has_kind(&workload.kind.group, &workload.kind.kind)
            && (self.spec.names.is_empty() || self.spec.names.contains(&workload.name))
            && self.labels.as_ref().map_or(unreadable, |labels| labels.matches_map(&workload.labels));
        match (&self.cel, &workload.subject) {
            _ if !fits => ResourceMatch::Others,
            (None, _) => ResourceMatch::About,
            (Some(_), None) => ResourceMatch::Unknown("the object was not read".into()),
            (Some(cel), Some(subject)) => match subject.verdict(cel) {
                CelVerdict::Match => ResourceMatch::About,
                CelVerdict::Mismatch => ResourceMatch::Others,
                CelVerdict::Failed(why) => ResourceMatch::Unknown(why),
            },
        }
    }
}
