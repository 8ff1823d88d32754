//! Failed requests, worded as kubectl words them.

use std::{error::Error, io};

use serde_json::Value;

/// Failure of a request.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The server refused it with a Status.
    Refused(RefusedRequest),
    /// The server did not answer.
    Unreachable {
        /// Host and port.
        server: String,
        /// True if nothing listens there.
        is_refused: bool,
        /// Last cause.
        cause: String,
    },
}

/// Status of a refused request.
#[derive(Debug)]
pub(crate) struct RefusedRequest {
    /// HTTP status.
    pub(crate) code: u16,
    status: Value,
}

impl RefusedRequest {
    /// Reads the answer of a refused request; a body that is not a Status gives its text as the message.
    pub(crate) fn read(code: u16, body: &[u8]) -> Self {
        let status: Value = serde_json::from_slice(body).unwrap_or_default();
        if status["kind"] == "Status" {
            return Self { code, status };
        }
        let text: String = String::from_utf8_lossy(body).chars().take(1024).collect();
        let text = if text.trim().is_empty() { format!("the server answered {code}") } else { text.trim().to_owned() };
        Self { code, status: serde_json::json!({"message": text}) }
    }

    /// Returns the message of the server.
    pub(crate) fn message(&self) -> &str {
        self.status["message"].as_str().unwrap_or_default()
    }

    fn reason(&self) -> &str {
        self.status["reason"].as_str().unwrap_or_default()
    }

    /// Formats an invalid object: the kind, the name and a line per cause.
    fn invalid(&self) -> Option<String> {
        let details = &self.status["details"];
        let causes = details["causes"].as_array().filter(|causes| !causes.is_empty())?;
        let cause = |cause: &Value| {
            let text = |key: &str| cause[key].as_str().unwrap_or_default().to_owned();
            if text("field").is_empty() { text("message") } else { format!("{}: {}", text("field"), text("message")) }
        };
        let of = format!("The {} {} is invalid", details["kind"].as_str().unwrap_or("request"), details["name"]);
        Some(match &causes[..] {
            [one] => format!("{of}: {}", cause(one)),
            all => all.iter().fold(format!("{of}:"), |text, one| format!("{text}\n* {}", cause(one))),
        })
    }
}

impl RequestError {
    /// Returns the failure of a request without an answer.
    pub(crate) fn unreachable(server: &str, error: &kube::Error) -> Self {
        let mut cause: &dyn Error = error;
        let mut is_refused = false;
        while let Some(next) = cause.source() {
            cause = next;
            let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
            is_refused |= kind == Some(io::ErrorKind::ConnectionRefused);
        }
        Self::Unreachable { server: server.to_owned(), is_refused, cause: cause.to_string() }
    }

    /// Returns the HTTP status, if there was an answer.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(refused) => Some(refused.code),
            Self::Unreachable { .. } => None,
        }
    }

    /// Returns true if the object, or the resource, is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Returns true if the user may not do this.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(refused) if refused.code == 401 => {
                f.write_str("error: You must be logged in to the server (Unauthorized)")
            }
            Self::Refused(refused) => match (refused.reason(), refused.invalid()) {
                ("Invalid", Some(text)) => f.write_str(&text),
                ("", _) => write!(f, "Error from server: {}", refused.message()),
                (reason, _) => write!(f, "Error from server ({reason}): {}", refused.message()),
            },
            Self::Unreachable { server, is_refused: true, .. } => {
                write!(f, "The connection to the server {server} was refused - did you specify the right host or port?")
            }
            Self::Unreachable { cause, .. } => write!(f, "Unable to connect to the server: {cause}"),
        }
    }
}

impl Error for RequestError {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failures_read_as_kubectls() {
        let invalid = |causes: Value| {
            json!({"kind": "Status", "reason": "Invalid", "message": "long",
            "details": {"kind": "Workspace", "name": "a", "causes": causes}})
        };
        let cause = |field: &str| json!({"field": field, "message": "Required value"});
        for (case, code, body, expected) in [
            (
                "a Status",
                404,
                json!({"kind": "Status", "reason": "NotFound", "message": "pods \"a\" not found"}).to_string(),
                "Error from server (NotFound): pods \"a\" not found",
            ),
            ("no Status", 502, "bad gateway\n".into(), "Error from server: bad gateway"),
            ("nothing", 503, String::new(), "Error from server: the server answered 503"),
            ("no user", 401, String::new(), "error: You must be logged in to the server (Unauthorized)"),
            (
                "one cause",
                422,
                invalid(json!([cause("spec.x")])).to_string(),
                "The Workspace \"a\" is invalid: spec.x: Required value",
            ),
            (
                "two causes",
                422,
                invalid(json!([cause("spec.x"), cause("")])).to_string(),
                "The Workspace \"a\" is invalid:\n* spec.x: Required value\n* Required value",
            ),
        ] {
            let error = RequestError::Refused(RefusedRequest::read(code, body.as_bytes()));
            assert_eq!(error.to_string(), expected, "{case}");
        }
    }
}
