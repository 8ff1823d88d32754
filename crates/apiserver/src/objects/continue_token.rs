//! Continue tokens of lists: opaque, and valid only for the list that they come from.

use base64::{
    DecodeError, Engine as _, alphabet,
    engine::general_purpose::{GeneralPurpose, NO_PAD, URL_SAFE_NO_PAD},
};
use hmac::{Hmac, Mac as _};
use portolan_codec::decode::json_error;
use portolan_types::{ResourceVersion, Status};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// Go ignores trailing bits.
const LENIENT: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));
/// Longest token that is decoded, in bytes.
const MAX_TOKEN: usize = 4096;

/// Identity of a list: a token is valid for one list only.
#[derive(Clone, Serialize)]
pub(crate) struct ListIdentity<'a> {
    pub(crate) cluster: u64,
    pub(crate) path: &'a str,
    pub(crate) resource: String,
    pub(crate) namespace: &'a str,
    pub(crate) labels: &'a str,
    pub(crate) fields: &'a str,
    pub(crate) user: &'a str,
}

/// Position in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListPosition {
    /// Revision of the first page; `None` to continue at the latest one, inconsistently.
    pub(crate) revision: Option<ResourceVersion>,
    /// Namespace (empty at cluster scope) and name of the last object returned.
    pub(crate) last: (String, String),
    /// Number of objects left at that revision, if it was counted, so that it is not counted again for every page.
    pub(crate) remaining: Option<u64>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct TokenContent {
    v: String,
    rv: i64,
    start: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<u64>,
    /// Logical cluster of the list.
    of: u64,
    mac: String,
}

const VERSION: &str = "meta.k8s.io/v1";
/// kube-apiserver's message for a list that cannot be continued.
const CANNOT_CONTINUE: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.";

/// Encodes a position.
pub(crate) fn encode(key: &[u8], list: &ListIdentity<'_>, place: &ListPosition) -> String {
    let rv = place.revision.and_then(|r| i64::try_from(r.get()).ok()).unwrap_or(-1);
    let start = format!("{}\0{}", place.last.0, place.last.1);
    let left = place.remaining;
    let mac = URL_SAFE_NO_PAD.encode(mac(key, list, (rv, &start, left)).finalize().into_bytes());
    let wire = TokenContent { v: VERSION.into(), rv, start, left, of: list.cluster, mac };
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(&wire).expect("strings and numbers serialize"))
}

/// Decodes a position.
///
/// # Errors
/// 400 when the token is malformed or of another list; 410 when the path belonged to another logical cluster then.
pub(crate) fn decode(key: &[u8], list: &ListIdentity<'_>, token: &str) -> Result<ListPosition, Status> {
    // Tokens of kube-apiserver have no valid signature here, so their errors are not reproduced.
    let bad = || unreadable("server does not recognize this encoded version ");
    if token.len() > MAX_TOKEN {
        return Err(bad());
    }
    let bytes = LENIENT.decode(token).map_err(|error| not_base64(&error))?;
    if let Some(why) = json_error(&bytes) {
        return Err(unreadable(&why));
    }
    let wire: TokenContent = serde_json::from_slice(&bytes).map_err(|_| bad())?;
    wire.check()?;
    let given = URL_SAFE_NO_PAD.decode(&wire.mac).map_err(|_| bad())?;
    let signed = ListIdentity { cluster: wire.of, ..list.clone() };
    mac(key, &signed, (wire.rv, &wire.start, wire.left)).verify_slice(&given).map_err(|_| bad())?;
    if wire.of != list.cluster {
        return Err(Status::expired(CANNOT_CONTINUE));
    }
    let (namespace, name) = wire.start.split_once('\0').ok_or_else(bad)?;
    let revision = u64::try_from(wire.rv).ok().and_then(ResourceVersion::new);
    Ok(ListPosition { revision, last: (namespace.to_owned(), name.to_owned()), remaining: wire.left })
}

impl TokenContent {
    /// Performs the checks that kube-apiserver makes on any token.
    fn check(&self) -> Result<(), Status> {
        let version = &self.v;
        let why = match (version == VERSION, self.rv, self.start.as_str()) {
            (false, ..) => format!("server does not recognize this encoded version {version}"),
            (_, 0, _) => format!("incorrect encoded start resourceVersion (version {VERSION})"),
            (.., "") => format!("encoded start key empty (version {VERSION})"),
            _ => return Ok(()),
        };
        Err(unreadable(&why))
    }
}

/// Returns the 400 with Go's message for a token, which ends with its empty version.
fn unreadable(why: &str) -> Status {
    Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
}

fn not_base64(error: &DecodeError) -> Status {
    let at = match error {
        DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => *at,
        // Go names the superfluous letter.
        DecodeError::InvalidLength(letters) => letters.saturating_sub(1),
        DecodeError::InvalidPadding => 0,
    };
    unreadable(&format!("illegal base64 data at input byte {at}"))
}

fn mac(key: &[u8], list: &ListIdentity<'_>, place: (i64, &str, Option<u64>)) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    // JSON of a fixed shape, so different lists have different bytes.
    mac.update(&serde_json::to_vec(&(list, place)).expect("strings and numbers serialize"));
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list<'a>(cluster: u64, labels: &'a str, user: &'a str) -> ListIdentity<'a> {
        let path = if cluster == 2 { "root:b" } else { "root:a" };
        ListIdentity { cluster, path, resource: "pods".into(), namespace: "a", labels, fields: "", user }
    }

    #[test]
    fn tokens_open_only_their_own_list() {
        let place =
            ListPosition { revision: ResourceVersion::new(7), last: ("a".into(), "p-1".into()), remaining: Some(3) };
        let token = encode(b"key", &list(1, "", "ann"), &place);
        assert_eq!(decode(b"key", &list(1, "", "ann"), &token), Ok(place));
        for (case, key, other) in [
            ("another logical cluster", &b"key"[..], list(2, "", "ann")),
            ("another selector", b"key", list(1, "x=y", "ann")),
            ("another user", b"key", list(1, "", "bob")),
            ("another server", b"yek", list(1, "", "ann")),
        ] {
            assert_eq!(decode(key, &other, &token).err().map(|s| s.code()), Some(400), "{case}");
        }
        let again = decode(b"key", &list(3, "", "ann"), &token).unwrap_err();
        assert_eq!((again.code(), again.message()), (410, CANNOT_CONTINUE), "the same path again");
        let (generic, not_base64) =
            (": server does not recognize this encoded version ", ": illegal base64 data at input byte 1");
        let no_value = ": invalid character 'i' looking for beginning of value";
        let long = "A".repeat(5000);
        for (forged, why) in [
            ("", ": unexpected end of JSON input"),
            ("A!", not_base64),
            ("x", ": illegal base64 data at input byte 0"),
            ("abcde", ": illegal base64 data at input byte 4"),
            ("e31", generic),
            ("e30", generic),
            ("abc", no_value),
            (
                "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIifQ",
                ": encoded start key empty (version meta.k8s.io/v1)",
            ),
            (
                "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJzdGFydCI6ImEifQ",
                ": incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            ("eyJ2IjoieCJ9", ": server does not recognize this encoded version x"),
            ("nonsense", r": invalid character '\u009e' looking for beginning of value"),
            (&long, generic),
        ] {
            let refused = decode(b"key", &list(1, "", "ann"), forged).err().map(|s| s.message().to_owned());
            assert_eq!(refused, Some(format!("invalid continue token: continue key is not valid{why}")), "{forged}");
        }
    }
}
