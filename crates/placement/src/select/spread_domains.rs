//! Numbers of chosen clusters per value of one label.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::placement::TopologySpread;

use super::Candidate;

/// Number of chosen clusters per value of one label.
pub(super) struct SpreadDomains {
    key: String,
    skew: usize,
    /// Minimum number of values with a copy; 0 means no minimum.
    least_groups: usize,
    taken: BTreeMap<String, usize>,
    /// Values beyond the most that may have a copy.
    closed: BTreeSet<String>,
}

impl SpreadDomains {
    /// Reads the values of the candidates, which are sorted, best first. If more values have any than the spread
    /// allows, those are closed that offer the least.
    pub(super) fn new(spread: &TopologySpread, candidates: &[Candidate], count: usize) -> Self {
        let key = spread.topology_key.clone();
        let mut values: Vec<GroupOffer> = Vec::new();
        for candidate in candidates {
            let Some(value) = candidate.facts.info.labels.get(&key) else { continue };
            let at = values.iter().position(|group| group.value == value).unwrap_or_else(|| {
                values.push(GroupOffer { value, clusters: 0, has_copies: false });
                values.len() - 1
            });
            values[at].clusters += 1;
            values[at].has_copies |= candidate.here || candidate.held.is_some();
        }
        let skew = spread.max_skew.max(1) as usize;
        let closed = match spread.max_groups as usize {
            0 => BTreeSet::new(),
            most => closed_groups(&values, most, &|groups| offered(groups, skew), count),
        };
        let open = values.iter().map(|group| group.value).filter(|value| !closed.contains(*value));
        let taken = open.map(|value| (value.to_owned(), 0)).collect();
        Self { key, skew, least_groups: spread.min_groups as usize, taken, closed }
    }

    pub(super) fn value<'c>(&self, candidate: &'c Candidate) -> Option<&'c str> {
        candidate.facts.info.labels.get(&self.key).map(String::as_str)
    }

    /// Returns true if the value of a candidate may have no copy.
    pub(super) fn is_closed(&self, candidate: &Candidate) -> bool {
        self.value(candidate).is_some_and(|value| self.closed.contains(value))
    }

    /// Returns true if one more copy there keeps the spread, with `left` further copies to place.
    pub(super) fn allows(&self, candidate: &Candidate, left: usize) -> bool {
        let Some(taken) = self.value(candidate).and_then(|value| self.taken.get(value)) else { return false };
        let least = self.taken.values().min().copied().unwrap_or(0);
        let is_needed_elsewhere = *taken > 0 && self.missing_groups() >= left;
        *taken < least + self.skew && !is_needed_elsewhere
    }

    pub(super) fn take(&mut self, candidate: &Candidate) {
        if let Some(taken) = self.value(candidate).and_then(|value| self.taken.get_mut(value)) {
            *taken += 1;
        }
    }

    /// Returns the sentence about copies on too few values.
    pub(super) fn lack(&self) -> Option<String> {
        let (least, key) = (self.least_groups, &self.key);
        (self.missing_groups() > 0)
            .then(|| format!("only {} of at least {least} values of {key} fit", least - self.missing_groups()))
    }

    fn missing_groups(&self) -> usize {
        self.least_groups.saturating_sub(self.taken.values().filter(|taken| **taken > 0).count())
    }
}

/// Value of a label, and the room on its clusters.
#[derive(Clone, Copy)]
struct GroupOffer<'a> {
    value: &'a str,
    clusters: usize,
    has_copies: bool,
}

/// Returns the copies that groups can have together within a skew.
fn offered(groups: &[GroupOffer], skew: usize) -> usize {
    let least = groups.iter().map(|group| group.clusters).min().unwrap_or(0);
    groups.iter().map(|group| group.clusters.min(least.saturating_add(skew))).sum()
}

/// Returns the values beyond the first `most`. Those with copies come first, then those of the best clusters; if these
/// have too little room, values with more room replace those without copies.
fn closed_groups(
    groups: &[GroupOffer],
    most: usize,
    offer: &dyn Fn(&[GroupOffer]) -> usize,
    wanted: usize,
) -> BTreeSet<String> {
    let (present, new): (Vec<_>, Vec<_>) = groups.iter().copied().partition(|group| group.has_copies);
    let mut open: Vec<GroupOffer> = present.into_iter().chain(new).collect();
    let mut rest = open.split_off(most.min(open.len()));
    while offer(&open) < wanted {
        // Groups of one size have the same room: the first of each size represents all.
        let outs = first_of_each_size((0..open.len()).rev().filter(|at| !open[*at].has_copies), &open);
        let others = first_of_each_size(0..rest.len(), &rest);
        let swaps = outs.iter().flat_map(|out| others.iter().map(|other| (*out, *other)));
        let after = |(out, other): &(usize, usize)| {
            let mut groups = open.clone();
            groups[*out] = rest[*other];
            offer(&groups)
        };
        // The first of the best.
        let best =
            swaps.map(|swap| (after(&swap), swap)).reduce(|best, next| if next.0 > best.0 { next } else { best });
        let Some((_, (out, other))) = best.filter(|(offered, _)| *offered > offer(&open)) else { break };
        std::mem::swap(&mut open[out], &mut rest[other]);
    }
    rest.iter().map(|group| group.value.to_owned()).collect()
}

fn first_of_each_size(places: impl Iterator<Item = usize>, groups: &[GroupOffer]) -> Vec<usize> {
    let mut sizes = BTreeSet::new();
    places.filter(|at| sizes.insert(groups[*at].clusters)).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn many_groups_are_closed_with_few_looks() {
        let names: Vec<String> = (0..400).map(|at| format!("zone-{at}")).collect();
        let group =
            |(at, value): (usize, &'static str)| GroupOffer { value, clusters: 1 + at / 50, has_copies: at < 10 };
        let groups: Vec<GroupOffer> = names.into_iter().map(|name| &*name.leak()).enumerate().map(group).collect();
        let looks = Cell::new(0);
        let offer = |groups: &[GroupOffer]| {
            looks.set(looks.get() + 1);
            offered(groups, 8)
        };
        let closed = closed_groups(&groups, 100, &offer, 500);
        assert_eq!(closed.len(), 300);
        assert!((0..10).all(|at| !closed.contains(&format!("zone-{at}"))), "values with copies stay");
        let open: Vec<GroupOffer> = groups.into_iter().filter(|group| !closed.contains(group.value)).collect();
        assert!(offered(&open, 8) >= 500);
        assert!(looks.get() < 10_000, "{} looks", looks.get());
    }
}
