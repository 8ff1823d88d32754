//! Names and ids, checked once where text enters.

use std::{fmt, str::FromStr, sync::Arc};

/// Text that breaks the rule of the name it should be.
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

    /// The rule that does not hold, in Kubernetes' words.
    pub fn rule(&self) -> &'static str {
        self.rule
    }
}

const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_LENGTH_RULE: &str = "must be no more than 63 characters";
const SEGMENT_RULE: &str = "a name must be 1 to 253 bytes, not '.' or '..', without '/', '%' and control characters";

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
    match ends && bytes.iter().all(|b| inner(*b) || *b == b'-') {
        true => Ok(()),
        false => Err(InvalidName::new(text, LABEL_RULE)),
    }
}

/// What may stand between two slashes of a URL and in a key: the loosest rule that any kind has (RBAC's). Kinds have stricter ones.
fn check_path_segment(text: &str) -> Result<(), InvalidName> {
    let fits = !text.is_empty() && text.len() <= 253 && text != "." && text != "..";
    match fits && !text.chars().any(|c| c == '/' || c == '%' || c.is_control()) {
        true => Ok(()),
        false => Err(InvalidName::new(text, SEGMENT_RULE)),
    }
}

macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text of the name.
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
    /// Path of a logical cluster, as in `/clusters/{path}`: DNS-1123 labels of 1 to 63 bytes, joined by `:`.
    LogicalClusterPath, |text: &str| text.split(':').try_for_each(check_dns_label)
}

impl LogicalClusterPath {
    /// The path of the logical cluster that all others are below.
    pub fn root() -> Self {
        Self("root".into())
    }

    /// The path of the workspace `name` in this logical cluster.
    ///
    /// # Errors
    /// When `name` is no DNS-1123 label.
    pub fn child(&self, name: &str) -> Result<Self, InvalidName> {
        check_dns_label(name)?;
        Ok(Self(format!("{}:{name}", self.0).into()))
    }

    /// The path one level up; `None` at the top.
    pub fn parent(&self) -> Option<Self> {
        self.0.rsplit_once(':').map(|(parent, _)| Self(parent.into()))
    }
}

/// What a path resolves to at the door. Never reused, also when a workspace of the same path is made again.
/// Text form: `root`, `system`, or 13 base-36 digits that scatter neighbouring numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogicalClusterId(u64);

/// An odd number, so that multiplication by it is a bijection of `u64`.
const SCATTER: u64 = 0x9E37_79B9_7F4A_7C15;
/// Its inverse modulo 2^64.
const GATHER: u64 = 0xF1DE_83E1_9937_733D;

impl LogicalClusterId {
    /// Holds Portolan's own bookkeeping. No request is ever resolved to it.
    pub const SYSTEM: Self = Self(0);
    /// The logical cluster `root`.
    pub const ROOT: Self = Self(1);

    /// The id of this number; the store counts them up.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number in keys.
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
    fn object_names_cannot_leave_their_path_segment() {
        for (text, valid) in [("system:node", true), ("a.b", true), ("..", false), ("a/b", false), ("a%2fb", false)] {
            assert_eq!(text.parse::<ObjectName>().is_ok(), valid, "{text}");
        }
    }
}
