//! The order of groups, versions and resources.

use std::{
    borrow::Borrow,
    cmp::{Ordering, Reverse},
};

use crate::Kind;

/// The versions of a group, each with its kinds sorted by resource.
pub(super) struct Versions<'a>(pub(super) Vec<(&'a str, Vec<&'a Kind>)>);

/// Groups in the order of their first kind.
pub(super) fn groups<K: Borrow<Kind>>(kinds: &[K]) -> Vec<(&str, Versions<'_>)> {
    let mut groups: Vec<(&str, Versions<'_>)> = Vec::new();
    for kind in kinds.iter().map(Borrow::borrow) {
        let group = &*kind.gvk.group;
        let at = groups.iter().position(|(known, _)| *known == group).unwrap_or_else(|| {
            groups.push((group, Versions(Vec::new())));
            groups.len() - 1
        });
        let Versions(versions) = &mut groups[at].1;
        match versions.iter_mut().find(|(known, _)| *known == &*kind.gvk.version) {
            Some((_, kinds)) => kinds.push(kind),
            None => versions.push((&kind.gvk.version, vec![kind])),
        }
    }
    for (_, Versions(versions)) in &mut groups {
        versions.sort_by(|(a, _), (b, _)| version_order(a, b));
        versions.iter_mut().for_each(|(_, kinds)| kinds.sort_by(|a, b| a.resource.cmp(&b.resource)));
    }
    groups
}

/// Compares versions by Kubernetes' order of preference, the preferred one first: stable, beta, alpha, each with the
/// newest first; then, by name, versions of any other form.
pub fn version_order(a: &str, b: &str) -> Ordering {
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => Reverse(a).cmp(&Reverse(b)),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Parses `v1`, `v1beta2` or `v1alpha1` into stability, major and minor.
fn parse(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    for (stability, word) in [(0, "alpha"), (1, "beta")] {
        if let Some((major, minor)) = rest.split_once(word) {
            return Some((stability, number(major)?, number(minor)?));
        }
    }
    Some((2, number(rest)?, 0))
}

fn number(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    plain.then(|| digits.parse().ok())?
}
