//! What a read of many objects went past because it cannot be read.

use portolan_types::ObjectKey;

use crate::{Damage, Damaged};

/// Of what has no address a page names so many: there may be any number, of which none counts to its bounds.
const NAMED: usize = 1000;

#[derive(Default)]
pub(crate) struct Passed {
    found: Vec<Damaged>,
    /// How many more there are without an address.
    unnamed: usize,
    /// How many have an address: these are objects.
    objects: usize,
    /// How many of both there were up to the last object, damaged or not.
    upto: (usize, usize),
    /// Whether that one is damaged.
    ends_damaged: bool,
}

impl Passed {
    /// Goes past something.
    pub(crate) fn add(&mut self, found: Damaged) {
        if found.why != Damage::Key {
            self.objects += 1;
            self.found.push(found);
            self.stand(true);
        } else if self.found.len() - self.objects < NAMED {
            self.found.push(found);
        } else {
            self.unnamed += 1;
        }
    }

    /// The read took an object that is whole.
    pub(crate) fn took(&mut self) {
        self.stand(false);
    }

    fn stand(&mut self, ends_damaged: bool) {
        (self.upto, self.ends_damaged) = ((self.found.len(), self.unnamed), ends_damaged);
    }

    /// How many objects, which count to the bounds of a page.
    pub(crate) fn objects(&self) -> usize {
        self.objects
    }

    /// The last object that was read, when it is damaged: a place to go on from. What stands in for an address is none.
    pub(crate) fn last(&self) -> Option<&ObjectKey> {
        let last = self.upto.0.checked_sub(1).filter(|_| self.ends_damaged)?;
        self.found.get(last).map(|found| &found.key)
    }

    /// All of it, and how many more there are. Behind the last object of a page that is cut the next one begins, and finds it.
    pub(crate) fn finish(mut self, is_cut: bool) -> (Vec<Damaged>, usize) {
        if is_cut {
            self.found.truncate(self.upto.0);
            self.unnamed = self.upto.1;
        }
        (self.found, self.unnamed)
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, LogicalClusterId};

    use super::*;

    fn found(name: &str, why: Damage) -> Damaged {
        let resource = GroupResource::new("", "pods");
        Damaged { key: ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, name.parse().unwrap()), why }
    }

    #[test]
    fn of_what_has_no_address_some_are_named_and_all_are_counted() {
        let mut passed = Passed::default();
        for n in 0..NAMED + 5 {
            passed.add(found(&format!("x{n}"), Damage::Key));
        }
        assert_eq!((passed.objects(), passed.last()), (0, None), "it is no object");
        passed.add(found("a", Damage::Checksum));
        passed.add(found("x", Damage::Key));
        assert_eq!((passed.objects(), passed.last().map(|key| &*key.name)), (1, Some("a")));
        let (named, unnamed) = passed.finish(false);
        assert_eq!((named.len(), unnamed), (NAMED + 1, 6));
    }

    #[test]
    fn what_the_next_page_finds_is_not_told_twice() {
        for (is_cut, expected) in [(false, 3), (true, 2)] {
            let mut passed = Passed::default();
            passed.add(found("x0", Damage::Key));
            passed.add(found("a", Damage::CutOff));
            passed.took();
            assert_eq!(passed.last(), None, "a whole one is the last");
            passed.add(found("x1", Damage::Key));
            assert_eq!(passed.finish(is_cut).0.len(), expected);
        }
        let mut many = Passed::default();
        (0..NAMED).for_each(|n| many.add(found(&format!("x{n}"), Damage::Key)));
        many.took();
        many.add(found("x", Damage::Key));
        assert_eq!(many.finish(true).1, 0);
    }
}
