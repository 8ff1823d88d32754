//! Options of reads and writes, parsed once from the query.

use portolan_machinery::{decode::FieldValidation, fields::FieldSelector, validation};
use portolan_types::{GroupKind, LabelSelector, ReadAt, Reason, ResourceVersion, Status, StatusCause};

use crate::{call::Call, call::Target, query::Query};

/// Longest selector that is looked at, in bytes.
const MAX_SELECTOR: usize = 4096;
/// Characters of a wrong value that are shown.
const MAX_SHOWN: usize = 64;

/// Options of a create, update or patch.
#[derive(Clone, Debug)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) manager: String,
    pub(crate) validation: FieldValidation,
}

impl WriteOptions {
    /// From the query of a call.
    ///
    /// # Errors
    /// 422 for values that mean nothing.
    pub(crate) fn of(call: &Call) -> Result<Self, Status> {
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
            let message =
                format!("Unsupported value: {level:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"");
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

fn options_kind(call: &Call) -> &'static str {
    match call.attributes.verb.as_str() {
        "create" => "CreateOptions",
        "patch" => "PatchOptions",
        _ => "UpdateOptions",
    }
}

/// Whether the body is an apply patch.
pub(crate) fn is_apply(call: &Call) -> bool {
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

/// What only patches can be asked.
fn check_patch(query: &Query, apply: bool) -> Option<StatusCause> {
    match apply {
        true if query.text("fieldManager").is_empty() => {
            Some(cause("fieldManager", "FieldValueRequired", "Required value: is required for apply patch"))
        }
        false if query.get("force").is_some() => {
            Some(cause("force", "FieldValueForbidden", "Forbidden: may not be specified for non-apply patch"))
        }
        _ => None,
    }
}

fn cause(field: &str, reason: &str, message: impl Into<String>) -> StatusCause {
    StatusCause { reason: reason.into(), message: message.into(), field: field.into() }
}

/// 422 about options.
fn refused(kind: &str, causes: Vec<StatusCause>) -> Status {
    Status::invalid(&GroupKind { group: "meta.k8s.io".into(), kind: kind.into() }, "", causes)
}

/// What a list, watch or deletecollection selects.
#[derive(Clone)]
pub(crate) struct Selection {
    pub(crate) labels: LabelSelector,
    pub(crate) fields: FieldSelector,
}

impl Selection {
    /// From the query.
    ///
    /// # Errors
    /// 400 when a selector cannot be parsed or names a field that is not supported.
    pub(crate) fn of(target: &Target, query: &Query) -> Result<Self, Status> {
        let (labels, fields) = (query.text("labelSelector"), query.text("fieldSelector"));
        if labels.len() > MAX_SELECTOR || fields.len() > MAX_SELECTOR {
            return Err(Status::bad_request(format!("a selector is longer than {MAX_SELECTOR} bytes")));
        }
        let labels = LabelSelector::parse(labels).map_err(|e| Status::bad_request(e.to_string()))?;
        Ok(Self { labels, fields: FieldSelector::parse(&target.kind, fields)? })
    }

    /// Whether everything is selected.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }
}

/// Options of a list.
pub(crate) struct ListOptions {
    pub(crate) selection: Selection,
    pub(crate) at: ReadAt,
    pub(crate) limit: Option<usize>,
    pub(crate) token: Option<String>,
}

impl ListOptions {
    /// From the query.
    ///
    /// # Errors
    /// 400 and 422 for values that mean nothing together.
    pub(crate) fn of(target: &Target, query: &Query) -> Result<Self, Status> {
        let (version, matching) = (query.text("resourceVersion"), query.text("resourceVersionMatch"));
        // A list may be told for how long it might be watched.
        query.number("timeoutSeconds")?;
        let limit = query.number("limit")?.filter(|n| *n > 0).and_then(|n| usize::try_from(n).ok());
        let token = query.get("continue").filter(|t| !t.is_empty()).map(str::to_owned);
        let mut causes = match_causes(version, matching, token.is_some());
        if query.get("sendInitialEvents").is_some() {
            causes.push(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        refuse(causes)?;
        if token.is_some() && !matches!(version, "" | "0") {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        let at = read_at(version, matching, limit.is_some())?;
        Ok(Self { selection: Selection::of(target, query)?, at, limit, token })
    }
}

/// What is wrong with the combination of a list's `resourceVersion` and `resourceVersionMatch`.
fn match_causes(version: &str, matching: &str, continued: bool) -> Vec<StatusCause> {
    const FIELD: &str = "resourceVersionMatch";
    let mut causes = Vec::new();
    if matching.is_empty() {
        return causes;
    }
    if version.is_empty() {
        causes.push(forbidden(FIELD, "resourceVersionMatch is forbidden unless resourceVersion is provided"));
    }
    if continued {
        causes.push(forbidden(FIELD, "resourceVersionMatch is forbidden when continue is provided"));
    }
    if !matches!(matching, "Exact" | "NotOlderThan") {
        causes.push(unsupported(FIELD, matching, &["Exact", "NotOlderThan", ""]));
    }
    if matching == "Exact" && version == "0" {
        causes.push(forbidden(FIELD, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
    }
    causes
}

/// What is wrong with the combination of a watch's options.
fn watch_causes(initial: Option<bool>, matching: &str, continued: bool) -> Vec<StatusCause> {
    const FIELD: &str = "resourceVersionMatch";
    let mut causes = Vec::new();
    if initial.is_some() && matching != "NotOlderThan" {
        causes.push(forbidden(FIELD, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
    }
    if matching.is_empty() {
        return causes;
    }
    if initial.is_none() {
        let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        causes.push(forbidden(FIELD, why));
    }
    if matching != "NotOlderThan" {
        causes.push(unsupported(FIELD, matching, &["NotOlderThan"]));
    }
    if continued {
        causes.push(forbidden(FIELD, "resourceVersionMatch is forbidden when continue is provided"));
    }
    causes
}

fn forbidden(field: &str, why: &str) -> StatusCause {
    StatusCause { reason: "FieldValueForbidden".into(), message: format!("Forbidden: {why}"), field: field.into() }
}

fn unsupported(field: &str, value: &str, supported: &[&str]) -> StatusCause {
    let shown: String = value.chars().take(MAX_SHOWN).collect();
    let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
    let message = format!("Unsupported value: {shown:?}: supported values: {}", supported.join(", "));
    StatusCause { reason: "FieldValueNotSupported".into(), message, field: field.into() }
}

fn refuse(causes: Vec<StatusCause>) -> Result<(), Status> {
    let kind = GroupKind { group: "meta.k8s.io".into(), kind: "ListOptions".into() };
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid(&kind, "", causes)) }
}

/// `resourceVersion` and `resourceVersionMatch` of a list, checked before, combined once into what they mean.
fn read_at(version: &str, matching: &str, limited: bool) -> Result<ReadAt, Status> {
    let at = match version {
        "" => return Ok(ReadAt::Latest),
        "0" => return Ok(ReadAt::AnyCached),
        text => parse_version(text)?,
    };
    Ok(match matching {
        "Exact" => ReadAt::Exactly(at),
        "" if limited => ReadAt::Exactly(at),
        _ => ReadAt::NotOlderThan(at),
    })
}

/// A resourceVersion from a query.
///
/// # Errors
/// 400 when it is none.
pub(crate) fn parse_version(text: &str) -> Result<ResourceVersion, Status> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<u64>().ok().filter(|_| is_number);
    number.and_then(ResourceVersion::new).ok_or_else(|| {
        let shown: String = text.chars().take(MAX_SHOWN).collect();
        let why = if is_number { "value out of range" } else { "invalid syntax" };
        Status::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {shown:?}: strconv.ParseUint: parsing {shown:?}: {why}"
        ))
    })
}

/// Go's error about text that is no revision.
pub(crate) fn no_number(text: &str) -> String {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let why = if is_number { "value out of range" } else { "invalid syntax" };
    let shown: String = text.chars().take(64).collect();
    format!("strconv.ParseUint: parsing {shown:?}: {why}")
}

/// What upstream's cache says of a resourceVersion that is none.
pub(crate) fn no_revision(text: &str) -> Status {
    Status::new(Reason::Unknown, format!("resourceVersion: Invalid value: {text:?}: {}", no_number(text)))
}

/// Where a watch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchFrom {
    /// The state as of now (or not older than this), as ADDED events; then what comes.
    Now(Option<ResourceVersion>),
    /// What comes after this.
    After(ResourceVersion),
    /// What comes from now on.
    Live,
}

/// Options of a watch.
pub(crate) struct WatchOptions {
    pub(crate) selection: Selection,
    pub(crate) from: WatchFrom,
    /// Whether the end of the initial state is marked with a bookmark.
    pub(crate) marks_end: bool,
    pub(crate) bookmarks: bool,
    pub(crate) timeout_seconds: Option<u64>,
}

impl WatchOptions {
    /// From the query.
    ///
    /// # Errors
    /// 400 and 422 for values that mean nothing together.
    pub(crate) fn of(target: &Target, query: &Query) -> Result<Self, Status> {
        let (version, matching) = (query.text("resourceVersion"), query.text("resourceVersionMatch"));
        let seconds = query.number("timeoutSeconds")?;
        query.number("limit")?;
        let initial = query.maybe_flag("sendInitialEvents");
        // Upstream gives such a watch its first state as one that asks for it.
        let is_given = initial.is_none() && matching.is_empty() && matches!(version, "" | "0");
        let (asked, at_least) = if is_given { (Some(true), "NotOlderThan") } else { (initial, matching) };
        refuse(watch_causes(asked, at_least, !query.text("continue").is_empty()))?;
        let at = match version {
            "" | "0" => None,
            text => Some(parse_version(text).map_err(|_| no_revision(text))?),
        };
        let from = match (initial, at) {
            (Some(true), at) => WatchFrom::Now(at),
            (Some(false), None) => WatchFrom::Live,
            (_, Some(after)) => WatchFrom::After(after),
            (_, None) => WatchFrom::Now(None),
        };
        Ok(Self {
            selection: Selection::of(target, query)?,
            from,
            marks_end: asked == Some(true) && query.flag("allowWatchBookmarks"),
            bookmarks: query.flag("allowWatchBookmarks"),
            timeout_seconds: seconds.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_matches_mean_what_upstream_says() {
        let at = |n| ResourceVersion::new(n).unwrap();
        for (version, matching, limited, expected) in [
            ("", "", false, Ok(ReadAt::Latest)),
            ("0", "", true, Ok(ReadAt::AnyCached)),
            ("5", "", false, Ok(ReadAt::NotOlderThan(at(5)))),
            ("5", "", true, Ok(ReadAt::Exactly(at(5)))),
            ("5", "Exact", false, Ok(ReadAt::Exactly(at(5)))),
            ("5", "NotOlderThan", true, Ok(ReadAt::NotOlderThan(at(5)))),
            ("0", "NotOlderThan", false, Ok(ReadAt::AnyCached)),
            ("-1", "", false, Err(400)),
            ("1e9", "", false, Err(400)),
            ("18446744073709551616", "", false, Err(400)),
        ] {
            assert_eq!(
                read_at(version, matching, limited).map_err(|s| s.code()),
                expected,
                "{version} {matching} {limited}"
            );
        }
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once() {
        for (causes, expected) in [
            (match_causes("", "", false), vec![]),
            (match_causes("5", "Exact", false), vec![]),
            (match_causes("", "Exact", true), vec!["unless resourceVersion is provided", "when continue is provided"]),
            (
                match_causes("", "Newer", false),
                vec!["unless resourceVersion", r#""Newer": supported values: "Exact", "NotOlderThan", """#],
            ),
            (match_causes("0", "Exact", false), vec![r#""exact" is forbidden for resourceVersion "0""#]),
            (watch_causes(Some(true), "NotOlderThan", false), vec![]),
            (watch_causes(Some(false), "", false), vec!["sendInitialEvents requires"]),
            (watch_causes(None, "Exact", false), vec!["unless sendInitialEvents", r#"values: "NotOlderThan""#]),
        ] {
            let messages: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
            assert_eq!(messages.len(), expected.len(), "{messages:?}");
            assert!(messages.iter().zip(&expected).all(|(message, part)| message.contains(part)), "{messages:?}");
        }
    }
}
