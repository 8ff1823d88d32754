//! Comparison of two answers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::normal::{is_uid, without_drawn};

/// Difference at one position of the answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AnswerDifference {
    /// Path in the answer: `/status`, `/headers/warning`, `/body/spec/replicas`.
    pub(super) at: String,
    pub(super) kube: Option<Value>,
    pub(super) portolan: Option<Value>,
}

/// Maximum number of differences that are kept per answer. OpenAPI documents have the most.
const KEPT: usize = 4_000;

/// Pairs of uids and revisions of the two servers, learned in the order of the answers. A value that changes on one
/// side only is one difference: then the new pair holds.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    to_portolan: BTreeMap<String, String>,
    to_kube: BTreeMap<String, String>,
}

impl Pairs {
    fn agree(&mut self, kube: &str, portolan: &str) -> bool {
        let forth = self.to_portolan.insert(kube.to_owned(), portolan.to_owned());
        let back = self.to_kube.insert(portolan.to_owned(), kube.to_owned());
        forth.is_none_or(|known| known == portolan) && back.is_none_or(|known| known == kube)
    }

    /// Returns the key of Portolan's object for a key of kube-apiserver's. They differ if managedFields identify an
    /// owner by uid.
    fn key(&self, kube: &str) -> String {
        let uid = kube.strip_prefix(r#"k:{"uid":""#).and_then(|rest| rest.strip_suffix(r#""}"#));
        match uid.and_then(|uid| Some((uid, self.to_portolan.get(uid)?))) {
            Some((uid, portolan)) => kube.replace(uid, portolan),
            None => kube.to_owned(),
        }
    }
}

/// Returns all differences. If the status differs, nothing else is compared.
pub(super) fn differences(kube: &Value, portolan: &Value, pairs: &mut Pairs) -> Vec<AnswerDifference> {
    let mut found = Vec::new();
    for key in ["status", "headers", "body", "layout", "error", "cut"] {
        compare(&format!("/{key}"), kube.get(key), portolan.get(key), pairs, &mut found);
        if key == "status" && !found.is_empty() {
            return found;
        }
    }
    found
}

fn compare(
    at: &str,
    kube: Option<&Value>,
    portolan: Option<&Value>,
    pairs: &mut Pairs,
    found: &mut Vec<AnswerDifference>,
) {
    if found.len() >= KEPT || kube == portolan && kube.is_none() {
        return;
    }
    match (kube, portolan) {
        (Some(Value::Object(left)), Some(Value::Object(right))) => maps(at, left, right, pairs, found),
        (Some(Value::Array(left)), Some(Value::Array(right))) => lists(at, left, right, pairs, found),
        (Some(Value::String(left)), Some(Value::String(right))) if paired(at, left, right) => {
            if !pairs.agree(left, right) {
                found.push(difference(at, kube, portolan));
            }
        }
        _ if kube.zip(portolan).is_some_and(|(left, right)| are_drawn(at, left, right)) => {}
        _ if kube == portolan => {}
        _ => found.push(difference(at, kube, portolan)),
    }
}

fn maps(
    at: &str,
    kube: &Map<String, Value>,
    portolan: &Map<String, Value>,
    pairs: &mut Pairs,
    found: &mut Vec<AnswerDifference>,
) {
    let known: BTreeMap<String, &String> = kube.keys().map(|key| (pairs.key(key), key)).collect();
    let keys: BTreeSet<&String> = known.keys().chain(portolan.keys()).collect();
    for key in keys {
        let at = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        compare(&at, known.get(key).and_then(|own| kube.get(*own)), portolan.get(key), pairs, found);
    }
}

fn difference(at: &str, kube: Option<&Value>, portolan: Option<&Value>) -> AnswerDifference {
    AnswerDifference { at: at.to_owned(), kube: kube.cloned(), portolan: portolan.cloned() }
}

/// Returns true for uids anywhere, and for revisions in fields for revisions.
fn paired(at: &str, kube: &str, portolan: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let revision = at.ends_with("/resourceVersion") && digits(kube) && digits(portolan);
    revision || is_uid(kube) && is_uid(portolan)
}

/// Returns true for node ports, and for texts that differ only in service IPs, which a server chooses at random, also
/// in a dry run.
fn are_drawn(at: &str, kube: &Value, portolan: &Value) -> bool {
    let is_port = |value: &Value| value.as_u64().is_some_and(|port| (30_000..=65_535).contains(&port));
    let texts = kube.as_str().zip(portolan.as_str());
    let by_address = texts.is_some_and(|(kube, portolan)| without_drawn(kube) == without_drawn(portolan));
    at.ends_with("odePort") && is_port(kube) && is_port(portolan) || by_address
}

fn lists(at: &str, kube: &[Value], portolan: &[Value], pairs: &mut Pairs, found: &mut Vec<AnswerDifference>) {
    let named = |items: &[Value]| items.iter().map(name).collect::<Option<Vec<String>>>();
    if let (Some(left), Some(right)) = (named(kube), named(portolan))
        && left != right
    {
        return named_lists(at, (&left, kube), (&right, portolan), pairs, found);
    }
    for index in 0..kube.len().max(portolan.len()) {
        compare(&format!("{at}/{index}"), kube.get(index), portolan.get(index), pairs, found);
    }
}

type NamedItems<'v> = (&'v [String], &'v [Value]);

/// Compares lists of named items with other names or another order.
fn named_lists(
    at: &str,
    kube: NamedItems<'_>,
    portolan: NamedItems<'_>,
    pairs: &mut Pairs,
    found: &mut Vec<AnswerDifference>,
) {
    let place = |names: &[String], name: &String| names.iter().position(|own| own == name);
    let before = found.len();
    for (name, value) in kube.0.iter().zip(kube.1) {
        let other = place(portolan.0, name).and_then(|index| portolan.1.get(index));
        compare(&format!("{at}/{}", name.replace('/', "~1")), Some(value), other, pairs, found);
    }
    for (name, value) in portolan.0.iter().zip(portolan.1).filter(|(name, _)| place(kube.0, name).is_none()) {
        compare(&format!("{at}/{}", name.replace('/', "~1")), None, Some(value), pairs, found);
    }
    if found.len() == before {
        let order = |names: &[String]| Value::from(names.to_vec());
        found.push(difference(&format!("{at}/order"), Some(&order(kube.0)), Some(&order(portolan.0))));
    }
}

/// Returns the name by which an item of a list is identified.
fn name(item: &Value) -> Option<String> {
    let keys = ["/metadata/name", "/object/metadata/name", "/name", "/resource", "/version", "/groupVersion"];
    let namespace = item.pointer("/metadata/namespace").and_then(Value::as_str);
    let name = keys.iter().find_map(|key| item.pointer(key)).and_then(Value::as_str)?;
    // Events of a watch are distinguished by their order.
    let event = item.get("type").is_some() && item.get("object").is_some();
    (!event).then(|| namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn places(kube: &Value, portolan: &Value) -> Vec<String> {
        let wrap = |body: &Value| json!({"status": 200, "body": body});
        let found = differences(&wrap(kube), &wrap(portolan), &mut Pairs::default());
        found.into_iter().map(|difference| difference.at).collect()
    }

    #[test]
    fn differences_have_a_place() {
        let none: &[&str] = &[];
        for (case, kube, portolan, expected) in [
            ("equal", json!({"a": [1, {"b": 2}]}), json!({"a": [1, {"b": 2}]}), none),
            ("a value", json!({"a": [1, {"b": 2}]}), json!({"a": [1, {"b": 3}]}), &["/body/a/1/b"]),
            ("a missing key", json!({"a": 1}), json!({}), &["/body/a"]),
            ("null is not missing", json!({"a": null}), json!({}), &["/body/a"]),
            ("an item too many", json!([1]), json!([1, 2]), &["/body/1"]),
            ("a named item", json!([{"name": "x"}]), json!([{"name": "x"}, {"name": "y"}]), &["/body/y"]),
            (
                "an order",
                json!([{"name": "x"}, {"name": "y"}]),
                json!([{"name": "y"}, {"name": "x"}]),
                &["/body/order"],
            ),
        ] {
            assert_eq!(places(&kube, &portolan), expected, "{case}");
        }
    }

    #[test]
    fn a_different_status_says_enough() {
        let (kube, portolan) = (json!({"status": 422, "body": 1}), json!({"status": 201, "body": 2}));
        assert_eq!(differences(&kube, &portolan, &mut Pairs::default()).len(), 1);
    }

    #[test]
    fn owners_in_managed_fields_are_those_of_each_server() {
        let mut pairs = Pairs::default();
        let uid = |digit: &str| format!("123e4567-e89b-12d3-a456-42661417400{digit}");
        let owner = |digit: &str| json!({"status": 200, "body": {"metadata": {"uid": uid(digit)}}});
        let key = |digit: &str| format!(r#"k:{{"uid":"{}"}}"#, uid(digit));
        let owned = |digit: &str| json!({"status": 200, "body": {key(digit): {}}});
        assert_eq!(differences(&owned("1"), &owned("2"), &mut pairs).len(), 2, "of somebody unknown");
        assert!(differences(&owner("1"), &owner("2"), &mut pairs).is_empty());
        assert!(differences(&owned("1"), &owned("2"), &mut pairs).is_empty(), "of one that was seen");
        assert_eq!(differences(&owned("1"), &owned("3"), &mut pairs).len(), 2, "of another one");
    }

    #[test]
    fn revisions_move_together() {
        let mut pairs = Pairs::default();
        let at = |revision: &str| json!({"status": 200, "body": {"metadata": {"resourceVersion": revision}}});
        for (case, kube, portolan, expected) in [
            ("they meet", "10", "77", 0),
            ("both stay", "10", "77", 0),
            ("both move", "11", "80", 0),
            ("one moves", "11", "81", 1),
            ("that is said once", "11", "81", 0),
        ] {
            assert_eq!(differences(&at(kube), &at(portolan), &mut pairs).len(), expected, "{case}");
        }
    }
}
