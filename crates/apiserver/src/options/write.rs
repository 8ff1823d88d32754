//! Options of writes.

use portolan_codec::decode::FieldValidation;
use portolan_types::{GroupKind, Status, StatusCause, quoted::go_quoted};
use portolan_validation as validation;

use crate::{request::RequestContext, routing::query::Query};

/// Options of a create, update or patch.
#[derive(Clone, Debug)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) manager: String,
    pub(crate) validation: FieldValidation,
}

impl WriteOptions {
    /// Parses the query of a request.
    ///
    /// # Errors
    /// 422 for invalid values.
    pub(crate) fn of(call: &RequestContext) -> Result<Self, Status> {
        let (query, apply) = (&call.query, is_apply(call));
        let mut causes = Vec::new();
        if call.attributes.verb == "patch" {
            causes.extend(check_patch(query, apply));
        }
        causes.extend(validation::field_manager(query.text("fieldManager")));
        causes.extend(check_dry_run(query));
        let level = query.text("fieldValidation");
        let validation = FieldValidation::parse(level);
        if validation.is_none() {
            let message = format!(
                "Unsupported value: {}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
                go_quoted(level)
            );
            causes.push(cause("fieldValidation", "FieldValueNotSupported", message));
        }
        match validation {
            Some(validation) if causes.is_empty() => {
                Ok(Self { dry_run: is_dry_run(query), manager: call.field_manager(), validation })
            }
            _ => Err(refused(options_kind(call), causes)),
        }
    }
}

fn options_kind(call: &RequestContext) -> &'static str {
    match call.attributes.verb.as_str() {
        "create" => "CreateOptions",
        "patch" => "PatchOptions",
        _ => "UpdateOptions",
    }
}

/// Returns true if the body is an apply patch.
fn is_apply(call: &RequestContext) -> bool {
    let media = call.header(http::header::CONTENT_TYPE);
    media.split(';').next().unwrap_or_default().trim() == "application/apply-patch+yaml"
}

fn is_dry_run(query: &Query) -> bool {
    query.get("dryRun").is_some()
}

fn check_dry_run(query: &Query) -> Option<StatusCause> {
    let values: Vec<&str> = query.all("dryRun").collect();
    let message = || format!("Unsupported value: {}: supported values: \"All\"", serde_json::json!(values));
    values.iter().any(|value| *value != "All").then(|| cause("dryRun", "FieldValueNotSupported", message()))
}

/// Validates the options that only patches have.
fn check_patch(query: &Query, apply: bool) -> Option<StatusCause> {
    if apply && query.text("fieldManager").is_empty() {
        return Some(cause("fieldManager", "FieldValueRequired", "Required value: is required for apply patch"));
    }
    if !apply && query.get("force").is_some() {
        return Some(cause("force", "FieldValueForbidden", "Forbidden: may not be specified for non-apply patch"));
    }
    None
}

fn cause(field: &str, reason: &str, message: impl Into<String>) -> StatusCause {
    StatusCause { reason: reason.into(), message: message.into(), field: field.into() }
}

/// Returns the 422 for invalid options.
fn refused(kind: &str, causes: Vec<StatusCause>) -> Status {
    Status::invalid(&GroupKind { group: "meta.k8s.io".into(), kind: kind.into() }, "", causes)
}
