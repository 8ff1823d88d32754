//! Substitution of `${…}` by values of earlier answers of the same server.
//!
//! `${ns}` is the namespace of the script, `${hooks}` and `${bundle}` the address of the corpus' webhooks and their
//! `caBundle`, `${/pointer}` a value of the last stored object, `${name:/pointer}` a value of the answer stored under
//! that name, `${name#header}` one of its headers.

use std::collections::BTreeMap;

use http::HeaderMap;
use serde_json::Value;

use super::hooks::OracleWebhooks;

/// Values that one server has returned in one script.
#[derive(Debug, Default)]
pub(super) struct ScriptMemory {
    namespace: String,
    hooks: OracleWebhooks,
    last: Value,
    kept: BTreeMap<String, Value>,
    headers: BTreeMap<String, HeaderMap>,
    stored: BTreeMap<String, Value>,
}

/// Text for a value that the answer lacks. The replay reports that difference at the answer, not at later requests.
const MISSING: &str = "missing";

fn is_same(one: &Value, other: &Value) -> bool {
    one["metadata"]["uid"] == other["metadata"]["uid"]
}

impl ScriptMemory {
    pub(super) fn new(namespace: &str, hooks: &OracleWebhooks) -> Self {
        Self { namespace: namespace.to_owned(), hooks: hooks.clone(), ..Self::default() }
    }

    /// Stores a whole answer under a name.
    pub(super) fn keep(&mut self, name: &str, answer: &Value, headers: &HeaderMap) {
        self.kept.insert(name.to_owned(), answer.clone());
        self.headers.insert(name.to_owned(), headers.clone());
    }

    /// Stores an object under its path.
    pub(super) fn store(&mut self, path: &str, object: &Value) {
        self.last = object.clone();
        self.stored.insert(path.to_owned(), object.clone());
    }

    /// Returns true if the script has read or written this object.
    pub(super) fn knows(&self, object: &Value) -> bool {
        self.stored.values().chain([&self.last]).any(|own| is_same(own, object))
    }

    /// Updates the resourceVersion of an object that a controller has written since.
    pub(super) fn renew(&mut self, object: &Value) {
        for own in self.stored.values_mut().chain([&mut self.last]).filter(|own| is_same(own, object)) {
            own["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
        }
    }

    /// Returns the last object of this path.
    pub(super) fn stored(&self, path: &str) -> &Value {
        self.stored.get(path).unwrap_or(&Value::Null)
    }

    /// Substitutes all placeholders of a text.
    pub(super) fn fill(&self, text: &str) -> String {
        let mut parts = text.split("${");
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            match part.split_once('}') {
                Some((place, rest)) => {
                    filled.push_str(&self.look_up(place));
                    filled.push_str(rest);
                }
                None => filled.push_str(part),
            }
        }
        filled
    }

    /// Substitutes the placeholders in every string of a tree.
    pub(super) fn fill_tree(&self, value: &mut Value) {
        match value {
            Value::String(text) if text.contains("${") => *text = self.fill(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.fill_tree(item)),
            Value::Object(map) => map.values_mut().for_each(|item| self.fill_tree(item)),
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn look_up(&self, place: &str) -> String {
        match place {
            "ns" => return self.namespace.clone(),
            "hooks" => return self.hooks.url.clone(),
            "bundle" => return self.hooks.bundle.clone(),
            _ => {}
        }
        if let Some((name, header)) = place.split_once('#') {
            let value = self.headers.get(name).and_then(|headers| headers.get(header)?.to_str().ok());
            return value.unwrap_or(MISSING).to_owned();
        }
        let (answer, pointer) = match place.split_once(':') {
            Some((name, pointer)) => (self.kept.get(name).unwrap_or(&Value::Null), pointer),
            None => (&self.last, place),
        };
        match answer.pointer(pointer) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => MISSING.to_owned(),
            Some(other) => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn writes_of_a_controller_are_known_by_uid() {
        let object = |uid: &str, version: &str| json!({"metadata": {"uid": uid, "resourceVersion": version}});
        let mut memory = ScriptMemory::new("space", &OracleWebhooks::default());
        memory.store("/a", &object("a", "1"));
        memory.store("/b", &object("b", "2"));
        memory.renew(&object("b", "3"));
        assert_eq!((memory.stored("/a"), memory.stored("/b")), (&object("a", "1"), &object("b", "3")));
        assert_eq!(memory.fill("${/metadata/resourceVersion}"), "3");
    }

    #[test]
    fn places_are_filled_in() {
        let mut memory = ScriptMemory::new("space", &OracleWebhooks::default());
        memory.store("/api/v1/nodes/n", &json!({"metadata": {"uid": "u", "generation": 3}}));
        let headers = HeaderMap::from_iter([(http::header::ETAG, http::HeaderValue::from_static("\"e\""))]);
        memory.keep("page", &json!({"metadata": {"continue": "c"}}), &headers);
        for (text, expected) in [
            ("/api/v1/namespaces/${ns}/pods", "/api/v1/namespaces/space/pods"),
            ("${/metadata/uid}-${/metadata/generation}", "u-3"),
            ("continue=${page:/metadata/continue}", "continue=c"),
            ("${page#etag} ${page#expires} ${other#etag}", "\"e\" missing missing"),
            ("${other:/x} ${/nothing}", "missing missing"),
            ("no ${end", "no end"),
            ("${hooks}${bundle}", ""),
        ] {
            assert_eq!(memory.fill(text), expected, "{text}");
        }
    }
}
