//! Check of all namespaces at the start, from lists of the objects that they should have: checking each would take a
//! minute of processor time with 100,000 workspaces, and a queue of all of them 100 MB.

use std::collections::HashMap;

use portolan_types::{LogicalClusterId, NamespaceName};

/// Parts of a complete namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListedPart {
    /// Namespace itself.
    Namespace,
    /// Default ServiceAccount.
    Account,
    /// ConfigMap with the CA certificates of the server.
    RootCa,
}

const ALL: u8 = 0b111;

impl ListedPart {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Parts found so far, by namespace: about 40 bytes each, until the three lists have ended.
#[derive(Default)]
pub(super) struct InitialCheck {
    found: HashMap<(LogicalClusterId, u32), u8>,
    /// Names of namespaces, each once, and their numbers.
    names: Vec<NamespaceName>,
    numbers: HashMap<NamespaceName, u32>,
    /// Lists that have ended.
    ended: u8,
}

impl InitialCheck {
    /// Begins a list. Parts from an earlier list, whose watch broke, may be gone.
    pub(super) fn begin(&mut self, part: ListedPart) {
        self.ended &= !part.bit();
        self.found.values_mut().for_each(|found| *found &= !part.bit());
    }

    /// Records a part. Returns false for a namespace that was created after the list of namespaces, which the check
    /// need not wait for.
    pub(super) fn note(&mut self, part: ListedPart, cluster: LogicalClusterId, namespace: NamespaceName) -> bool {
        if part == ListedPart::Namespace && self.ended & part.bit() != 0 {
            return false;
        }
        let next = u32::try_from(self.names.len()).expect("fewer names than objects in memory");
        let number = *self.numbers.entry(namespace).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        });
        *self.found.entry((cluster, number)).or_default() |= part.bit();
        true
    }

    /// Ends a list. Returns true after the last one.
    pub(super) fn end(&mut self, part: ListedPart) -> bool {
        self.ended |= part.bit();
        self.ended == ALL
    }

    /// Returns the namespaces that lack a part.
    pub(super) fn incomplete(self) -> Vec<(LogicalClusterId, NamespaceName)> {
        let Self { found, names, .. } = self;
        let lacks = found.into_iter().filter(|(_, found)| found & 1 != 0 && *found != ALL);
        let named = lacks.filter_map(|((cluster, number), _)| Some((cluster, names.get(number as usize)?.clone())));
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [ListedPart; 3] = [ListedPart::Namespace, ListedPart::Account, ListedPart::RootCa];

    fn name(text: &str) -> NamespaceName {
        text.parse().unwrap()
    }

    fn end_all(check: &mut InitialCheck) -> [bool; 3] {
        PARTS.map(|part| check.end(part))
    }

    #[test]
    fn namespaces_that_lack_a_part_are_found_when_all_lists_have_ended() {
        let (mut check, at) = (InitialCheck::default(), LogicalClusterId::new);
        // An account may be listed before its namespace.
        for part in [ListedPart::Account, ListedPart::Namespace, ListedPart::RootCa] {
            assert!(check.note(part, at(1), name("whole")));
            if part != ListedPart::RootCa {
                assert!(check.note(part, at(2), name("whole")));
            }
        }
        check.note(ListedPart::Namespace, at(1), name("bare"));
        check.note(ListedPart::Account, at(1), name("deleted"));
        assert_eq!(end_all(&mut check), [false, false, true]);
        let mut lacking = check.incomplete();
        lacking.sort();
        assert_eq!(lacking, [(at(1), name("bare")), (at(2), name("whole"))]);
    }

    #[test]
    fn a_part_that_a_second_list_lacks_is_lacking() {
        let (mut check, at) = (InitialCheck::default(), LogicalClusterId::new(1));
        for part in PARTS {
            check.note(part, at, name("shop"));
        }
        assert!(!check.end(ListedPart::Account));
        check.begin(ListedPart::Account);
        assert_eq!(end_all(&mut check), [false, false, true]);
        assert_eq!(check.incomplete(), [(at, name("shop"))]);
    }

    #[test]
    fn a_new_namespace_does_not_wait_for_long_lists() {
        let (mut check, at) = (InitialCheck::default(), LogicalClusterId::new(1));
        check.end(ListedPart::Namespace);
        assert!(!check.note(ListedPart::Namespace, at, name("new")));
    }
}
