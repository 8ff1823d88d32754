//! Levels and versions of Pod Security Standards, parsed from namespace labels.

use std::fmt;

use portolan_types::{StatusCause, object};
use serde_json::Value;

/// Level of strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PodSecurityLevel {
    Privileged,
    Baseline,
    Restricted,
}

/// Minor version of Kubernetes whose rules apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodSecurityVersion {
    Minor(u32),
    Latest,
}

impl PodSecurityVersion {
    /// Returns the minor version; `latest` is newer than all.
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

impl PodSecurityLevel {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }
}

/// Level with the version of its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PodSecurityStandard {
    pub(super) level: PodSecurityLevel,
    pub(super) version: PodSecurityVersion,
}

impl fmt::Display for PodSecurityStandard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            PodSecurityLevel::Privileged => "privileged",
            PodSecurityLevel::Baseline => "baseline",
            PodSecurityLevel::Restricted => "restricted",
        };
        match self.version {
            PodSecurityVersion::Latest => write!(f, "{level}:latest"),
            PodSecurityVersion::Minor(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

/// Pod Security settings of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PodSecuritySettings {
    pub(super) enforce: PodSecurityStandard,
    pub(super) audit: PodSecurityStandard,
    pub(super) warn: PodSecurityStandard,
}

impl PodSecuritySettings {
    /// Parses the labels of a namespace and reports invalid ones. An invalid level counts as restricted for `enforce`
    /// and as privileged for the other modes.
    pub(super) fn of(namespace: &Value) -> (Self, Vec<StatusCause>) {
        let mut labels = SettingsParser { namespace, causes: Vec::new() };
        let enforced = labels.level("enforce", PodSecurityLevel::Restricted);
        let enforce = PodSecurityStandard {
            level: enforced.map_or(PodSecurityLevel::Privileged, |(level, _)| level),
            version: labels.version("enforce").unwrap_or(PodSecurityVersion::Latest),
        };
        let audit = PodSecurityStandard {
            level: labels
                .level("audit", PodSecurityLevel::Privileged)
                .map_or(PodSecurityLevel::Privileged, |(level, _)| level),
            version: labels.version("audit").unwrap_or(PodSecurityVersion::Latest),
        };
        let warned = labels.level("warn", PodSecurityLevel::Privileged);
        let version = labels.version("warn");
        // An enforced level also warns in templates, unless `warn` is set.
        let follows =
            warned.is_none() && enforced.is_some_and(|(level, said)| said && level > PodSecurityLevel::Privileged);
        let warn = if follows {
            PodSecurityStandard { level: enforce.level, version: version.unwrap_or(enforce.version) }
        } else {
            PodSecurityStandard {
                level: warned.map_or(PodSecurityLevel::Privileged, |(level, _)| level),
                version: version.unwrap_or(PodSecurityVersion::Latest),
            }
        };
        (Self { enforce, audit, warn }, labels.causes)
    }

    /// Returns true if it neither refuses nor warns of anything.
    pub(super) fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|standard| standard.level == PodSecurityLevel::Privileged)
    }
}

struct SettingsParser<'a> {
    namespace: &'a Value,
    causes: Vec<StatusCause>,
}

impl SettingsParser<'_> {
    /// Returns the level and true if the label sets it; `wrong` for an invalid label.
    fn level(&mut self, mode: &str, wrong: PodSecurityLevel) -> Option<(PodSecurityLevel, bool)> {
        let key = format!("pod-security.kubernetes.io/{mode}");
        let text = object::label(self.namespace, &key)?;
        let level = PodSecurityLevel::parse(text);
        if level.is_none() {
            self.refuse(&key, text, "must be one of privileged, baseline, restricted");
        }
        Some((level.unwrap_or(wrong), level.is_some()))
    }

    fn version(&mut self, mode: &str) -> Option<PodSecurityVersion> {
        let key = format!("pod-security.kubernetes.io/{mode}-version");
        let text = object::label(self.namespace, &key)?;
        let version = PodSecurityVersion::parse(text);
        if version.is_none() {
            self.refuse(&key, text, r#"must be "latest" or "v1.x""#);
        }
        Some(version.unwrap_or(PodSecurityVersion::Latest))
    }

    fn refuse(&mut self, key: &str, value: &str, why: &str) {
        self.causes.push(StatusCause {
            reason: "FieldValueInvalid".into(),
            message: format!("Invalid value: {value:?}: {why}"),
            field: format!("metadata.labels[{key}]"),
        });
    }
}
