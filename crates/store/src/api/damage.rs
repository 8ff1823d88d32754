//! Damage: objects that cannot be read, and reports of them.

use std::fmt;

use portolan_types::{ObjectKey, ObjectName};

use crate::api::StoreError;

/// Kind of damage of a stored object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The bytes were changed.
    #[error("the checksum of a stored object does not match")]
    Checksum,
    /// A newer version wrote the bytes, or they are something else.
    #[error("a stored object has format {0}, which this version does not know")]
    Format(u8),
    /// The bytes are cut off.
    #[error("a stored object is cut off")]
    CutOff,
    /// The key is malformed.
    #[error("a key or bookkeeping entry is malformed")]
    Key,
    /// The bytes are unchanged, but their body is not JSON.
    #[error("the body of a stored object is no JSON")]
    Body,
    /// The object is encrypted with a key that is not configured.
    #[error("the object is encrypted with a key that is not configured")]
    KeyMissing,
    /// The object was changed, belongs elsewhere, or was encrypted with another key of the same name.
    #[error("the object cannot be decrypted: it was changed, or the key of this name is another one")]
    Decryption,
    /// The object is not encrypted, and its resource may not have such objects.
    #[error("the object is not encrypted, and no identity provider is configured")]
    Unencrypted,
    /// The object is missing.
    #[error("an index names an object that is missing")]
    Missing,
}

/// Object that is stored and cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedObject {
    /// Address of the object. If the address itself is damaged, this is the best approximation, and `why` is
    /// [`Damage::Key`].
    pub key: ObjectKey,
    /// Kind of damage.
    pub why: Damage,
}

impl fmt::Display for DamagedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", named(&self.key), self.why)
    }
}

/// Formats an object's address for operators.
pub(crate) fn named(key: &ObjectKey) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        let namespace = key.namespace().map_or_else(String::new, |namespace| format!("{namespace}/"));
        write!(f, "{} \"{namespace}{}\" of logical cluster {}", key.resource, key.name, key.cluster)
    })
}

/// Damaged objects found by a read of the whole store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageList {
    /// Number of damaged objects.
    pub count: u64,
    /// Descriptions of the first ones.
    pub first: Vec<String>,
}

/// Maximum bytes that a stand-in name shows; a name has at most 253 characters.
const MAX_SPELLED_BYTES: usize = 100;
/// Most objects, and most faults of one kind, that are described individually.
pub(crate) const MAX_DESCRIBED: usize = 20;

impl DamageList {
    /// Returns true if there is no damage.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn add(&mut self, found: impl fmt::Display) {
        self.count += 1;
        if self.first.len() < MAX_DESCRIBED {
            self.first.push(found.to_string());
        }
    }

    /// Writes the list, with the noun in its singular `one` or its plural `many`.
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

/// Report of all damage in a store, each with the action to take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageReport {
    /// Objects that cannot be read.
    pub objects: DamageList,
    /// Superseded states that cannot be read.
    pub earlier: DamageList,
    /// Descriptions of other damaged or missing data.
    pub other: Vec<String>,
}

impl DamageReport {
    /// Returns true if nothing is damaged.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.earlier.is_empty() && self.other.is_empty()
    }
}

impl fmt::Display for DamageReport {
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

impl From<DamagedObject> for StoreError {
    fn from(DamagedObject { key, why }: DamagedObject) -> Self {
        Self::Damaged { key, why }
    }
}

/// Encodes bytes as an object name: the first ones in hexadecimal, and a checksum of the rest.
pub(crate) fn stand_in_name(bytes: &[u8]) -> ObjectName {
    let (first, rest) = bytes.split_at(bytes.len().min(MAX_SPELLED_BYTES));
    let digits: String = first.iter().map(|byte| format!("{byte:02x}")).collect();
    let rest = if rest.is_empty() { String::new() } else { format!("-{:08x}", crc32fast::hash(rest)) };
    format!("x{digits}{rest}").parse().expect("a few letters and digits are a name")
}
