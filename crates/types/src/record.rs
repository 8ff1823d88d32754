//! Stored form of an object: the encoded body and, beside it, the fields for selectors, garbage collection and the
//! syncer's index, which so need no parsing.

use bytes::Bytes;
use serde_json::Value;

use crate::{
    annotations,
    names::Uid,
    object,
    placement::PlacementRecord,
    tree::{self, ManagedFields},
    version::ResourceVersion,
};

/// Stored object. The body has no resourceVersion: readers splice it in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Fields that are read without parsing the body.
    pub header: RecordHeader,
    body: Bytes,
    splice_at: u32,
}

/// Fields of an object that are read without parsing its body. All are derived from the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordHeader {
    /// `metadata.uid`; empty only for Portolan's own records.
    pub uid: String,
    /// `metadata.labels`, sorted by key.
    pub labels: Vec<(String, String)>,
    /// Uids of `metadata.ownerReferences`.
    pub owners: Vec<String>,
    /// Uids of the physical clusters on the placement record, leaving ones included: the syncer's index.
    pub placed_on: Vec<String>,
    /// True if `metadata.finalizers` is not empty.
    pub has_finalizers: bool,
    /// True if `metadata.deletionTimestamp` is set.
    pub is_deleting: bool,
}

impl RecordHeader {
    fn of(object: &Value) -> Self {
        let labels = object::metadata(object).get("labels").and_then(Value::as_object);
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let placed = object::annotation(object, annotations::PLACEMENT).and_then(PlacementRecord::parse);
        Self {
            uid: object::meta_text(object, "uid").to_owned(),
            labels: labels.into_iter().flatten().map(|(k, v)| (k.clone(), text(v))).collect(),
            owners: object::owner_references(object).iter().filter_map(|o| o.get("uid")).map(text).collect(),
            placed_on: placed.into_iter().flat_map(|p| p.clusters).map(|c| c.uid.to_string()).collect(),
            has_finalizers: object::finalizers(object).next().is_some(),
            is_deleting: object::is_deleting(object),
        }
    }

    /// Returns the value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let at = self.labels.binary_search_by(|(k, _)| k.as_str().cmp(key)).ok()?;
        Some(&self.labels[at].1)
    }

    /// Returns the uid, if the object has one.
    pub fn uid(&self) -> Option<Uid> {
        self.uid.parse().ok()
    }
}

impl Record {
    /// Encodes an object, without its resourceVersion.
    pub fn of(object: &Value) -> Self {
        let mut body = Vec::with_capacity(1024);
        let splice_at = encode(object, &mut body);
        Self { header: RecordHeader::of(object), body: body.into(), splice_at }
    }

    /// Reassembles a record that was stored in parts. `splice_at` must come from [`Record::splice_at`].
    pub fn from_parts(header: RecordHeader, body: Bytes, splice_at: u32) -> Option<Self> {
        let fits = usize::try_from(splice_at).is_ok_and(|at| at <= body.len());
        fits.then_some(Self { header, body, splice_at })
    }

    /// Returns the body, without a resourceVersion.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the offset in the body where the resourceVersion is spliced in: right after `"metadata":{`.
    pub fn splice_at(&self) -> u32 {
        self.splice_at
    }

    /// Appends the object as JSON, with its resourceVersion.
    pub fn write_json(&self, revision: ResourceVersion, out: &mut Vec<u8>) {
        let (before, after) = self.body.split_at(self.splice_at as usize);
        out.reserve(self.body.len() + 48);
        out.extend_from_slice(before);
        splice(revision, after, out);
    }

    /// Appends `metadata` alone as JSON, with its resourceVersion.
    ///
    /// # Errors
    /// Fails if the bytes are not what [`Record::of`] made.
    pub fn write_metadata(&self, revision: ResourceVersion, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        let metadata = &self.body[(self.splice_at as usize).saturating_sub(1)..];
        let mut values = serde_json::Deserializer::from_slice(metadata).into_iter::<serde::de::IgnoredAny>();
        values.next().transpose()?;
        let content = metadata.get(1..values.byte_offset()).unwrap_or(b"}");
        out.push(b'{');
        splice(revision, content, out);
        Ok(())
    }

    /// Returns the object as JSON bytes with its resourceVersion, with capacity for one more byte.
    pub fn to_json(&self, revision: ResourceVersion) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.body.len() + 64);
        self.write_json(revision, &mut out);
        out
    }

    /// Returns the object as a tree, with its resourceVersion.
    ///
    /// # Errors
    /// Fails if the bytes are not what [`Record::of`] made, that is, when storage is damaged.
    pub fn to_value(&self, revision: ResourceVersion) -> Result<Value, serde_json::Error> {
        serde_json::from_slice(&self.body).map(|value| versioned(value, revision))
    }

    /// Returns the tree as [`Record::to_value`] does, with fewer managed fields, which is cheaper.
    ///
    /// # Errors
    /// As [`Record::to_value`].
    pub fn to_value_with(&self, managed: ManagedFields, revision: ResourceVersion) -> Result<Value, serde_json::Error> {
        tree::read(&self.body, managed).map(|value| versioned(value, revision))
    }
}

fn versioned(mut object: Value, revision: ResourceVersion) -> Value {
    if let Some(top) = object.as_object_mut() {
        object::child_mut(top, "metadata").insert("resourceVersion".into(), revision.to_string().into());
    }
    object
}

/// Appends the resourceVersion as the first field before `after`.
fn splice(revision: ResourceVersion, after: &[u8], out: &mut Vec<u8>) {
    let last = if after.first() == Some(&b'}') { "" } else { "," };
    out.extend_from_slice(format!("\"resourceVersion\":\"{revision}\"{last}").as_bytes());
    out.extend_from_slice(after);
}

/// Encodes `object` with `metadata` first, and returns the offset of its content.
fn encode(object: &Value, out: &mut Vec<u8>) -> u32 {
    let write = |out: &mut Vec<u8>, value: &Value| {
        serde_json::to_writer(out, value).expect("a JSON tree serializes into memory");
    };
    let key = |out: &mut Vec<u8>, first: &mut bool, name: &str| {
        if !std::mem::take(first) {
            out.push(b',');
        }
        serde_json::to_writer(&mut *out, name).expect("text serializes into memory");
        out.push(b':');
    };
    let mut first = true;
    out.push(b'{');
    let (mut splice_at, mut seen) = (0, false);
    for (name, value) in object.as_object().into_iter().flatten() {
        key(out, &mut first, name);
        match (name.as_str(), value.as_object()) {
            ("metadata", Some(metadata)) => {
                seen = true;
                out.push(b'{');
                splice_at = out.len();
                let mut first = true;
                for (name, value) in metadata.iter().filter(|(name, _)| *name != "resourceVersion") {
                    key(out, &mut first, name);
                    write(out, value);
                }
                out.push(b'}');
            }
            _ => write(out, value),
        }
    }
    if !seen {
        key(out, &mut first, "metadata");
        out.push(b'{');
        splice_at = out.len();
        out.push(b'}');
    }
    out.push(b'}');
    u32::try_from(splice_at).expect("objects are smaller than 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_resource_version_is_spliced_into_the_stored_bytes() {
        for object in [
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "uid": "u"}, "data": {"k": "v"}}),
            json!({"metadata": {"resourceVersion": "3", "name": "a"}}),
            json!({"metadata": {}}),
            json!({"kind": "X"}),
        ] {
            let record = Record::of(&object);
            let revision = ResourceVersion::new(42).unwrap();
            let read: Value = serde_json::from_slice(&record.to_json(revision)).unwrap();
            assert_eq!(object::meta_text(&read, "resourceVersion"), "42");
            assert_eq!(read, record.to_value(revision).unwrap());
            assert_eq!(record.to_value_with(ManagedFields::AsText, revision).unwrap(), read);
            let mut metadata = Vec::new();
            record.write_metadata(revision, &mut metadata).unwrap();
            assert_eq!(serde_json::from_slice::<Value>(&metadata).unwrap(), read["metadata"]);
            assert!(!record.body().windows(15).any(|w| w == b"resourceVersion"));
        }
    }

    #[test]
    fn the_header_serves_selectors_and_garbage_collection() {
        let record = Record::of(&json!({"metadata": {
            "uid": "u", "labels": {"b": "2", "a": "1"}, "finalizers": ["x/y"], "deletionTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"uid": "o"}],
            "annotations": {"portolan.dev/placement": "{\"clusters\":[{\"name\":\"east\",\"uid\":\"p\",\"phase\":\"Active\",\"epoch\":1}]}"},
        }}));
        let header = &record.header;
        assert_eq!((header.label("a"), header.label("b"), header.label("c")), (Some("1"), Some("2"), None));
        assert_eq!((&header.owners, &header.placed_on), (&vec!["o".to_owned()], &vec!["p".to_owned()]));
        assert!(header.has_finalizers && header.is_deleting);
    }
}
