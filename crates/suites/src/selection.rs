//! Selection of suites: the core set of every CI run, the slices of the long suites, or what the command line names.
//!
//! A CI run has 90 minutes. It runs the core set and one slice; successive runs take successive slices, so that every
//! suite runs once in as many runs as there are slices. Each slice takes at most 8 minutes on two cores.

use clap::ValueEnum as _;

use super::{Options, Suite};
use oracle::CorpusShare;

/// Suites of every CI run, at most 12 minutes together.
const CORE: [Suite; 8] = [
    Suite::Demo,
    Suite::Kubectl,
    Suite::Syncer,
    Suite::Sync,
    Suite::Streams,
    Suite::Kill,
    Suite::ClientGo,
    Suite::Helm,
];

/// Part of a slice: a suite, and the share of it where the whole takes more than a slice.
#[derive(Clone, Copy)]
struct SlicePart {
    suite: Suite,
    share: Option<CorpusShare>,
}

/// Whole suite as a part of a slice.
const fn whole(suite: Suite) -> SlicePart {
    SlicePart { suite, share: None }
}

/// Share of the oracle's corpus as a part of a slice.
const fn corpus(number: usize, of: usize) -> SlicePart {
    SlicePart { suite: Suite::Oracle, share: Some(CorpusShare { number, of }) }
}

/// Long suites, in slices of similar length.
const SLICES: [&[SlicePart]; 15] = [
    &[corpus(1, 3)],
    &[whole(Suite::PrometheusOperator), whole(Suite::Admission)],
    &[whole(Suite::Etcd)],
    &[whole(Suite::Cases), whole(Suite::Conformance)],
    &[corpus(2, 3)],
    &[whole(Suite::MongodbOperator), whole(Suite::Javascript), whole(Suite::Console)],
    &[whole(Suite::Envtest), whole(Suite::ControllerRuntime), whole(Suite::Kcp), whole(Suite::Kubeapps)],
    &[corpus(3, 3)],
    &[whole(Suite::CertManager), whole(Suite::Python), whole(Suite::Java)],
    &[whole(Suite::Torture), whole(Suite::Cel), whole(Suite::Apply), whole(Suite::Tables)],
    &[whole(Suite::Docs), whole(Suite::Packages), whole(Suite::Kiali)],
    &[whole(Suite::Traffic)],
    &[whole(Suite::AdminsDay)],
    &[whole(Suite::InCluster)],
    &[whole(Suite::FlattenedView)],
];

/// Suites that a run takes, and the share of the oracle's corpus.
pub(super) struct SuiteSelection {
    suites: Vec<Suite>,
    pub(super) corpus: CorpusShare,
}

impl SuiteSelection {
    /// Resolves the command line: named suites, else all, else one slice, else the core set.
    pub(super) fn of(options: &Options) -> Self {
        let all = || Suite::value_variants().to_vec();
        match (&options.suites[..], options.all, options.slice) {
            ([], true, _) => Self { suites: all(), corpus: CorpusShare::WHOLE },
            ([], false, Some(number)) => Self::slice(number),
            ([], false, None) => Self { suites: CORE.to_vec(), corpus: CorpusShare::WHOLE },
            (named, ..) => Self { suites: named.to_vec(), corpus: CorpusShare::WHOLE },
        }
    }

    /// Slice `number`, counted around: 9 is 0 again where there are nine.
    fn slice(number: usize) -> Self {
        let parts = SLICES[number % SLICES.len()];
        let corpus = parts.iter().find_map(|part| part.share).unwrap_or(CorpusShare::WHOLE);
        Self { suites: parts.iter().map(|part| part.suite).collect(), corpus }
    }

    pub(super) fn wants(&self, suite: Suite) -> bool {
        self.suites.contains(&suite)
    }

    /// Returns the suites in the order in which they were named.
    pub(super) fn suites(&self) -> &[Suite] {
        &self.suites
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_runs_in_each_ci_run_or_in_exactly_one_slice() {
        for suite in Suite::value_variants() {
            let name = suite.to_possible_value().unwrap().get_name().to_owned();
            let parts: Vec<&SlicePart> = SLICES.iter().copied().flatten().filter(|part| part.suite == *suite).collect();
            let shares = parts.iter().filter_map(|part| part.share).count();
            let expected = if CORE.contains(suite) { 0 } else { shares.max(1) };
            assert_eq!(parts.len(), expected, "{name}");
        }
    }

    #[test]
    fn the_shares_of_the_corpus_make_a_whole() {
        let shares: Vec<CorpusShare> = SLICES.iter().copied().flatten().filter_map(|part| part.share).collect();
        let numbers: Vec<usize> = shares.iter().map(|share| share.number).collect();
        assert_eq!(numbers, (1..=shares.len()).collect::<Vec<_>>());
        assert!(shares.iter().all(|share| share.of == shares.len()));
    }

    #[test]
    fn successive_runs_take_successive_slices_around() {
        let first = |number| SuiteSelection::slice(number).suites()[0];
        assert!(first(0) == first(SLICES.len()) && first(1) == first(SLICES.len() + 1) && first(0) != first(1));
    }
}
