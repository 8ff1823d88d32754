//! `Status`: the form of every failure (API conventions, "Response Status Kind").

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{group::GroupKind, group::GroupResource, quoted::go_quoted};

/// Reason of a failure, by which clients decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// 400.
    BadRequest,
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404.
    NotFound,
    /// 405.
    MethodNotAllowed,
    /// 406.
    NotAcceptable,
    /// 409 on create.
    AlreadyExists,
    /// 409 on update.
    Conflict,
    /// 410 of a resourceVersion or continue token.
    Expired,
    /// 410 in general.
    Gone,
    /// 413.
    RequestEntityTooLarge,
    /// 415.
    UnsupportedMediaType,
    /// 422.
    Invalid,
    /// 429.
    TooManyRequests,
    /// 500.
    InternalError,
    /// 500 for an error that kube-apiserver passes on without a reason.
    Unknown,
    /// 500 because a stored object cannot be read.
    StorageReadError,
    /// 500 that is worth a retry.
    ServerTimeout,
    /// 503.
    ServiceUnavailable,
    /// 504.
    Timeout,
}

impl Reason {
    /// Returns the HTTP status code of this reason.
    pub fn code(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Expired | Self::Gone => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid => 422,
            Self::TooManyRequests => 429,
            Self::InternalError | Self::Unknown | Self::StorageReadError | Self::ServerTimeout => 500,
            Self::ServiceUnavailable => 503,
            Self::Timeout => 504,
        }
    }
}

/// One of several causes of a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusCause {
    /// Machine-readable reason, such as `FieldValueRequired`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Message for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the field, such as `spec.replicas`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// Subject of a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusDetails {
    /// Name of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Resource for NotFound, Forbidden and Conflict; kind for Invalid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Uid of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// All causes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    /// Seconds after which a retry makes sense; also sent as `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
}

/// Failure in the form that Kubernetes clients know. It is boxed because results of hot paths carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status(Box<StatusBody>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct StatusBody {
    reason: Reason,
    message: String,
    /// Some statuses have empty details, others none.
    details: Option<StatusDetails>,
    continue_token: Option<String>,
    /// Code and reason of a failure from elsewhere.
    foreign: Option<(u16, String)>,
    /// True if only the message is sent, as a line of text.
    is_plain: bool,
}

impl Status {
    /// Makes a failure with a reason and a message.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Box::new(StatusBody {
            reason,
            message,
            details: None,
            continue_token: None,
            foreign: None,
            is_plain: false,
        }))
    }

    /// Makes a failure from elsewhere with its own code and reason; `reason` may be empty.
    pub fn foreign(code: u16, reason: &str, message: impl Into<String>, details: Option<StatusDetails>) -> Self {
        let known = serde_json::from_value(serde_json::Value::from(reason)).unwrap_or(Reason::Unknown);
        let mut status = Self::new(known, message);
        status.0.details = details;
        status.0.foreign = Some((code, reason.to_owned()));
        status
    }

    /// Makes a failure with empty details, as kube-apiserver does without an object.
    pub fn generic(reason: Reason, message: impl Into<String>) -> Self {
        let mut status = Self::new(reason, message);
        status.details_mut();
        status
    }

    /// Makes a 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// Makes a 401 without an explanation.
    pub fn unauthorized() -> Self {
        Self::new(Reason::Unauthorized, "Unauthorized")
    }

    /// Makes a 403 for an object; `why` ends the sentence.
    pub fn forbidden(resource: &GroupResource, name: &str, why: impl fmt::Display) -> Self {
        let message = match name {
            "" => format!("{resource} is forbidden: {why}"),
            name => format!("{resource} {} is forbidden: {why}", go_quoted(name)),
        };
        Self::new(Reason::Forbidden, message).about(resource, name)
    }

    /// Makes a 404 for an object.
    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        Self::new(Reason::NotFound, format!("{resource} {} not found", go_quoted(name))).about(resource, name)
    }

    /// Makes a 404 for a path without a resource.
    pub fn no_such_path() -> Self {
        Self::generic(Reason::NotFound, "the server could not find the requested resource")
    }

    /// Makes a 404 for a path outside the API: a line of text, as Go's `http.NotFound` writes it.
    pub fn no_such_page() -> Self {
        let mut status = Self::new(Reason::NotFound, "404 page not found");
        status.0.is_plain = true;
        status
    }

    /// Makes a 409 for a create.
    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        Self::new(Reason::AlreadyExists, format!("{resource} {} already exists", go_quoted(name))).about(resource, name)
    }

    /// Makes a 409 for an update; `why` ends the sentence.
    pub fn conflict(resource: &GroupResource, name: &str, why: impl fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {}: {why}", go_quoted(name));
        Self::new(Reason::Conflict, message).about(resource, name)
    }

    /// Makes a 409 for an update of an object that has changed since it was read.
    pub fn modified(resource: &GroupResource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// Makes a 422. The causes become the message in this order, without repetitions.
    pub fn invalid(kind: &GroupKind, name: &str, causes: Vec<StatusCause>) -> Self {
        let mut lines: Vec<String> = Vec::new();
        for line in causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)) {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        let all = match lines.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let mut status = Self::new(Reason::Invalid, format!("{kind} {} is invalid: {all}", go_quoted(name)));
        status.0.details = Some(StatusDetails {
            name: name.into(),
            group: kind.group.to_string(),
            kind: kind.kind.to_string(),
            causes,
            ..StatusDetails::default()
        });
        status
    }

    /// Makes a 405.
    pub fn method_not_allowed(resource: &GroupResource, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind {:?}", resource.to_string());
        Self::new(Reason::MethodNotAllowed, message).about(resource, "")
    }

    /// Makes a 410: list again. Also the content of an ERROR event of a watch.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(Reason::Expired, message)
    }

    /// Makes a 500; the cause is only logged.
    pub fn internal(message: impl fmt::Display) -> Self {
        let cause = StatusCause { message: message.to_string(), ..StatusCause::default() };
        Self::new(Reason::InternalError, format!("Internal error occurred: {message}")).with_cause(cause)
    }

    /// Makes a 413.
    pub fn too_large(message: impl fmt::Display) -> Self {
        Self::new(Reason::RequestEntityTooLarge, format!("Request entity too large: {message}"))
    }

    /// Makes a 429: retry after `seconds`.
    pub fn too_many_requests(message: impl Into<String>, seconds: u32) -> Self {
        Self::new(Reason::TooManyRequests, message).retry_after(seconds)
    }

    /// Sets the resource and object in the details.
    #[must_use]
    pub fn about(mut self, resource: &GroupResource, name: &str) -> Self {
        let details = self.details_mut();
        details.group = resource.group.to_string();
        details.kind = resource.resource.to_string();
        details.name = name.into();
        self
    }

    /// Adds a cause.
    #[must_use]
    pub fn with_cause(mut self, cause: StatusCause) -> Self {
        self.details_mut().causes.push(cause);
        self
    }

    /// Adds the time after which a retry makes sense.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.details_mut().retry_after_seconds = Some(seconds);
        self
    }

    /// Adds `metadata.continue`, for a list that may continue inconsistently.
    #[must_use]
    pub fn with_continue(mut self, token: String) -> Self {
        self.0.continue_token = Some(token);
        self
    }

    /// Returns the reason.
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// Returns the HTTP status code.
    pub fn code(&self) -> u16 {
        self.0.foreign.as_ref().map_or(self.0.reason.code(), |(code, _)| *code)
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns true if it is sent as a line of text instead of an object.
    pub fn is_plain(&self) -> bool {
        self.0.is_plain
    }

    /// Returns the details.
    pub fn details(&self) -> &StatusDetails {
        static NONE: std::sync::LazyLock<StatusDetails> = std::sync::LazyLock::new(StatusDetails::default);
        self.0.details.as_ref().unwrap_or(&NONE)
    }

    fn details_mut(&mut self) -> &mut StatusDetails {
        self.0.details.get_or_insert_default()
    }

    /// Returns the object as it is sent.
    pub fn to_value(&self) -> serde_json::Value {
        let mut value = serde_json::json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.0.message,
            "code": self.code(),
        });
        if let Some((_, reason)) = self.0.foreign.as_ref().filter(|(_, reason)| !reason.is_empty()) {
            value["reason"] = reason.as_str().into();
        } else if self.0.reason != Reason::Unknown {
            value["reason"] = serde_json::to_value(self.0.reason).expect("a word serializes");
        }
        if let Some(details) = &self.0.details {
            value["details"] = serde_json::to_value(details).expect("strings and numbers serialize");
        }
        if let Some(token) = &self.0.continue_token {
            value["metadata"]["continue"] = token.as_str().into();
        }
        value
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_that_kubernetes_users_know() {
        let apps = GroupResource::new("apps", "deployments");
        let core = GroupResource::new("", "pods");
        let kind = GroupKind { group: "apps".into(), kind: "Deployment".into() };
        let cause = |field: &str| StatusCause {
            reason: "FieldValueRequired".into(),
            message: "Required value".into(),
            field: field.into(),
        };
        for (status, expected) in [
            (Status::not_found(&apps, "web"), r#"deployments.apps "web" not found"#),
            (Status::already_exists(&core, "a"), r#"pods "a" already exists"#),
            (
                Status::invalid(&kind, "web", vec![cause("spec.a")]),
                r#"Deployment.apps "web" is invalid: spec.a: Required value"#,
            ),
            (
                Status::invalid(&kind, "web", vec![cause("spec.a"), cause("spec.b")]),
                r#"Deployment.apps "web" is invalid: [spec.a: Required value, spec.b: Required value]"#,
            ),
            (
                Status::invalid(&kind, "web", vec![cause("spec.a"), cause("spec.a")]),
                r#"Deployment.apps "web" is invalid: spec.a: Required value"#,
            ),
            (
                Status::modified(&core, "a"),
                r#"Operation cannot be fulfilled on pods "a": the object has been modified; please apply your changes to the latest version and try again"#,
            ),
        ] {
            assert_eq!(status.message(), expected);
        }
    }

    #[test]
    fn a_response_has_no_additional_fields() {
        let shown = |status: Status| {
            let value = status.to_value();
            (value.get("reason").cloned(), value.get("details").cloned())
        };
        let word = |word: &str| Some(serde_json::Value::from(word));
        for (case, status, expected) in [
            ("a bad request has no details", Status::bad_request("x"), (word("BadRequest"), None)),
            ("an unknown path has empty ones", Status::no_such_path(), (word("NotFound"), Some(serde_json::json!({})))),
            (
                "what went wrong inside is a cause, too",
                Status::internal("x"),
                (word("InternalError"), Some(serde_json::json!({"causes": [{"message": "x"}]}))),
            ),
            ("an error without a word for it has neither", Status::new(Reason::Unknown, "x"), (None, None)),
        ] {
            assert_eq!(shown(status), expected, "{case}");
        }
    }
}
