//! Items of physical clusters as they are shown: with the name of the physical cluster in an annotation.

use portolan_types::annotations::PROJECTED_FROM;

use super::raw::{RawFields, quoted};

/// Longest resourceVersion of a physical cluster, in bytes.
const MAX_VERSION: usize = 32;

/// Object of a physical cluster.
pub(super) struct MemberItem<'a> {
    fields: RawFields<'a>,
    metadata: RawFields<'a>,
    annotations: Option<RawFields<'a>>,
}

/// Answer of a physical cluster that is not what was requested.
#[derive(Debug, thiserror::Error)]
#[error("its answer is invalid: {0}")]
pub(super) struct GarbledAnswer(pub(super) String);

impl From<serde_json::Error> for GarbledAnswer {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

impl<'a> MemberItem<'a> {
    /// Parses the levels of an object that are changed.
    ///
    /// # Errors
    /// Text that is not an object with metadata.
    pub(super) fn parse(text: &'a str) -> Result<Self, GarbledAnswer> {
        #[derive(serde::Deserialize)]
        struct Levels<'a> {
            #[serde(borrow)]
            metadata: RawLevel<'a>,
        }
        #[derive(serde::Deserialize)]
        struct RawLevel<'a> {
            #[serde(borrow, default)]
            annotations: Option<RawFields<'a>>,
        }
        #[derive(serde::Deserialize)]
        struct Metadata<'a> {
            #[serde(borrow)]
            metadata: RawFields<'a>,
        }
        let fields = RawFields::parse(text)?;
        let Metadata { metadata } = serde_json::from_str(text)?;
        let Levels { metadata: RawLevel { annotations } } = serde_json::from_str(text)?;
        Ok(Self { fields, metadata, annotations })
    }

    /// Returns its resourceVersion.
    ///
    /// # Errors
    /// A missing one, and one that is not a resourceVersion of Kubernetes.
    pub(super) fn version(&self) -> Result<String, GarbledAnswer> {
        let version = self.metadata.string("resourceVersion").filter(|version| is_version(version));
        version.ok_or_else(|| GarbledAnswer("an object without a resourceVersion".into()))
    }

    /// Sets the resourceVersion.
    pub(super) fn set_version(&mut self, version: &str) {
        self.metadata.set("resourceVersion", quoted(version));
    }

    /// Returns the text of the object with the name of its physical cluster.
    pub(super) fn shown(mut self, cluster: &str) -> String {
        let mut annotations = self.annotations.take().unwrap_or_else(RawFields::empty);
        annotations.set(PROJECTED_FROM, quoted(cluster));
        self.metadata.set("annotations", annotations.text());
        self.plain()
    }

    /// Returns the text of the object without the name.
    pub(super) fn plain(mut self) -> String {
        self.fields.set("metadata", self.metadata.text());
        self.fields.text()
    }
}

/// Returns true for a resourceVersion that Kubernetes may have made.
pub(super) fn is_version(text: &str) -> bool {
    (1..=MAX_VERSION).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_name_their_physical_cluster_and_keep_the_rest() {
        for (text, expected) in [
            (
                r#"{"kind":"Pod","metadata":{"name":"a","resourceVersion":"7"},"spec":{"n":1.0}}"#,
                r#"{"kind":"Pod","spec":{"n":1.0},"metadata":{"name":"a","resourceVersion":"7","annotations":{"portolan.dev/cluster":"east"}}}"#,
            ),
            (
                r#"{"metadata":{"annotations":{"portolan.dev/cluster":"forged","x":"y"},"name":"a"}}"#,
                r#"{"metadata":{"name":"a","annotations":{"x":"y","portolan.dev/cluster":"east"}}}"#,
            ),
            (r#"{"metadata":{"annotations":null}}"#, r#"{"metadata":{"annotations":{"portolan.dev/cluster":"east"}}}"#),
        ] {
            assert_eq!(MemberItem::parse(text).unwrap().shown("east"), expected);
        }
        for text in ["[]", "{}", r#"{"metadata":7}"#, r#"{"metadata":{"annotations":[]}}"#] {
            assert!(MemberItem::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn versions_are_short_words() {
        for (text, expected) in [
            (r#"{"metadata":{"resourceVersion":"7"}}"#, true),
            (r#"{"metadata":{"resourceVersion":7}}"#, false),
            (r#"{"metadata":{"resourceVersion":""}}"#, false),
            (r#"{"metadata":{"resourceVersion":"7&watch=true"}}"#, false),
            (r#"{"metadata":{}}"#, false),
        ] {
            assert_eq!(MemberItem::parse(text).unwrap().version().is_ok(), expected, "{text}");
        }
    }
}
