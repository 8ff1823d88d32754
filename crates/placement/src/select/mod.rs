//! Selection of physical clusters among those that fit: order, count and spread.

mod spread_domains;

use portolan_types::placement::TopologySpread;

use self::spread_domains::SpreadDomains;
use crate::{cluster_facts::ClusterFacts, exclusion_reason::ExclusionReason};

/// Physical cluster that fits.
#[derive(Clone, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) facts: &'a ClusterFacts,
    /// An active copy is there.
    pub(crate) here: bool,
    /// True if that copy arrives in a move and was never available.
    pub(crate) arrives: bool,
    /// True if a copy arrives there once the present one is gone.
    pub(crate) awaited: bool,
    /// True if its copy stays whatever its tier.
    pub(crate) keeps: bool,
    /// Reason of a rejection, if its copy stays because it moves only on explicit request.
    pub(crate) held: Option<ExclusionReason>,
    /// An object with the same controller is there.
    pub(crate) sibling: bool,
    /// True if it is the namespace's default.
    pub(crate) home: bool,
    /// Tier of the policy: 0 is the first choice, n the n-th fallback.
    pub(crate) tier: usize,
    /// Load in percent.
    pub(crate) load: i64,
    /// Pods that Portolan has placed there.
    pub(crate) pods: i64,
}

type CandidateRank<'c> = ([bool; 2], usize, [bool; 5], i64, i64, &'c str);

impl Candidate<'_> {
    /// Returns the order of preference, the best first: the policy's tiers; then present copies, siblings, the
    /// namespace's default, the emptiest, the name.
    fn rank(&self) -> CandidateRank<'_> {
        let stays = [self.held.is_none(), !self.keeps];
        // A move is canceled once its reason is gone, unless it is almost complete.
        let company = [!self.here, self.arrives, !self.awaited, !self.sibling, !self.home];
        (stays, self.tier, company, self.load, self.pods, self.facts.info.name.as_str())
    }

    /// Returns the numbers behind the order, the most important first. Higher is better.
    pub(crate) fn scores(&self) -> [(&'static str, i64); 6] {
        [
            ("group", -i64::try_from(self.tier).unwrap_or(i64::MAX)),
            ("present", i64::from(self.here)),
            ("sibling", i64::from(self.sibling)),
            ("default", i64::from(self.home)),
            ("free", 100 - self.load),
            ("pods", -self.pods),
        ]
    }
}

/// Chosen candidates, best first, and the others with the reason.
#[derive(Default)]
pub(crate) struct ClusterSelection<'a> {
    pub(crate) taken: Vec<Candidate<'a>>,
    pub(crate) left: Vec<(Candidate<'a>, ExclusionReason)>,
    /// Sentence about a spread that cannot be satisfied: no copy is created, and existing copies stay.
    pub(crate) lack: Option<String>,
}

/// Takes up to `count` candidates, best first. Over the label of each spread no value gets more than `maxSkew` more
/// than the least. Values count if any candidate has them, and at most `maxGroups` of them. Held copies are taken in
/// addition, even against the spread, and do not reduce the number for others. If copies would be on fewer than
/// `minGroups` values, only existing copies are taken.
pub(crate) fn select<'a>(
    mut candidates: Vec<Candidate<'a>>,
    count: usize,
    spread: &[TopologySpread],
) -> ClusterSelection<'a> {
    candidates.sort_by(|a, b| a.rank().cmp(&b.rank()));
    let mut domains: Vec<SpreadDomains> = spread.iter().map(|s| SpreadDomains::new(s, &candidates, count)).collect();
    let mut selection = ClusterSelection::default();
    let mut open = Vec::new();
    for candidate in candidates {
        let is_held = candidate.held.is_some();
        if !is_held && domains.iter().any(|d| d.value(&candidate).is_none()) {
            selection.left.push((candidate, ExclusionReason::SpreadKeyMissing))
        } else if !is_held && domains.iter().any(|d| d.is_closed(&candidate)) {
            selection.left.push((candidate, ExclusionReason::SpreadGroups))
        } else {
            open.push(candidate)
        }
    }
    let (held, mut open): (Vec<_>, Vec<_>) = open.into_iter().partition(|c| c.held.is_some());
    held.iter().for_each(|candidate| domains.iter_mut().for_each(|d| d.take(candidate)));
    selection.taken.extend(held);
    let mut wanted = 0;
    while wanted < count {
        let fits = |c: &Candidate| domains.iter().all(|d| d.allows(c, count - wanted));
        let Some(at) = open.iter().position(fits) else { break };
        let candidate = open.remove(at);
        domains.iter_mut().for_each(|d| d.take(&candidate));
        selection.taken.push(candidate);
        wanted += 1;
    }
    let reason = if wanted < count { ExclusionReason::SpreadSkew } else { ExclusionReason::NotNeeded };
    selection.left.extend(open.into_iter().map(|candidate| (candidate, reason)));
    match domains.iter().find_map(SpreadDomains::lack) {
        Some(lack) => with_lack(selection, lack),
        None => selection,
    }
}

/// Keeps the existing copies, and takes no further ones.
fn with_lack(selection: ClusterSelection<'_>, lack: String) -> ClusterSelection<'_> {
    let taken = selection.taken.into_iter().map(|candidate| (candidate, ExclusionReason::SpreadGroups));
    let stays = |candidate: &Candidate| candidate.here || candidate.held.is_some();
    let (stay, left): (Vec<_>, Vec<_>) = taken.chain(selection.left).partition(|(candidate, _)| stays(candidate));
    let taken = stay.into_iter().map(|(candidate, _)| candidate).collect();
    ClusterSelection { taken, left, lack: Some(lack) }
}

#[cfg(test)]
mod tests;
