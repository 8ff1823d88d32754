//! Requests of a client, with the values that came from earlier answers.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::super::metadata;
use super::super::normal::MAGIC;

/// A request as the client made it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
}

/// All requests, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: Vec<Entry>,
    answers: BTreeMap<usize, Value>,
}

/// The values of answers so far: where each was first seen.
type RecordedValues = BTreeMap<String, (usize, String)>;

impl Log {
    pub(super) fn begin(&mut self, entry: Entry) -> usize {
        self.entries.push(entry);
        self.entries.len() - 1
    }

    pub(super) fn end(&mut self, index: usize, body: &[u8]) {
        if let Some(answer) = metadata::tree(body) {
            self.answers.insert(index, answer);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The steps of a file of the corpus. Discovery that is only repeated is left out, and so is what continues from a
    /// The controllers may have changed the object before the client arrived, so its content depends on earlier use of
    /// the server.
    pub(super) fn steps(&self, namespace: &str) -> Vec<Value> {
        let (mut seen, mut used, mut drafts) = (RecordedValues::new(), BTreeMap::new(), Vec::new());
        let mut asked = std::collections::BTreeSet::new();
        for (index, entry) in self.entries.iter().enumerate().filter(|(_, entry)| !is_ours(&entry.path)) {
            let again = is_discovery(&entry.path) && !asked.insert((&entry.path, entry.header("accept")));
            if !again && !is_forgotten(&entry.path, &seen) {
                let draft = ScriptDraft::new(entry, namespace, &seen, &mut used);
                drafts.push((index, draft));
            }
            if let Some(answer) = self.answers.get(&index) {
                remember(index, answer, &mut seen);
            }
        }
        drafts.into_iter().map(|(index, draft)| draft.into_step(index, used.contains_key(&index))).collect()
    }
}

impl Entry {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

/// Step before it is known if a later one needs its answer.
struct ScriptDraft {
    /// Last segment of the path, for the name.
    subject: String,
    method: String,
    path: String,
    body: Value,
    headers: Map<String, Value>,
}

impl ScriptDraft {
    fn new(entry: &Entry, namespace: &str, seen: &RecordedValues, used: &mut BTreeMap<usize, ()>) -> Self {
        let mut places = RecordedPlaces { seen, used, namespace };
        let path = places.path(&entry.path);
        let body = match serde_json::from_slice::<Value>(&entry.body) {
            _ if entry.body.is_empty() => Value::Null,
            Ok(mut value) => {
                places.tree(&mut value, "");
                value
            }
            Err(_) if entry.body.starts_with(MAGIC) => json!({"$base64": BASE64.encode(&entry.body)}),
            Err(_) => match std::str::from_utf8(&entry.body) {
                Ok(text) => Value::String(text.replace(namespace, "${ns}")),
                Err(_) => json!({"$base64": BASE64.encode(&entry.body)}),
            },
        };
        let headers = entry.headers.iter().map(|(name, value)| (name.clone(), Value::String(value.clone())));
        let bare = entry.path.split('?').next().unwrap_or_default();
        let subject = bare.rsplit('/').next().unwrap_or_default().to_owned();
        Self { subject, method: entry.method.clone(), path, body, headers: headers.collect() }
    }

    fn into_step(mut self, index: usize, needed: bool) -> Value {
        if needed {
            self.headers.insert("keep".to_owned(), format!("a{index}").into());
        }
        let sentence = format!("{:04} {} {}", index + 1, self.method, self.subject);
        json!({ sentence: [format!("{} {}", self.method, self.path), self.body, self.headers] })
    }
}

/// Replaces values of earlier answers by placeholders.
struct RecordedPlaces<'s> {
    seen: &'s RecordedValues,
    used: &'s mut BTreeMap<usize, ()>,
    namespace: &'s str,
}

impl RecordedPlaces<'_> {
    fn place(&mut self, value: &str) -> Option<String> {
        let (index, pointer) = self.seen.get(value)?;
        self.used.insert(*index, ());
        Some(format!("${{a{index}:{pointer}}}"))
    }

    /// A revision that only a watch event contained becomes that of the last answer before it.
    fn revision(&mut self, value: &str) -> String {
        let known = value.parse().ok().and_then(|revision| revision_before(revision, self.seen));
        known.and_then(|known| self.place(&known.to_string())).unwrap_or_else(|| value.to_owned())
    }

    /// Replaces known values in segments and parameters, and gives watches a short timeout.
    fn path(&mut self, path: &str) -> String {
        let (bare, query) = path.split_once('?').unwrap_or((path, ""));
        let segments: Vec<String> = bare.split('/').map(|segment| self.word(segment)).collect();
        let mut parameters: Vec<String> =
            query.split('&').filter(|pair| !pair.is_empty()).map(|pair| self.pair(pair)).collect();
        // Hashes of documents differ between servers.
        parameters.retain(|pair| !pair.starts_with("hash="));
        if parameters.iter().any(|pair| pair == "watch=true" || pair == "watch=1") {
            parameters.retain(|pair| !pair.starts_with("timeoutSeconds="));
            parameters.push("timeoutSeconds=1".to_owned());
        }
        let query = if parameters.is_empty() { String::new() } else { format!("?{}", parameters.join("&")) };
        format!("{}{query}", segments.join("/"))
    }

    fn pair(&mut self, pair: &str) -> String {
        match pair.split_once('=') {
            Some(("resourceVersion", value)) => format!("resourceVersion={}", self.revision(value)),
            Some(("continue", value)) => {
                format!("continue={}", self.place(value).unwrap_or_else(|| value.to_owned()))
            }
            Some((key, value)) => format!("{key}={}", value.replace(self.namespace, "${ns}")),
            None => pair.to_owned(),
        }
    }

    fn word(&mut self, word: &str) -> String {
        if word == self.namespace {
            return "${ns}".to_owned();
        }
        // Small numbers are not names: they count as revisions only in a field for revisions.
        let numeric = word.bytes().all(|byte| byte.is_ascii_digit());
        let known = if numeric { None } else { self.place(word) };
        known.unwrap_or_else(|| word.to_owned())
    }

    fn tree(&mut self, value: &mut Value, key: &str) {
        match value {
            Value::String(text) if key == "resourceVersion" => {
                *text = self.place(text).unwrap_or_else(|| text.clone());
            }
            Value::String(text) => *text = self.word(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.tree(item, key)),
            Value::Object(map) => {
                // A client that read an object sends back the fields that Portolan wrote.
                map.retain(|key, _| !key.contains("portolan.dev/"));
                map.iter_mut().for_each(|(key, item)| self.tree(item, key));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Stores the values of an answer that later requests may repeat.
fn remember(index: usize, answer: &Value, seen: &mut RecordedValues) {
    let mut objects = vec![(String::new(), answer)];
    for (position, item) in answer["items"].as_array().into_iter().flatten().enumerate() {
        objects.push((format!("/items/{position}"), item));
    }
    for (prefix, object) in objects {
        let metadata = &object["metadata"];
        let generated = metadata.get("generateName").map_or("", |_| "name");
        for key in ["uid", "resourceVersion", "continue", generated] {
            if let Some(value) = metadata[key].as_str().filter(|value| !value.is_empty()) {
                seen.entry(value.to_owned()).or_insert_with(|| (index, format!("{prefix}/metadata/{key}")));
            }
        }
    }
}

/// Returns the newest revision of an answer that is not newer than this one.
fn revision_before(revision: u64, seen: &RecordedValues) -> Option<u64> {
    let known = seen.keys().filter_map(|known| known.parse().ok());
    known.filter(|known| *known <= revision).max()
}

/// Returns true when a request resumes from a revision before that of the first answer.
fn is_forgotten(path: &str, seen: &RecordedValues) -> bool {
    let mut parameters = path.split_once('?').map_or("", |(_, query)| query).split('&');
    let revision = parameters.find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse().ok());
    revision.is_some_and(|revision: u64| revision > 0 && revision_before(revision, seen).is_none())
}

/// Returns true for groups that kube-apiserver does not serve.
fn is_ours(path: &str) -> bool {
    ["/apis/portolan.dev/", "/apis/tenancy.kcp.io/", "/apis/core.kcp.io/"].iter().any(|group| path.starts_with(group))
}

fn is_discovery(path: &str) -> bool {
    let bare = path.split('?').next().unwrap_or(path);
    let depth = bare.trim_matches('/').split('/').count();
    bare.starts_with("/openapi") || bare.starts_with("/api") && depth <= 3 && !bare.starts_with("/api/v1/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(method: &str, path: &str, body: &str) -> Entry {
        Entry { method: method.to_owned(), path: path.to_owned(), headers: vec![], body: body.to_owned().into() }
    }

    #[test]
    fn values_of_answers_become_places() {
        let mut log = Log::default();
        let made = log.begin(entry("POST", "/api/v1/namespaces/space/pods", r#"{"metadata":{"generateName":"p-"}}"#));
        log.end(made, br#"{"metadata":{"generateName":"p-","name":"p-abcde","uid":"u-1","resourceVersion":"7"}}"#);
        log.begin(entry(
            "PUT",
            "/api/v1/namespaces/space/pods/p-abcde",
            r#"{"metadata":{"resourceVersion":"7","uid":"u-1"}}"#,
        ));
        log.begin(entry("GET", "/api/v1/namespaces/space/pods?watch=true&timeoutSeconds=400&resourceVersion=7", ""));
        assert_eq!(
            Value::from(log.steps("space")),
            json!([
                {"0001 POST pods": ["POST /api/v1/namespaces/${ns}/pods", {"metadata": {"generateName": "p-"}}, {"keep": "a0"}]},
                {"0002 PUT p-abcde": [
                    "PUT /api/v1/namespaces/${ns}/pods/${a0:/metadata/name}",
                    {"metadata": {"resourceVersion": "${a0:/metadata/resourceVersion}", "uid": "${a0:/metadata/uid}"}},
                    {},
                ]},
                {"0003 GET pods": [
                    "GET /api/v1/namespaces/${ns}/pods?watch=true&resourceVersion=${a0:/metadata/resourceVersion}&timeoutSeconds=1",
                    null,
                    {},
                ]},
            ])
        );
    }

    #[test]
    fn a_revision_of_a_stream_is_that_of_the_answer_before() {
        let mut log = Log::default();
        let made = log.begin(entry("POST", "/api/v1/namespaces/space/pods", "{}"));
        log.end(made, br#"{"metadata":{"uid":"u-1","resourceVersion":"7"}}"#);
        for revision in [0, 6, 9] {
            log.begin(entry("GET", &format!("/api/v1/namespaces/space/pods?resourceVersion={revision}"), ""));
        }
        let paths: Vec<Value> = log
            .steps("space")
            .iter()
            .map(|step| step.as_object().unwrap().values().next().unwrap()[0].clone())
            .collect();
        let path = |revision: &str| format!("GET /api/v1/namespaces/${{ns}}/pods?resourceVersion={revision}");
        assert_eq!(paths[1..], [path("0"), path("${a0:/metadata/resourceVersion}")]);
    }

    #[test]
    fn discovery_is_recorded_once() {
        let mut log = Log::default();
        for path in ["/apis", "/apis", "/openapi/v3", "/api/v1/nodes", "/api/v1/nodes", "/openapi/v3"] {
            log.begin(entry("GET", path, ""));
        }
        assert_eq!(log.steps("space").len(), 4);
    }
}
