//! Encoding of an object on disk: a checked header, then the unchanged bytes of the body.
//!
//! `format u8 | checksum u32 | revision u64 | created u64 | splice u32 | body at u32 | flags u8 | uid | labels | owners
//! | placed on | body`, numbers little-endian, texts and lists with their length in front. The checksum is CRC-32 over
//! everything after the two numbers, then the two numbers, then the suffix of the object's keys. So handlers prepare
//! everything, the committer only adds its numbers, and a damaged key shows no object under another address.

use std::sync::Arc;

use bytes::Bytes;
use portolan_types::{LabelSelector, Record, ResourceVersion, record::RecordHeader};

use crate::{api::damage::Damage, layout::keys::KeySuffix};

/// Version of this layout, in every value.
const FORMAT: u8 = 2;
/// Version whose checksum does not cover the object's key.
const WITHOUT_PLACE: u8 = 1;
const CHECKSUM: std::ops::Range<usize> = 1..5;
const NUMBERS: std::ops::Range<usize> = 5..21;
const REST: usize = 21;
const FINALIZERS: u8 = 1;
const DELETING: u8 = 2;

/// Encoded object that lacks only its revisions.
#[derive(Clone, Debug)]
pub(crate) struct EncodedObject {
    header: RecordHeader,
    value: Vec<u8>,
    body_at: usize,
    splice_at: u32,
    checksum: u32,
}

/// Object as of one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectVersion {
    pub(crate) revision: ResourceVersion,
    pub(crate) created: ResourceVersion,
    pub(crate) record: Arc<Record>,
}

impl EncodedObject {
    pub(crate) fn new(record: Record) -> Self {
        let (body, splice_at) = (record.body().clone(), record.splice_at());
        let header = record.header;
        let mut value = Vec::with_capacity(REST + 192 + body.len());
        value.push(FORMAT);
        value.resize(REST, 0);
        push_number(&mut value, splice_at as usize);
        push_number(&mut value, 0);
        value.push(u8::from(header.has_finalizers) * FINALIZERS + u8::from(header.is_deleting) * DELETING);
        push_text(&mut value, &header.uid);
        push_number(&mut value, header.labels.len());
        for (key, text) in &header.labels {
            push_text(&mut value, key);
            push_text(&mut value, text);
        }
        for list in [&header.owners, &header.placed_on] {
            push_number(&mut value, list.len());
            list.iter().for_each(|text| push_text(&mut value, text));
        }
        let body_at = value.len();
        value[REST + 4..REST + 8].copy_from_slice(&as_u32(body_at).to_le_bytes());
        value.extend_from_slice(&body);
        let checksum = crc32fast::hash(&value[REST..]);
        Self { header, value, body_at, splice_at, checksum }
    }

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.value.len()
    }

    pub(crate) fn header(&self) -> &RecordHeader {
        &self.header
    }

    /// Adds the revisions: returns the bytes to store under `suffix`, and the object sharing them.
    pub(crate) fn seal(
        mut self,
        suffix: &KeySuffix,
        revision: ResourceVersion,
        created: ResourceVersion,
    ) -> (Bytes, ObjectVersion) {
        self.value[5..13].copy_from_slice(&revision.get().to_le_bytes());
        self.value[13..21].copy_from_slice(&created.get().to_le_bytes());
        let checksum = with_place(self.checksum, &self.value[NUMBERS], suffix.as_bytes());
        self.value[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        let value = Bytes::from(self.value);
        let body = value.slice(self.body_at..);
        let record = Record::from_parts(self.header, body, self.splice_at).expect("the offset came with these bytes");
        (value, ObjectVersion { revision, created, record: Arc::new(record) })
    }
}

/// Encoded object with a valid checksum.
#[derive(Clone, Copy)]
pub(crate) struct CheckedObject<'a>(&'a [u8]);

impl<'a> CheckedObject<'a> {
    /// Checks format and checksum of the bytes found under the keys of `suffix`.
    pub(crate) fn check(suffix: &[u8], value: &'a [u8]) -> Result<Self, Damage> {
        let suffix = match value.first() {
            Some(&FORMAT) => suffix,
            Some(&WITHOUT_PLACE) => &[],
            Some(other) => return Err(Damage::Format(*other)),
            None => return Err(Damage::CutOff),
        };
        let rest = value.get(REST..).ok_or(Damage::CutOff)?;
        let expected = with_place(crc32fast::hash(rest), &value[NUMBERS], suffix);
        if value[CHECKSUM] == expected.to_le_bytes() { Ok(Self(value)) } else { Err(Damage::Checksum) }
    }

    /// Returns the revision alone.
    pub(crate) fn revision(self) -> Result<ResourceVersion, Damage> {
        revision_at(self.0, 5)
    }

    /// Returns true if the labels satisfy `selector`.
    pub(crate) fn matches(self, selector: &LabelSelector) -> Result<bool, Damage> {
        if selector.is_everything() {
            return Ok(true);
        }
        let mut reader = HeaderReader { bytes: self.0, at: REST + 9 };
        reader.text()?;
        let pairs = (0..reader.number()?).map(|_| Ok((reader.text()?, reader.text()?)));
        let labels = pairs.collect::<Result<Vec<_>, Damage>>()?;
        Ok(selector.matches(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)))
    }

    /// Decodes the object. `body` returns the bytes from an offset on.
    pub(crate) fn decode(self, body: impl FnOnce(usize) -> Bytes) -> Result<ObjectVersion, Damage> {
        let mut reader = HeaderReader { bytes: self.0, at: REST };
        let (splice_at, body_at) = (reader.number()?, reader.number()?);
        let flags = reader.byte()?;
        let uid = reader.text()?.to_owned();
        let labels = (0..reader.number()?).map(|_| Ok((reader.text()?.to_owned(), reader.text()?.to_owned())));
        let labels = labels.collect::<Result<_, Damage>>()?;
        let header = RecordHeader {
            uid,
            labels,
            owners: reader.list()?,
            placed_on: reader.list()?,
            has_finalizers: flags & FINALIZERS != 0,
            is_deleting: flags & DELETING != 0,
        };
        if body_at > self.0.len() || reader.at != body_at {
            return Err(Damage::CutOff);
        }
        let record = Record::from_parts(header, body(body_at), as_u32(splice_at)).ok_or(Damage::CutOff)?;
        Ok(ObjectVersion { revision: self.revision()?, created: revision_at(self.0, 13)?, record: Arc::new(record) })
    }
}

/// Checks and decodes bytes found under the keys of `suffix`.
pub(crate) fn decode(suffix: &[u8], value: &Bytes) -> Result<ObjectVersion, Damage> {
    CheckedObject::check(suffix, value)?.decode(|at| value.slice(at..))
}

fn with_place(checksum: u32, numbers: &[u8], suffix: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(checksum);
    hasher.update(numbers);
    hasher.update(suffix);
    hasher.finalize()
}

fn revision_at(value: &[u8], at: usize) -> Result<ResourceVersion, Damage> {
    let bytes = value.get(at..at + 8).and_then(|b| b.try_into().ok()).ok_or(Damage::CutOff)?;
    ResourceVersion::new(u64::from_le_bytes(bytes)).ok_or(Damage::CutOff)
}

fn as_u32(number: usize) -> u32 {
    u32::try_from(number).expect("objects are smaller than 4 GiB")
}

fn push_number(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&as_u32(number).to_le_bytes());
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    push_number(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

/// Reader of checked bytes that still never reads past their end.
struct HeaderReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> HeaderReader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Damage> {
        let end = self.at.checked_add(n).ok_or(Damage::CutOff)?;
        let taken = self.bytes.get(self.at..end).ok_or(Damage::CutOff)?;
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Damage> {
        self.take(1).map(|b| b[0])
    }

    fn number(&mut self) -> Result<usize, Damage> {
        let bytes = self.take(4)?.try_into().map_err(|_| Damage::CutOff)?;
        Ok(u32::from_le_bytes(bytes) as usize)
    }

    fn text(&mut self) -> Result<&'a str, Damage> {
        let n = self.number()?;
        std::str::from_utf8(self.take(n)?).map_err(|_| Damage::CutOff)
    }

    fn list(&mut self) -> Result<Vec<String>, Damage> {
        (0..self.number()?).map(|_| self.text().map(str::to_owned)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn record(text: &str) -> Record {
        Record::of(&json!({"metadata": {
            "name": "a", "uid": text, "labels": {"app": "web", "b": text}, "finalizers": ["x/y"],
            "ownerReferences": [{"uid": "o1"}, {"uid": "o2"}],
        }, "data": {"k": text}}))
    }

    fn place() -> KeySuffix {
        KeySuffix::from_bytes(b"\0\0\0\0\0\0\0\x01\0\0\0\x02default\0web\0")
    }

    fn sealed(record: Record) -> (Bytes, ObjectVersion) {
        EncodedObject::new(record).seal(&place(), ResourceVersion::new(9).unwrap(), ResourceVersion::new(7).unwrap())
    }

    #[test]
    fn an_object_comes_back_as_it_went() {
        let (value, version) = sealed(record("u"));
        assert_eq!(decode(place().as_bytes(), &value).unwrap(), version);
        assert_eq!((version.revision.get(), version.created.get(), &*version.record), (9, 7, &record("u")));
    }

    #[test]
    fn selectors_are_answered_from_the_header() {
        let (value, _) = sealed(record("u"));
        for (selector, expected) in [("app=web", true), ("app=api", false), ("!x", true), ("b in (u,v)", true)] {
            let selector = LabelSelector::parse(selector).unwrap();
            assert_eq!(CheckedObject::check(place().as_bytes(), &value).unwrap().matches(&selector), Ok(expected));
        }
    }

    #[test]
    fn another_format_is_refused() {
        let (value, _) = sealed(record("u"));
        let mut bytes = value.to_vec();
        bytes[0] = 3;
        assert_eq!(decode(place().as_bytes(), &bytes.into()), Err(Damage::Format(3)));
    }

    proptest! {
        #[test]
        fn any_changed_bit_is_found(text in ".{0,40}", at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let (value, _) = sealed(record(&text));
            let mut bytes = value.to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(decode(place().as_bytes(), &bytes.into()).is_err());
        }

        #[test]
        fn an_object_under_another_key_is_found_out(at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let (value, _) = sealed(record("u"));
            let mut suffix = place().as_bytes().to_vec();
            let at = at.index(suffix.len());
            suffix[at] ^= 1 << bit;
            prop_assert_eq!(decode(&suffix, &value), Err(Damage::Checksum));
        }

        #[test]
        fn any_cut_is_found(keep in any::<prop::sample::Index>()) {
            let (value, _) = sealed(record("u"));
            prop_assert!(decode(place().as_bytes(), &value.slice(..keep.index(value.len()))).is_err());
        }
    }
}
