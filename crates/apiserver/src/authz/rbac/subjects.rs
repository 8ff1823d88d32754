//! Index of subjects: the logical clusters whose own bindings name a user or group. It finds the candidates of a
//! question about all logical clusters; the authorizer decides on each.
//!
//! Its memory is bounded: beyond [`MAX_PAIRS`], the logical clusters with the most subjects are left out, and are
//! candidates for all. It has no entry for a logical cluster without own bindings.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

use portolan_strategy::rbac::{Subject, User};
use portolan_types::LogicalClusterId;
use sha2::{Digest as _, Sha256};

/// Limit of pairs of a subject and a logical cluster, each of about 32 bytes of memory.
const MAX_PAIRS: usize = 2_000_000;

/// Hash of a subject. If two subjects share a hash, one candidate is superfluous, and the authorizer refuses it.
pub(super) type SubjectHash = u64;

/// Subjects of the own bindings of logical clusters.
#[derive(Default)]
pub(super) struct SubjectIndex {
    by_subject: BTreeSet<(SubjectHash, LogicalClusterId)>,
    by_cluster: HashMap<LogicalClusterId, Box<[SubjectHash]>>,
    /// Logical clusters with too many subjects.
    left_out: BTreeSet<LogicalClusterId>,
    /// Logical clusters whose bindings were written since they were read, and the number of that write.
    changed: BTreeMap<LogicalClusterId, u64>,
    state: IndexState,
    /// Number of the last change.
    version: u64,
    /// Number of the load that is under way.
    loading: u64,
    pairs: usize,
}

/// State of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum IndexState {
    /// Writes may be missed.
    #[default]
    Unfollowed,
    /// All writes are followed; the bindings are to be read.
    Followed,
    /// The bindings of all logical clusters were read, and no write of one was missed since.
    Complete,
}

impl SubjectIndex {
    /// Forgets all, since writes may have been missed; `is_followed` is true if none is missed from here on.
    pub(super) fn reset(&mut self, is_followed: bool) {
        let state = if is_followed { IndexState::Followed } else { IndexState::Unfollowed };
        *self = Self { state, version: self.version + 1, ..Self::default() };
    }

    /// Returns the number of the reset after which all bindings are to be read, if they are.
    pub(super) fn wanted_load(&mut self) -> Option<u64> {
        (self.state == IndexState::Followed).then(|| {
            self.version += 1;
            self.loading = self.version;
            self.loading
        })
    }

    /// Takes the subjects of all logical clusters, unless the index was reset since the load began.
    pub(super) fn load(&mut self, loading: u64, all: HashMap<LogicalClusterId, Vec<SubjectHash>>) {
        if self.state != IndexState::Followed || self.loading != loading {
            return;
        }
        all.into_iter().for_each(|(cluster, subjects)| self.replace(cluster, subjects));
        self.state = IndexState::Complete;
    }

    /// Notes a write of a binding.
    pub(super) fn change(&mut self, cluster: LogicalClusterId) {
        if self.state != IndexState::Unfollowed {
            self.version += 1;
            self.changed.insert(cluster, self.version);
        }
    }

    /// Returns a logical cluster to read again, with the number of its last write.
    pub(super) fn next_changed(&self) -> Option<(LogicalClusterId, u64)> {
        self.changed.first_key_value().map(|(cluster, version)| (*cluster, *version))
    }

    /// Takes the subjects of a logical cluster that were read after a write; there may be a later one.
    pub(super) fn settle(&mut self, cluster: LogicalClusterId, version: u64, subjects: Vec<SubjectHash>) {
        if self.changed.get(&cluster) == Some(&version) {
            self.changed.remove(&cluster);
            self.replace(cluster, subjects);
        }
    }

    /// Replaces the subjects of a logical cluster.
    fn replace(&mut self, cluster: LogicalClusterId, mut subjects: Vec<SubjectHash>) {
        self.remove(cluster);
        subjects.sort_unstable();
        subjects.dedup();
        if subjects.is_empty() {
            return;
        }
        self.pairs += subjects.len();
        self.by_subject.extend(subjects.iter().map(|subject| (*subject, cluster)));
        self.by_cluster.insert(cluster, subjects.into());
        while self.pairs > MAX_PAIRS {
            let Some(largest) = self.by_cluster.iter().max_by_key(|(_, of)| of.len()).map(|(id, _)| *id) else { break };
            self.remove(largest);
            self.left_out.insert(largest);
        }
    }

    fn remove(&mut self, cluster: LogicalClusterId) {
        self.left_out.remove(&cluster);
        let Some(subjects) = self.by_cluster.remove(&cluster) else { return };
        self.pairs -= subjects.len();
        for subject in &subjects {
            self.by_subject.remove(&(*subject, cluster));
        }
    }

    /// Returns the first logical clusters after `after` that may know one of the subjects, in order, at most `limit`;
    /// `None` if any may.
    pub(super) fn candidates(
        &self,
        subjects: &[SubjectHash],
        after: LogicalClusterId,
        limit: usize,
    ) -> Option<Vec<LogicalClusterId>> {
        if self.state != IndexState::Complete {
            return None;
        }
        let (mut found, last) = (BTreeSet::new(), LogicalClusterId::new(u64::MAX));
        for subject in subjects {
            let range = (Bound::Excluded((*subject, after)), Bound::Included((*subject, last)));
            found.extend(self.by_subject.range(range).map(|(_, cluster)| *cluster).take(limit));
        }
        let later = (Bound::Excluded(after), Bound::Unbounded);
        found.extend(self.left_out.range(later).take(limit));
        found.extend(self.changed.range(later).map(|(cluster, _)| *cluster).take(limit));
        Some(found.into_iter().take(limit).collect())
    }
}

/// Returns the hashes of a user and its groups.
pub(super) fn hashes_of_user(user: &User) -> impl Iterator<Item = SubjectHash> {
    std::iter::once(hash(b'u', &user.name)).chain(user.groups.iter().map(|group| hash(b'g', group)))
}

/// Returns the hash of a subject of a binding.
pub(super) fn hash_of(subject: &Subject) -> SubjectHash {
    match subject {
        Subject::Group(group) => hash(b'g', group),
        Subject::User(_) | Subject::ServiceAccount { .. } => hash(b'u', &subject.user_name().unwrap_or_default()),
    }
}

fn hash(kind: u8, name: &str) -> SubjectHash {
    let hash = Sha256::new().chain_update([kind]).chain_update(name).finalize();
    u64::from_be_bytes(hash[..8].try_into().expect("a SHA-256 has more than eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: LogicalClusterId = LogicalClusterId::new(0);

    fn id(number: u64) -> LogicalClusterId {
        LogicalClusterId::new(number)
    }

    #[test]
    fn candidates_are_those_that_name_a_subject() {
        let mut index = SubjectIndex::default();
        for cluster in 1..=100 {
            index.replace(id(cluster), vec![cluster % 10, 1000 + cluster]);
        }
        assert_eq!(index.candidates(&[3], NONE, 100), None, "any may be one before all were read");
        index.state = IndexState::Complete;
        let all = |subjects: &[u64], after, limit| index.candidates(subjects, after, limit).unwrap();
        assert_eq!(all(&[3], NONE, 100), [3, 13, 23, 33, 43, 53, 63, 73, 83, 93].map(id));
        assert_eq!(all(&[3, 1003, 1004], NONE, 4), [3, 4, 13, 23].map(id), "each once");
        assert_eq!(all(&[3], id(43), 2), [53, 63].map(id));
        assert_eq!(all(&[77], NONE, 9), []);
        index.replace(id(3), vec![4]);
        index.replace(id(13), vec![]);
        assert_eq!(index.candidates(&[3], NONE, 2).unwrap(), [23, 33].map(id));
        index.change(id(50));
        assert_eq!(index.candidates(&[77], NONE, 9).unwrap(), [id(50)], "one that was written may know anybody");
        let (changed, version) = index.next_changed().unwrap();
        index.change(changed);
        index.settle(changed, version, vec![]);
        assert_eq!(index.candidates(&[77], NONE, 9).unwrap(), [id(50)], "it was written again meanwhile");
        let (changed, version) = index.next_changed().unwrap();
        index.settle(changed, version, vec![]);
        assert_eq!(index.candidates(&[77], NONE, 9).unwrap(), []);
        assert_eq!(index.pairs, index.by_subject.len());
    }

    #[test]
    fn a_load_counts_unless_writes_were_missed_meanwhile() {
        let mut index = SubjectIndex::default();
        assert_eq!(index.wanted_load(), None, "writes are not followed");
        index.reset(true);
        let first = index.wanted_load().unwrap();
        index.reset(false);
        index.load(first, HashMap::from([(id(1), vec![1])]));
        assert_eq!(index.candidates(&[1], NONE, 9), None);
        index.reset(true);
        let second = index.wanted_load().unwrap();
        index.load(first, HashMap::from([(id(1), vec![1])]));
        assert_eq!(index.candidates(&[1], NONE, 9), None, "an earlier load is stale");
        index.load(second, HashMap::from([(id(2), vec![1, 1])]));
        assert_eq!(index.candidates(&[1], NONE, 9).unwrap(), [id(2)]);
        assert_eq!(index.wanted_load(), None);
    }

    #[test]
    fn the_largest_are_left_out_beyond_the_limit() {
        let mut index = SubjectIndex { state: IndexState::Complete, ..SubjectIndex::default() };
        index.replace(id(1), vec![1, 2]);
        index.replace(id(2), (0..MAX_PAIRS as u64).collect());
        assert_eq!(index.candidates(&[u64::MAX], NONE, 9).unwrap(), [id(2)], "it is a candidate for all");
        assert_eq!(index.candidates(&[1], NONE, 9).unwrap(), [id(1), id(2)]);
        assert!(index.pairs == 2 && index.by_subject.len() == 2);
        index.replace(id(2), vec![9]);
        assert_eq!(index.candidates(&[1], NONE, 9).unwrap(), [id(1)], "until it is small again");
    }
}
