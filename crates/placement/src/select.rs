//! Which of the physical clusters that fit are taken: order, count and spread.

use std::collections::BTreeMap;

use portolan_types::placement::Spread;

use crate::{facts::ClusterFacts, reason::Reason};

/// A physical cluster that fits.
#[derive(Clone, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) facts: &'a ClusterFacts,
    /// An active copy is there.
    pub(crate) here: bool,
    /// Its copy stays, whatever group of the policy it belongs to.
    pub(crate) keeps: bool,
    /// It was refused, but its copy moves only by explicit wish.
    pub(crate) held: Option<Reason>,
    /// An object with the same controller is there.
    pub(crate) sibling: bool,
    /// It is the namespace's default decision.
    pub(crate) home: bool,
    /// 0 is the policy's first choice, n its n-th fallback.
    pub(crate) tier: usize,
    /// How full it is, in percent.
    pub(crate) load: i64,
    /// Pods that Portolan has placed there.
    pub(crate) pods: i64,
}

type Rank<'c> = ([bool; 2], usize, [bool; 3], i64, i64, &'c str);

impl Candidate<'_> {
    /// Returns the order of preference, the best first: the policy's order; within it what is there stays, then the company, then
    /// the emptiest, then the name.
    fn rank(&self) -> Rank<'_> {
        let stays = [self.held.is_none(), !self.keeps];
        let company = [!self.here, !self.sibling, !self.home];
        (stays, self.tier, company, self.load, self.pods, self.facts.info.name.as_str())
    }
}

/// What was taken, best first, and why the others were not.
pub(crate) struct Selection<'a> {
    pub(crate) taken: Vec<Candidate<'a>>,
    pub(crate) left: Vec<(Candidate<'a>, Reason)>,
}

/// Takes up to `count`, best first, such that over each spread's label no value has more than `maxSkew` above the least.
/// Values count when any candidate has them. Held copies are taken besides, whatever the spread says: they leave the place of
/// those that are wanted.
pub(crate) fn select<'a>(mut candidates: Vec<Candidate<'a>>, count: usize, spread: &[Spread]) -> Selection<'a> {
    candidates.sort_by(|a, b| a.rank().cmp(&b.rank()));
    let mut domains: Vec<Domains> = spread.iter().map(|s| Domains::new(s, &candidates)).collect();
    let mut selection = Selection { taken: Vec::new(), left: Vec::new() };
    let mut open = Vec::new();
    for candidate in candidates {
        match candidate.held.is_none() && domains.iter().any(|d| d.value(&candidate).is_none()) {
            true => selection.left.push((candidate, Reason::SpreadKeyMissing)),
            false => open.push(candidate),
        }
    }
    let (held, mut open): (Vec<_>, Vec<_>) = open.into_iter().partition(|c| c.held.is_some());
    held.iter().for_each(|candidate| domains.iter_mut().for_each(|d| d.take(candidate)));
    selection.taken.extend(held);
    let mut wanted = 0;
    while wanted < count {
        let fits = |c: &Candidate| domains.iter().all(|d| d.allows(c));
        let Some(at) = open.iter().position(fits) else { break };
        let candidate = open.remove(at);
        domains.iter_mut().for_each(|d| d.take(&candidate));
        selection.taken.push(candidate);
        wanted += 1;
    }
    let reason = if wanted < count { Reason::SpreadSkew } else { Reason::NotNeeded };
    selection.left.extend(open.into_iter().map(|candidate| (candidate, reason)));
    selection
}

/// How many were taken per value of one label.
struct Domains {
    key: String,
    skew: usize,
    taken: BTreeMap<String, usize>,
}

impl Domains {
    fn new(spread: &Spread, candidates: &[Candidate]) -> Self {
        let values = candidates.iter().filter_map(|c| c.facts.info.labels.get(&spread.topology_key));
        Self {
            key: spread.topology_key.clone(),
            skew: spread.max_skew.max(1) as usize,
            taken: values.map(|value| (value.clone(), 0)).collect(),
        }
    }

    fn value<'c>(&self, candidate: &'c Candidate) -> Option<&'c str> {
        candidate.facts.info.labels.get(&self.key).map(String::as_str)
    }

    fn allows(&self, candidate: &Candidate) -> bool {
        let Some(taken) = self.value(candidate).and_then(|value| self.taken.get(value)) else { return false };
        let least = self.taken.values().min().copied().unwrap_or(0);
        *taken < least + self.skew
    }

    fn take(&mut self, candidate: &Candidate) {
        if let Some(taken) = self.value(candidate).and_then(|value| self.taken.get_mut(value)) {
            *taken += 1;
        }
    }
}
