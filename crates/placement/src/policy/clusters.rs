//! Selectors of physical clusters, with their further choices.

use std::sync::Arc;

use portolan_types::{LabelSelector, placement::ClusterSelector};

use crate::{
    cluster_facts::ClusterInfo,
    expressions::{CelVerdict, CompiledCel},
};

/// Result of a cluster selector for one physical cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SelectorMatch {
    /// Allowed; 0 is the first choice, n the n-th fallback.
    Tier(usize),
    /// Excluded by name.
    Excluded,
    /// The selector names others.
    NotNamed,
    /// The labels do not match.
    NotSelected,
    /// The expression is false.
    NotMatched,
    /// The expression of a choice has no value: the choice, and the sentence.
    Unknown(usize, Arc<str>),
}

/// Compiled selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CompiledClusters {
    labels: LabelSelector,
    cel: Option<CompiledCel>,
    pub(super) names: Vec<String>,
    exclude: Vec<String>,
    pub(super) fallback: Vec<CompiledClusters>,
}

impl CompiledClusters {
    /// Compiles a selector. `fault` receives the first error.
    pub(super) fn compile(spec: &ClusterSelector, fault: &mut Option<String>) -> Self {
        let labels = LabelSelector::try_from(&spec.selector).unwrap_or_else(|error| {
            fault.get_or_insert(error.to_string());
            LabelSelector::everything()
        });
        let cel = match CompiledCel::of_cluster(&spec.cel) {
            _ if spec.cel.is_empty() => None,
            Ok(cel) => Some(cel),
            Err(error) => {
                fault.get_or_insert(format!("clusters.cel: {error}"));
                None
            }
        };
        let fallback = spec.fallback.iter().map(|choice| Self::compile(choice, fault)).collect();
        Self { labels, cel, names: spec.names.clone(), exclude: spec.exclude.clone(), fallback }
    }

    /// Matches a physical cluster. `exclude` at the top wins over every fallback, and an allowed choice over one that
    /// is not known.
    pub(super) fn standing(&self, cluster: &ClusterInfo) -> SelectorMatch {
        if self.exclude.contains(&cluster.name) {
            return SelectorMatch::Excluded;
        }
        let mut first = None;
        for (at, choice) in self.choices().enumerate() {
            match (choice.own_standing(cluster), &first) {
                (Ok(()), _) => return SelectorMatch::Tier(at),
                (Err(SelectorMatch::Unknown(_, why)), Some(SelectorMatch::Unknown(..))) => drop(why),
                (Err(SelectorMatch::Unknown(_, why)), _) => first = Some(SelectorMatch::Unknown(at, why)),
                (Err(other), None) => first = Some(other),
                (Err(_), Some(_)) => {}
            }
        }
        first.unwrap_or(SelectorMatch::NotSelected)
    }

    /// Returns true if the selector or any fallback allows a physical cluster.
    pub(super) fn allows(&self, cluster: &ClusterInfo) -> bool {
        !self.exclude.contains(&cluster.name)
            && (self.own_standing(cluster).is_ok() || self.fallback.iter().any(|choice| choice.allows(cluster)))
    }

    /// Returns the expressions of the selector and of its fallbacks.
    pub(super) fn expressions(&self) -> impl Iterator<Item = &CompiledCel> {
        self.choices().filter_map(|choice| choice.cel.as_ref())
    }

    /// Returns itself and its fallbacks, each with its own before the next one.
    fn choices(&self) -> Box<dyn Iterator<Item = &Self> + '_> {
        Box::new(std::iter::once(self).chain(self.fallback.iter().flat_map(Self::choices)))
    }

    fn own_standing(&self, cluster: &ClusterInfo) -> Result<(), SelectorMatch> {
        if self.exclude.contains(&cluster.name) {
            return Err(SelectorMatch::Excluded);
        }
        if !self.names.is_empty() && !self.names.contains(&cluster.name) {
            return Err(SelectorMatch::NotNamed);
        }
        if !self.labels.matches_map(&cluster.labels) {
            return Err(SelectorMatch::NotSelected);
        }
        match self.cel.as_ref().map(|cel| cluster.subject.verdict(cel)) {
            None | Some(CelVerdict::Match) => Ok(()),
            Some(CelVerdict::Mismatch) => Err(SelectorMatch::NotMatched),
            Some(CelVerdict::Failed(why)) => Err(SelectorMatch::Unknown(0, why)),
        }
    }
}
