//! Audit events: `Event` of `audit.k8s.io/v1` as JSON.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, header::USER_AGENT};
use portolan_strategy::rbac::User;
use portolan_types::{Status, seams::micros_text};
use serde_json::{Map, Value, json};

use crate::{authn::user_info, routing::attributes::Attributes};

use super::{ClientAddress, policy::AuditStage};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// Longest user agent and URL in an event, in bytes.
const MAX_USER_AGENT: usize = 1024;
const MAX_URI: usize = 8 * 1024;
/// Most addresses in an event.
const MAX_ADDRESSES: usize = 16;
/// Longest annotation value, in bytes.
const MAX_ANNOTATION: usize = 1024;

/// Request line of an audited request.
pub(crate) struct AuditedRequest<'a> {
    pub(crate) audit_id: &'a str,
    pub(crate) uri: &'a http::Uri,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) address: Option<ClientAddress>,
    /// The client's own user; `None` if it could not be authenticated.
    pub(crate) user: Option<&'a User>,
    pub(crate) attributes: &'a Attributes,
}

/// Event of a request, completed while the request is served.
pub(super) struct AuditEvent {
    fields: Map<String, Value>,
    annotations: BTreeMap<String, String>,
}

impl AuditEvent {
    /// Creates the event of a request.
    pub(super) fn new(request: &AuditedRequest<'_>, level: &str, received: jiff::Timestamp) -> Self {
        let AuditedRequest { audit_id, uri, headers, address, user, attributes } = request;
        let target = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        // The query of a sign-in has the code of the issuer.
        let target = if is_sign_in(uri.path()) { uri.path() } else { target };
        let mut fields = Map::new();
        let mut put = |field: &str, value: Value| drop(fields.insert(field.to_owned(), value));
        put("kind", "Event".into());
        put("apiVersion", "audit.k8s.io/v1".into());
        put("level", level.into());
        put("auditID", (*audit_id).into());
        put("requestURI", cut(target, MAX_URI).into());
        put("verb", attributes.verb.as_str().into());
        put("user", user.map_or_else(|| json!({}), user_info));
        let addresses = source_addresses(headers, *address);
        if !addresses.is_empty() {
            put("sourceIPs", json!(addresses));
        }
        let agent = headers.get(USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes()));
        if let Some(agent) = agent.filter(|agent| !agent.is_empty()) {
            put("userAgent", cut(&agent, MAX_USER_AGENT).into());
        }
        if attributes.is_resource() {
            put("objectRef", object_reference(attributes));
        }
        put("requestReceivedTimestamp", micros_text(received).into());
        Self { fields, annotations: BTreeMap::new() }
    }

    /// Returns true if the client was authenticated.
    pub(super) fn has_user(&self) -> bool {
        self.fields.get("user").is_some_and(|user| user.get("username").is_some())
    }

    pub(super) fn set(&mut self, field: &str, value: Value) {
        self.fields.insert(field.to_owned(), value);
    }

    /// Adds an annotation, unless it exists.
    pub(super) fn annotate(&mut self, key: &str, value: &str) {
        self.annotations.entry(key.to_owned()).or_insert_with(|| cut(value, MAX_ANNOTATION).to_owned());
    }

    /// Sets an annotation.
    pub(super) fn replace_annotation(&mut self, key: &str, value: &str) {
        self.annotations.insert(key.to_owned(), cut(value, MAX_ANNOTATION).to_owned());
    }

    /// Completes the reference to the object with fields that the URL does not have.
    pub(super) fn complete_reference(&mut self, metadata: &ObjectIdentity) {
        let Some(reference) = self.fields.get_mut("objectRef").and_then(Value::as_object_mut) else { return };
        let ObjectIdentity { name, namespace, uid, resource_version } = metadata;
        let given = [("name", name), ("namespace", namespace), ("uid", uid), ("resourceVersion", resource_version)];
        for (field, value) in given {
            if !value.is_empty() && !reference.contains_key(field) {
                reference.insert(field.to_owned(), value.as_str().into());
            }
        }
    }

    /// Encodes the event of a stage as a line.
    pub(super) fn line(&self, stage: AuditStage, at: jiff::Timestamp) -> Vec<u8> {
        let mut fields = self.fields.clone();
        fields.insert("stage".into(), stage.name().into());
        fields.insert("stageTimestamp".into(), micros_text(at).into());
        if stage == AuditStage::RequestReceived {
            // The stage precedes the decision and the body.
            fields.remove("requestObject");
        }
        if !self.annotations.is_empty() {
            fields.insert("annotations".into(), json!(self.annotations));
        }
        let mut line = serde_json::to_vec(&fields).expect("a JSON tree serializes into memory");
        line.push(b'\n');
        line
    }
}

/// Returns true for paths of the console's sign-in.
fn is_sign_in(path: &str) -> bool {
    path.starts_with("/ui/") && !path.starts_with("/ui/api/")
}

/// Identity of the object in a request body.
#[derive(Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ObjectIdentity {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
}

impl ObjectIdentity {
    /// Reads the identity from an object in JSON, without building its tree; `None` if it has none.
    pub(super) fn of_json(body: &[u8]) -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct IdentifiedObject {
            metadata: Option<ObjectIdentity>,
        }
        serde_json::from_slice::<IdentifiedObject>(body).ok()?.metadata
    }
}

/// Returns the response status of an event: the code, and for a failure its status.
pub(super) fn response_status(code: u16, failure: Option<&Status>) -> Value {
    let mut status = match failure.map(Status::to_value) {
        Some(Value::Object(status)) => status,
        _ => Map::new(),
    };
    status.remove("kind");
    status.remove("apiVersion");
    status.insert("metadata".into(), json!({}));
    status.insert("code".into(), code.into());
    Value::Object(status)
}

/// Removes `metadata.managedFields` of an object or of the items of a list.
pub(super) fn without_managed_fields(mut object: Value) -> Value {
    let strip = |object: &mut Value| {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    };
    strip(&mut object);
    object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(strip);
    object
}

fn object_reference(of: &Attributes) -> Value {
    let fields = [
        ("resource", &of.resource),
        ("namespace", &of.namespace),
        ("name", &of.name),
        ("apiGroup", &of.group),
        ("apiVersion", &of.version),
        ("subresource", &of.subresource),
    ];
    let given = fields.into_iter().filter(|(_, value)| !value.is_empty());
    Value::Object(given.map(|(field, value)| (field.to_owned(), value.as_str().into())).collect())
}

/// Returns the addresses that a request passed through: those in proxy headers, then the address of the peer.
fn source_addresses(headers: &HeaderMap, address: Option<ClientAddress>) -> Vec<String> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let forwarded = text(&FORWARDED_FOR).split(',').chain([text(&REAL_IP)]);
    let mut found: Vec<std::net::IpAddr> =
        forwarded.filter_map(|text| text.trim().parse().ok()).take(MAX_ADDRESSES - 1).collect();
    found.extend(address.map(|ClientAddress(address)| address));
    found.dedup();
    found.iter().map(ToString::to_string).collect()
}

fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_proxies_precede_the_own_one() {
        let own = Some(ClientAddress([10, 0, 0, 9].into()));
        for (forwarded, real, expected) in [
            ("", "", vec!["10.0.0.9"]),
            ("1.2.3.4, 5.6.7.8", "", vec!["1.2.3.4", "5.6.7.8", "10.0.0.9"]),
            ("nonsense, ::1", "9.9.9.9", vec!["::1", "9.9.9.9", "10.0.0.9"]),
            ("10.0.0.9", "", vec!["10.0.0.9"]),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(FORWARDED_FOR, forwarded.parse().unwrap());
            headers.insert(REAL_IP, real.parse().unwrap());
            assert_eq!(source_addresses(&headers, own), expected, "{forwarded}");
        }
        let mut many = HeaderMap::new();
        many.insert(
            FORWARDED_FOR,
            (0..99).map(|n| format!("1.1.1.{n}")).collect::<Vec<_>>().join(",").parse().unwrap(),
        );
        assert_eq!(source_addresses(&many, own).len(), MAX_ADDRESSES);
    }

    #[test]
    fn managed_fields_are_removed_from_objects_and_lists() {
        let object = json!({"metadata": {"name": "a", "managedFields": [1]}});
        assert_eq!(without_managed_fields(object.clone()), json!({"metadata": {"name": "a"}}));
        let list = json!({"items": [object]});
        assert_eq!(without_managed_fields(list), json!({"items": [{"metadata": {"name": "a"}}]}));
        assert_eq!(without_managed_fields(json!([1])), json!([1]));
    }

    #[test]
    fn identities_are_read_without_the_rest() {
        let read = |text: &str| ObjectIdentity::of_json(text.as_bytes());
        let found = read(r#"{"data": {"a": "b"}, "metadata": {"name": "n", "uid": "u", "labels": {}}}"#).unwrap();
        assert_eq!((found.name.as_str(), found.uid.as_str(), found.namespace.as_str()), ("n", "u", ""));
        for none in ["", "[]", "{}", r#"{"metadata": {"name": 1}}"#] {
            assert_eq!(read(none), None, "{none}");
        }
    }
}
