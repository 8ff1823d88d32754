//! Names of a flattened view: `<id>--<name>`, where the id is that of the logical cluster.
//!
//! A name that would be too long is shown as `<id>---<start>-<hash>`, where the start is the beginning of the name. So
//! is a name that begins with a dash, so that the three dashes mark hashes alone. The objects themselves are the stored
//! table from hashes to names: a hash is reversed by a read of the names with its start, see [`super::lookup`].
//!
//! An id has no dash, so the first two dashes end it, whatever the name behind them has.

use portolan_types::LogicalClusterId;
use sha2::{Digest as _, Sha256};

/// Longest name of a namespace, and longest value of a label.
pub(crate) const NAMESPACE_LIMIT: usize = 63;
/// Longest name of any other object.
pub(crate) const NAME_LIMIT: usize = 253;

const SEPARATOR: &str = "--";
const HASH_MARK: &str = "---";
/// Digits of a hash, of 5 bits each.
const HASH_DIGITS: usize = 26;
const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Name in a flattened view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlatName<'a> {
    /// Name of an object in the logical cluster of the export.
    Own(&'a str),
    /// Name of an object in another logical cluster.
    Prefixed { cluster: LogicalClusterId, name: &'a str },
    /// Hash of a name in another logical cluster.
    Hashed { cluster: LogicalClusterId, start: &'a str },
}

impl<'a> FlatName<'a> {
    /// Parses a name.
    pub(crate) fn parse(text: &'a str) -> Self {
        let Some((cluster, name)) = split(text) else { return Self::Own(text) };
        match name.strip_prefix('-') {
            None => Self::Prefixed { cluster, name },
            // Without a hash, the whole text is the start, which matches no name.
            Some(hashed) => Self::Hashed { cluster, start: hashed.rsplit_once('-').map_or(hashed, |(start, _)| start) },
        }
    }

    /// Returns the logical cluster that a name begins with; `None` for a name of the export's own.
    pub(crate) fn cluster(self) -> Option<LogicalClusterId> {
        match self {
            Self::Own(_) => None,
            Self::Prefixed { cluster, .. } | Self::Hashed { cluster, .. } => Some(cluster),
        }
    }
}

/// Cuts off the id in front of a name.
fn split(text: &str) -> Option<(LogicalClusterId, &str)> {
    let (id, name) = text.split_once(SEPARATOR)?;
    let cluster = id.parse::<LogicalClusterId>().ok()?;
    (!name.is_empty()).then_some((cluster, name))
}

/// Returns a name of a logical cluster as the view shows it, of at most `limit` bytes.
pub(crate) fn flattened(cluster: LogicalClusterId, name: &str, limit: usize) -> String {
    let full = format!("{cluster}{SEPARATOR}{name}");
    if full.len() <= limit && !name.starts_with('-') {
        return full;
    }
    let room = limit.saturating_sub(cluster.to_string().len() + HASH_MARK.len() + 1 + HASH_DIGITS);
    let start = &name[..name.floor_char_boundary(room)];
    format!("{cluster}{HASH_MARK}{start}-{}", hash(cluster, name))
}

/// Returns 130 bits of a hash of a name, so that no two names with one hash can be found.
fn hash(cluster: LogicalClusterId, name: &str) -> String {
    let digest = Sha256::new().chain_update(cluster.get().to_be_bytes()).chain_update(name).finalize();
    let bit = |at: usize| (digest[at / 8] >> (7 - at % 8)) & 1;
    let digit = |at: usize| (0..5).fold(0, |value, offset| (value << 1) | bit(at * 5 + offset));
    (0..HASH_DIGITS).map(|at| char::from(DIGITS[usize::from(digit(at))])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_shown_as_one_that_no_other_has() {
        let ids = [1, 2, 7].map(LogicalClusterId::new);
        let long = "n".repeat(NAMESPACE_LIMIT);
        let names = ["a", "a--b", "x--y", "a-", "-a", "--a", "---a", "system:node", "é", &long, &long[1..], "a---b"];
        let mut shown = std::collections::BTreeSet::new();
        for (cluster, name) in ids.iter().flat_map(|id| names.iter().map(move |name| (*id, *name))) {
            let text = flattened(cluster, name, NAMESPACE_LIMIT);
            assert!(text.len() <= NAMESPACE_LIMIT, "{text}");
            match FlatName::parse(&text) {
                FlatName::Prefixed { cluster: found, name: full } => assert_eq!((found, full), (cluster, name)),
                FlatName::Hashed { cluster: found, start } => {
                    assert!(found == cluster && name.starts_with(start), "{text}");
                }
                FlatName::Own(_) => panic!("{text} is of no logical cluster"),
            }
            assert!(shown.insert(text), "{name} of {cluster} is shown like another");
        }
    }

    #[test]
    fn only_an_id_makes_a_prefix() {
        let id = LogicalClusterId::new(7);
        for (text, expected) in [
            ("x--y".to_owned(), None),
            ("cert-manager".to_owned(), None),
            ("kube-system".to_owned(), None),
            (format!("{id}--"), None),
            (format!("{id}-a"), None),
            (format!("a{id}--a"), None),
            (format!("{id}--a"), Some(id)),
            (format!("{id}---a"), Some(id)),
            ("root--a".to_owned(), Some(LogicalClusterId::ROOT)),
        ] {
            assert_eq!(FlatName::parse(&text).cluster(), expected, "{text}");
        }
    }

    #[test]
    fn names_of_namespaces_stay_labels() {
        let name = format!("{}-{}", "a".repeat(12), "b".repeat(50));
        let text = flattened(LogicalClusterId::new(7), &name, NAMESPACE_LIMIT);
        assert_eq!(text.len(), NAMESPACE_LIMIT);
        assert!(text.parse::<portolan_types::NamespaceName>().is_ok(), "{text}");
    }
}
