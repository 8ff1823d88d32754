//! Names and ids, checked once where text enters.

use std::{fmt, str::FromStr, sync::Arc};

/// Error for a text that breaks the rule of a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is invalid: {rule}")]
pub struct InvalidName {
    text: String,
    rule: &'static str,
}

impl InvalidName {
    /// Keeps at most 256 characters of `text`.
    pub fn new(text: &str, rule: &'static str) -> Self {
        Self { text: text.chars().take(256).collect(), rule }
    }

    /// Returns the broken rule, in Kubernetes' words.
    pub fn rule(&self) -> &'static str {
        self.rule
    }
}

const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_LENGTH_RULE: &str = "must be no more than 63 characters";
const SEGMENT_RULE: &str = "a name must be 1 to 253 bytes, not '.' or '..', without '/', '%' and control characters";

const LEVELS_RULE: &str = "a logical cluster must be at most 64 levels deep";

/// Checks a DNS-1123 label of 1 to 63 bytes (RFC 1123).
///
/// # Errors
/// Names the rule that does not hold.
pub fn check_dns_label(text: &str) -> Result<(), InvalidName> {
    if text.len() > 63 {
        return Err(InvalidName::new(text, LABEL_LENGTH_RULE));
    }
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = bytes.first().is_some_and(|b| inner(*b)) && bytes.last().is_some_and(|b| inner(*b));
    if ends && bytes.iter().all(|b| inner(*b) || *b == b'-') { Ok(()) } else { Err(InvalidName::new(text, LABEL_RULE)) }
}

/// Checks a URL path segment: the loosest rule of any kind (RBAC's). Kinds have stricter ones.
fn check_path_segment(text: &str) -> Result<(), InvalidName> {
    let fits = !text.is_empty() && text.len() <= 253 && text != "." && text != "..";
    if fits && !text.chars().any(|c| c == '/' || c == '%' || c.is_control()) {
        Ok(())
    } else {
        Err(InvalidName::new(text, SEGMENT_RULE))
    }
}

macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Returns the text of the name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                $check(text)?;
                Ok(Self(text.into()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl std::ops::Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

checked_text! {
    /// Name of a namespace: a DNS-1123 label.
    NamespaceName, check_dns_label
}
checked_text! {
    /// Name of an object: one URL path segment of 1 to 253 bytes. Kinds have stricter rules, which validation checks.
    ObjectName, check_path_segment
}
checked_text! {
    /// `metadata.uid`: opaque, unique over time and space.
    Uid, check_path_segment
}
checked_text! {
    /// Path of a logical cluster, as in `/clusters/{path}`: DNS-1123 labels of 1 to 63 bytes, joined by `:`, at most
    /// [`LogicalClusterPath::MAX_LEVELS`] of them.
    LogicalClusterPath, check_cluster_path
}

fn check_cluster_path(text: &str) -> Result<(), InvalidName> {
    // First, so that no long text is read.
    if text.split(':').nth(LogicalClusterPath::MAX_LEVELS).is_some() {
        return Err(InvalidName::new(text, LEVELS_RULE));
    }
    text.split(':').try_for_each(check_dns_label)
}

impl LogicalClusterPath {
    /// Most labels of a path. kcp has no limit but the length of a URL; here each request to a workspace walks its
    /// ancestors.
    pub const MAX_LEVELS: usize = 64;

    /// Returns the path of the root logical cluster.
    pub fn root() -> Self {
        Self("root".into())
    }

    /// Returns the path of the workspace `name` in this logical cluster.
    ///
    /// # Errors
    /// Fails if `name` is not a DNS-1123 label, or below [`Self::MAX_LEVELS`].
    pub fn child(&self, name: &str) -> Result<Self, InvalidName> {
        check_dns_label(name)?;
        if self.0.split(':').nth(Self::MAX_LEVELS - 1).is_some() {
            return Err(InvalidName::new(name, LEVELS_RULE));
        }
        Ok(Self(format!("{}:{name}", self.0).into()))
    }

    /// Returns the parent's path; `None` at the top.
    pub fn parent(&self) -> Option<Self> {
        self.0.rsplit_once(':').map(|(parent, _)| Self(parent.into()))
    }
}

/// Id of a logical cluster. Never reused, even if a workspace of the same path is made again. Text form: `root`,
/// `system`, or 13 base-36 digits that scatter consecutive numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogicalClusterId(u64);

/// Odd number, so that multiplication by it is a bijection of `u64`.
const SCATTER: u64 = 0x9E37_79B9_7F4A_7C15;
/// Its inverse modulo 2^64.
const GATHER: u64 = 0xF1DE_83E1_9937_733D;

impl LogicalClusterId {
    /// Holds Portolan's own bookkeeping. No request is ever resolved to it.
    pub const SYSTEM: Self = Self(0);
    /// Logical cluster `root`.
    pub const ROOT: Self = Self(1);

    /// Makes an id; the store counts the numbers up.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number in keys.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for LogicalClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SYSTEM => f.write_str("system"),
            Self::ROOT => f.write_str("root"),
            Self(number) => {
                let mut rest = number.wrapping_mul(SCATTER);
                let mut digits = [b'0'; 13];
                for digit in digits.iter_mut().rev() {
                    *digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[(rest % 36) as usize];
                    rest /= 36;
                }
                f.write_str(std::str::from_utf8(&digits).expect("base-36 digits are ASCII"))
            }
        }
    }
}

impl fmt::Debug for LogicalClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{self}", self.0)
    }
}

impl FromStr for LogicalClusterId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        match text {
            "system" => return Ok(Self::SYSTEM),
            "root" => return Ok(Self::ROOT),
            _ => {}
        }
        let digits = text.len() == 13 && text.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
        let scattered = if digits { u64::from_str_radix(text, 36).ok() } else { None };
        scattered
            .map(|number| Self(number.wrapping_mul(GATHER)))
            .filter(|id| *id > Self::ROOT)
            .ok_or_else(|| InvalidName::new(text, "not the id of a logical cluster"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_their_text_form() {
        for number in [0, 1, 2, 3, 36, 1 << 40, u64::MAX] {
            let id = LogicalClusterId::new(number);
            assert_eq!(id.to_string().parse::<LogicalClusterId>().as_ref(), Ok(&id));
        }
    }

    #[test]
    fn paths_are_labels_joined_by_colons() {
        for (text, valid) in [
            ("root", true),
            ("root:team-a:shop", true),
            ("", false),
            ("root:", false),
            ("root::a", false),
            ("Root", false),
            ("root:a/b", false),
            ("root:a.b", false),
            ("root:-a", false),
        ] {
            assert_eq!(text.parse::<LogicalClusterPath>().is_ok(), valid, "{text}");
        }
    }

    #[test]
    fn paths_have_at_most_64_levels() {
        let path = |levels: usize| vec!["a"; levels].join(":");
        let deepest: LogicalClusterPath = path(LogicalClusterPath::MAX_LEVELS).parse().unwrap();
        assert_eq!(deepest.child("b").unwrap_err().rule(), LEVELS_RULE);
        assert_eq!(deepest.parent().unwrap().child("a"), Ok(deepest));
        assert_eq!(path(65).parse::<LogicalClusterPath>().unwrap_err().rule(), LEVELS_RULE);
    }

    #[test]
    fn object_names_cannot_leave_their_path_segment() {
        for (text, valid) in [("system:node", true), ("a.b", true), ("..", false), ("a/b", false), ("a%2fb", false)] {
            assert_eq!(text.parse::<ObjectName>().is_ok(), valid, "{text}");
        }
    }
}
