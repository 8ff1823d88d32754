//! Opaque texts that stand for the state of all physical clusters: the resourceVersion of a merged list or event, and
//! the continue token of a merged list.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use portolan_types::{Status, Uid};
use serde::{Deserialize, Serialize};

use super::items::is_version;

/// Number of digits of a uid that distinguish physical clusters.
const DIGITS: usize = 12;
/// Longest text that is decoded, in bytes: that of the longest URL.
const MAX_TOKEN: usize = 8 * 1024;
/// Longest continue token of a physical cluster, in bytes.
const MAX_CONTINUE: usize = 3 * 1024;

/// Key of a physical cluster in a token: another one of the same name has another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct MemberKey(String);

impl MemberKey {
    pub(super) fn of(uid: &Uid) -> Self {
        Self(uid.to_string().chars().filter(|c| *c != '-').take(DIGITS).collect())
    }
}

/// Versions of physical clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemberVersions(BTreeMap<MemberKey, String>);

impl MemberVersions {
    /// Decodes a resourceVersion; `None` for texts that ask for no version, empty or `0`.
    ///
    /// # Errors
    /// 410 for any other: it is of another list, so clients have to list again.
    pub(super) fn decode(text: &str) -> Result<Option<Self>, Status> {
        if matches!(text, "" | "0") {
            return Ok(None);
        }
        let stale = || Status::expired("the resourceVersion is not one of these physical clusters: list again");
        let versions: Self = decoded(text).ok_or_else(stale)?;
        if versions.0.values().all(|version| is_version(version)) { Ok(Some(versions)) } else { Err(stale()) }
    }

    pub(super) fn encode(&self) -> String {
        encoded(self)
    }

    pub(super) fn get(&self, member: &MemberKey) -> Option<&str> {
        self.0.get(member).map(String::as_str)
    }

    pub(super) fn set(&mut self, member: MemberKey, version: String) {
        self.0.insert(member, version);
    }

    /// Returns true if `is_member` holds for all physical clusters.
    pub(super) fn all(&self, is_member: impl Fn(&MemberKey) -> bool) -> bool {
        self.0.keys().all(is_member)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Position in a list that is read in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PanePosition {
    /// Versions of the physical clusters that were listed.
    #[serde(rename = "v")]
    pub(super) versions: MemberVersions,
    /// Name of the physical cluster with which to continue.
    #[serde(rename = "c")]
    pub(super) member: String,
    /// Its continue token; empty to begin with it.
    #[serde(rename = "t")]
    pub(super) token: String,
}

impl PanePosition {
    /// Decodes a continue token.
    ///
    /// # Errors
    /// 400 for a malformed one.
    pub(super) fn decode(text: &str) -> Result<Self, Status> {
        let position: Option<Self> = decoded(text);
        position.ok_or_else(|| Status::bad_request("invalid continue token: continue key is not valid"))
    }

    /// Encodes the position.
    ///
    /// # Errors
    /// 500 for a continue token of a physical cluster that is too long to be sent back.
    pub(super) fn encode(&self) -> Result<String, Status> {
        if self.token.len() > MAX_CONTINUE {
            return Err(Status::internal(format!("the continue token of {:?} is too long", self.member)));
        }
        Ok(encoded(self))
    }
}

fn encoded(value: &impl Serialize) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(value).expect("texts serialize"))
}

fn decoded<T: for<'de> Deserialize<'de>>(text: &str) -> Option<T> {
    let bytes = Some(text).filter(|text| text.len() <= MAX_TOKEN).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok())?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_stands_for_all_versions() {
        let uid = |text: &str| MemberKey::of(&text.parse().unwrap());
        let (east, west) = (uid("11111111-2222-4333-8444-555555555555"), uid("11111111-2223-4333-8444-555555555555"));
        assert_ne!(east, west);
        let mut versions = MemberVersions::default();
        versions.set(east.clone(), "7".into());
        versions.set(west.clone(), "12".into());
        let text = versions.encode();
        let read = MemberVersions::decode(&text).unwrap().unwrap();
        assert_eq!((read.get(&east), read.get(&west)), (Some("7"), Some("12")));
        for (text, expected) in [("", Ok(None)), ("0", Ok(None)), ("7", Err(410)), ("e30x", Err(410))] {
            assert_eq!(MemberVersions::decode(text).map_err(|status| status.code()), expected, "{text}");
        }
        let forged = URL_SAFE_NO_PAD.encode(r#"{"111111112222":"7&watch=false"}"#);
        assert_eq!(MemberVersions::decode(&forged).unwrap_err().code(), 410);
    }

    #[test]
    fn sixty_four_versions_fit_a_url() {
        let mut versions = MemberVersions::default();
        for n in 0..64 {
            versions.set(MemberKey(format!("{n:012}")), "18446744073709551615".into());
        }
        assert!(versions.encode().len() < 4 * 1024);
    }

    #[test]
    fn positions_are_bounded() {
        let position = PanePosition { member: "east".into(), token: "t".into(), ..PanePosition::default() };
        assert_eq!(PanePosition::decode(&position.encode().unwrap()).unwrap(), position);
        assert_eq!(PanePosition::decode("%").unwrap_err().code(), 400);
        assert!(PanePosition { token: "t".repeat(4000), ..position }.encode().is_err());
    }
}
