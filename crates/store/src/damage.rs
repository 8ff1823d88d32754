//! Objects that cannot be read: what is told of one, and which of them are known.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use parking_lot::Mutex;
use portolan_types::{GroupResource, LogicalClusterId, NamespaceName, ObjectKey, ObjectName};
use prometheus::IntGauge;

use crate::{StoreError, history::object_key, keys, resources::Resources, value::Damage};

/// Damaged objects that are known one by one. Further ones are neither logged nor counted, but for the first of a resource of a
/// logical cluster.
pub const MOST_KNOWN: usize = 10_000;

/// An object that is stored and cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Its address. Where that is damaged itself, what can be told of it, and `why` is [`Damage::Key`].
    pub key: ObjectKey,
    /// What is wrong.
    pub why: Damage,
}

impl Damaged {
    /// What was found under the keys of `suffix`.
    pub(crate) fn at(resources: &Resources, suffix: &[u8], why: Damage) -> Self {
        match keys::parts(suffix).map(|parts| object_key(resources, parts)) {
            Some(Ok(key)) => Self { key, why },
            _ => Self { key: stand_in(suffix), why: Damage::Key },
        }
    }
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", named(&self.key), self.why)
    }
}

/// An object, as it is told of to operators.
pub(crate) fn named(key: &ObjectKey) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        let namespace = key.namespace().map_or_else(String::new, |namespace| format!("{namespace}/"));
        write!(f, "{} \"{namespace}{}\" of logical cluster {}", key.resource, key.name, key.cluster)
    })
}

/// Damaged objects that somebody came across who looked at everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageList {
    /// How many there are.
    pub count: u64,
    /// The first of them, in words.
    pub first: Vec<String>,
}

/// Bytes that a name tells one by one; it has at most 253 letters.
const SPELLED: usize = 100;
/// Objects that are named, and faults of one kind that are told one by one.
pub(crate) const NAMED: usize = 20;

impl DamageList {
    /// No damage.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn add(&mut self, found: impl fmt::Display) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(found.to_string());
        }
    }

    /// Tells of them as of `one` thing, or `many`.
    fn tell(&self, f: &mut fmt::Formatter<'_>, one: &str, many: &str) -> fmt::Result {
        let (things, are) = if self.count == 1 { (one, "is") } else { (many, "are") };
        write!(f, "{} {things} in the store {are} damaged:", self.count)?;
        self.first.iter().try_for_each(|one| write!(f, "\n  {one}"))?;
        match self.count.saturating_sub(self.first.len() as u64) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

impl fmt::Display for DamageList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tell(f, "object", "objects")
    }
}

/// All that is wrong with a store, each with what to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Objects that cannot be read.
    pub objects: DamageList,
    /// Superseded states of objects that cannot be read.
    pub earlier: DamageList,
    /// What else is not as it was written, or missing.
    pub other: Vec<String>,
}

impl Findings {
    /// Nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.earlier.is_empty() && self.other.is_empty()
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        if !self.objects.is_empty() {
            write!(f, "{}\ndelete these objects, as docs/operating.md tells, or restore a snapshot", self.objects)?;
            between = "\n";
        }
        if !self.earlier.is_empty() {
            f.write_str(between)?;
            self.earlier.tell(f, "earlier state of an object", "earlier states of objects")?;
            f.write_str("\nthese go with the history (--history), nothing needs to be done about them")?;
            between = "\n";
        }
        if !self.other.is_empty() {
            write!(f, "{between}the store is damaged, restore it from a snapshot: {}", self.other.join("\n  "))?;
        }
        Ok(())
    }
}

impl From<Damaged> for StoreError {
    fn from(Damaged { key, why }: Damaged) -> Self {
        Self::Damaged { key, why }
    }
}

/// The address that is told of an object whose own is damaged: its bytes.
fn stand_in(suffix: &[u8]) -> ObjectKey {
    let cluster = suffix.first_chunk().map_or(0, |cluster| u64::from_be_bytes(*cluster));
    ObjectKey::cluster_scoped(LogicalClusterId::new(cluster), GroupResource::new("", "unknown"), spelled(suffix))
}

/// Bytes as the name of an object: of many the first, and what tells them from others.
pub(crate) fn spelled(bytes: &[u8]) -> ObjectName {
    let (first, rest) = bytes.split_at(bytes.len().min(SPELLED));
    let digits: String = first.iter().map(|byte| format!("{byte:02x}")).collect();
    let rest = if rest.is_empty() { String::new() } else { format!("-{:08x}", crc32fast::hash(rest)) };
    format!("x{digits}{rest}").parse().expect("a few letters and digits are a name")
}

/// The damaged objects that reads have come across since the start. Each is logged once.
///
/// So many are known, and at least one of each resource of each logical cluster that has any: who asks whether all of a
/// resource could be read is never told so wrongly, and is told nothing of what happens to others. Addresses that are damaged
/// themselves are of no resource in this.
pub(crate) struct Ledger {
    known: Mutex<Known>,
    count: IntGauge,
}

#[derive(Default)]
struct Known {
    all: BTreeMap<ObjectKey, Damage>,
    /// How many of them are of each resource of a logical cluster. What stands in for an address has one for all: whatever bytes
    /// somebody writes, they are no further resources.
    places: HashMap<Option<(LogicalClusterId, GroupResource)>, usize>,
}

fn place(key: &ObjectKey, why: Damage) -> Option<(LogicalClusterId, GroupResource)> {
    (why != Damage::Key).then(|| (key.cluster, key.resource.clone()))
}

impl Known {
    fn has_room(&self, Damaged { key, why }: &Damaged) -> bool {
        self.all.len() < MOST_KNOWN || !self.places.contains_key(&place(key, *why))
    }

    /// Whether it was not known.
    fn add(&mut self, Damaged { key, why }: &Damaged) -> bool {
        let was_known = self.remove(key);
        self.all.insert(key.clone(), *why);
        *self.places.entry(place(key, *why)).or_default() += 1;
        !was_known
    }

    /// Whether it was known.
    fn remove(&mut self, key: &ObjectKey) -> bool {
        let why = self.all.remove(key);
        if let Some(why) = why {
            let place = place(key, why);
            match self.places.get_mut(&place) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) | None => drop(self.places.remove(&place)),
            }
        }
        why.is_some()
    }
}

impl Ledger {
    /// Tells in `count` how many there are.
    pub(crate) fn new(count: IntGauge) -> Self {
        Self { known: Mutex::default(), count }
    }

    /// Whether nothing is damaged, as far as anybody knows. Takes no lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    /// Whether one that is damaged would be noted.
    pub(crate) fn is_news(&self, found: &Damaged) -> bool {
        let known = self.known.lock();
        !known.all.contains_key(&found.key) && known.has_room(found)
    }

    /// Whether an index names it, and nothing else is there.
    pub(crate) fn misses(&self, key: &ObjectKey) -> bool {
        !self.is_empty() && self.known.lock().all.get(key) == Some(&Damage::Missing)
    }

    /// Notes one, and tells the operator.
    pub(crate) fn add(&self, found: &Damaged) {
        let Damaged { key, why } = found;
        let mut known = self.known.lock();
        if !known.has_room(found) || !known.add(found) {
            return;
        }
        self.recount(&known);
        tracing::error!(
            cluster = %key.cluster,
            resource = %key.resource,
            namespace = key.namespace().map_or("", NamespaceName::as_str),
            name = %key.name,
            error = %why,
            "a stored object is damaged: it is left out until somebody deletes it or restores a snapshot",
        );
        if known.all.len() == MOST_KNOWN {
            tracing::error!(
                known = MOST_KNOWN,
                "no more damaged objects are named than one of each resource and cluster"
            );
        }
    }

    /// It is there no more.
    pub(crate) fn remove(&self, key: &ObjectKey) {
        if !self.is_empty() {
            let mut known = self.known.lock();
            known.remove(key);
            self.recount(&known);
        }
    }

    /// Nothing is left of a logical cluster.
    pub(crate) fn remove_cluster(&self, cluster: LogicalClusterId) {
        if !self.is_empty() {
            let mut known = self.known.lock();
            let gone: Vec<_> = known.all.keys().filter(|key| key.cluster == cluster).cloned().collect();
            for key in &gone {
                known.remove(key);
            }
            self.recount(&known);
        }
    }

    pub(crate) fn all(&self) -> Vec<Damaged> {
        if self.is_empty() {
            return Vec::new();
        }
        self.known.lock().all.iter().map(|(key, why)| Damaged { key: key.clone(), why: *why }).collect()
    }

    fn recount(&self, known: &Known) {
        self.count.set(i64::try_from(known.all.len()).unwrap_or(i64::MAX));
    }
}
