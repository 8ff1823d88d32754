//! Levels and versions of Pod Security Standards, as labels of namespaces set them.

use std::fmt;

use portolan_types::{StatusCause, object};
use serde_json::Value;

/// How strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Privileged,
    Baseline,
    Restricted,
}

/// By the rules of which minor version of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Minor(u32),
    Latest,
}

impl Version {
    /// The minor version; the latest is newer than all.
    pub(super) fn minor(self) -> u32 {
        match self {
            Self::Minor(minor) => minor,
            Self::Latest => u32::MAX,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if text == "latest" {
            return Some(Self::Latest);
        }
        let minor = text.strip_prefix("v1.")?;
        let is_plain = minor.bytes().all(|b| b.is_ascii_digit()) && (minor == "0" || !minor.starts_with('0'));
        minor.parse().ok().filter(|_| is_plain).map(Self::Minor)
    }
}

impl Level {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }
}

/// A level by the rules of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standard {
    pub(super) level: Level,
    pub(super) version: Version,
}

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Version::Latest => write!(f, "{level}:latest"),
            Version::Minor(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

/// What holds in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) enforce: Standard,
    pub(super) audit: Standard,
    pub(super) warn: Standard,
}

impl Policy {
    /// From the labels of a namespace, with what is wrong with them: a level that is none counts as restricted where it is
    /// enforced, and as privileged elsewhere.
    pub(super) fn of(namespace: &Value) -> (Self, Vec<StatusCause>) {
        let mut labels = Labels { namespace, causes: Vec::new() };
        let enforced = labels.level("enforce", Level::Restricted);
        let enforce = Standard {
            level: enforced.map_or(Level::Privileged, |(level, _)| level),
            version: labels.version("enforce").unwrap_or(Version::Latest),
        };
        let audit = Standard {
            level: labels.level("audit", Level::Privileged).map_or(Level::Privileged, |(level, _)| level),
            version: labels.version("audit").unwrap_or(Version::Latest),
        };
        let warned = labels.level("warn", Level::Privileged);
        let version = labels.version("warn");
        // Who is refused something should be warned of it in templates, too.
        let follows = warned.is_none() && enforced.is_some_and(|(level, said)| said && level > Level::Privileged);
        let warn = match follows {
            true => Standard { level: enforce.level, version: version.unwrap_or(enforce.version) },
            false => Standard {
                level: warned.map_or(Level::Privileged, |(level, _)| level),
                version: version.unwrap_or(Version::Latest),
            },
        };
        (Self { enforce, audit, warn }, labels.causes)
    }

    /// Whether it allows everything, silently.
    pub(super) fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|standard| standard.level == Level::Privileged)
    }
}

struct Labels<'a> {
    namespace: &'a Value,
    causes: Vec<StatusCause>,
}

impl Labels<'_> {
    /// The level, and whether the label says it; `wrong` where the label says none.
    fn level(&mut self, mode: &str, wrong: Level) -> Option<(Level, bool)> {
        let key = format!("pod-security.kubernetes.io/{mode}");
        let text = object::label(self.namespace, &key)?;
        let level = Level::parse(text);
        if level.is_none() {
            self.refuse(&key, text, "must be one of privileged, baseline, restricted");
        }
        Some((level.unwrap_or(wrong), level.is_some()))
    }

    fn version(&mut self, mode: &str) -> Option<Version> {
        let key = format!("pod-security.kubernetes.io/{mode}-version");
        let text = object::label(self.namespace, &key)?;
        let version = Version::parse(text);
        if version.is_none() {
            self.refuse(&key, text, r#"must be "latest" or "v1.x""#);
        }
        Some(version.unwrap_or(Version::Latest))
    }

    fn refuse(&mut self, key: &str, value: &str, why: &str) {
        self.causes.push(StatusCause {
            reason: "FieldValueInvalid".into(),
            message: format!("Invalid value: {value:?}: {why}"),
            field: format!("metadata.labels[{key}]"),
        });
    }
}
