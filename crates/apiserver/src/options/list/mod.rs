//! Options of lists and collection deletes.

#[cfg(test)]
mod tests;

use portolan_strategy::fields::{FieldSelector, FieldTerms};
use portolan_types::{
    GroupKind, LabelSelector, ReadAt, Reason, ResourceVersion, Status, StatusCause, number, quoted::go_quoted,
};

use crate::{request::ResourceTarget, routing::query::Query};

/// Longest selector that is parsed, in bytes.
const MAX_SELECTOR: usize = 4096;
/// Characters of a wrong value in an error message.
const MAX_SHOWN: usize = 64;

/// `metav1.ListOptions` as parsed from the query, before validation.
pub(super) struct RawListOptions<'q> {
    pub(super) labels: LabelSelector,
    pub(super) fields: FieldTerms,
    pub(super) bookmarks: bool,
    pub(super) version: &'q str,
    pub(super) matching: &'q str,
    pub(super) seconds: Option<i64>,
    pub(super) limit: i64,
    pub(super) token: &'q str,
    pub(super) initial: Option<bool>,
}

impl<'q> RawListOptions<'q> {
    /// Parses the options in kube-apiserver's order: numbers in the order of the fields, selectors last.
    ///
    /// # Errors
    /// 400 for malformed numbers and selectors.
    pub(super) fn read(query: &'q Query) -> Result<Self, Status> {
        let (seconds, limit) = (query.number("timeoutSeconds")?, query.number("limit")?.unwrap_or(0));
        let (labels, fields) = (query.text("labelSelector"), query.text("fieldSelector"));
        if labels.len() > MAX_SELECTOR || fields.len() > MAX_SELECTOR {
            return Err(Status::bad_request(format!("a selector is longer than {MAX_SELECTOR} bytes")));
        }
        let labels = LabelSelector::parse(labels).map_err(|e| Status::bad_request(e.to_string()))?;
        Ok(Self {
            labels,
            fields: FieldTerms::parse(fields)?,
            bookmarks: query.flag("allowWatchBookmarks"),
            version: query.text("resourceVersion"),
            matching: query.text("resourceVersionMatch"),
            seconds,
            limit,
            token: query.text("continue"),
            initial: query.optional_flag("sendInitialEvents"),
        })
    }

    pub(super) fn selection(self, target: &ResourceTarget) -> Result<ObjectSelection, Status> {
        Ok(ObjectSelection { labels: self.labels, fields: self.fields.of(&target.kind)? })
    }
}

/// Returns the name that a field selector pins. It counts as the name of the request, so that rules with resource names
/// permit it. Malformed options have none.
pub(crate) fn selected_name(query: &Query) -> Option<String> {
    let asked = query.get("fieldSelector").and_then(|_| RawListOptions::read(query).ok())?;
    let is_name = |name: &&str| !matches!(*name, "" | "." | "..") && !name.contains(['/', '%']);
    asked.fields.exact("metadata.name").filter(is_name).map(str::to_owned)
}

/// Selectors of a list, watch or deletecollection.
#[derive(Clone)]
pub(crate) struct ObjectSelection {
    pub(crate) labels: LabelSelector,
    pub(crate) fields: FieldSelector,
}

impl ObjectSelection {
    /// Returns the selection of all objects.
    pub(crate) fn everything() -> Self {
        Self { labels: LabelSelector::everything(), fields: FieldSelector::default() }
    }

    /// Returns true without selectors.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }
}

/// Options of a list.
pub(crate) struct ListOptions {
    pub(crate) selection: ObjectSelection,
    pub(crate) limit: Option<usize>,
    /// Continue token.
    pub(crate) token: Option<String>,
    /// True if the list is read in pages of exactly the requested revision.
    pub(crate) in_pages: bool,
    version: String,
    matching: String,
}

impl ListOptions {
    /// Parses the query. The revision is checked later: [`ListOptions::state`].
    ///
    /// # Errors
    /// 400 for malformed values, 422 for contradictory ones, then 400 for fields that the kind does not select by.
    pub(crate) fn of(target: &ResourceTarget, query: &Query) -> Result<Self, Status> {
        let asked = RawListOptions::read(query)?;
        let mut causes = match_causes(asked.version, asked.matching, !asked.token.is_empty());
        if asked.initial.is_some() {
            causes.push(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        refuse(causes)?;
        let limit = usize::try_from(asked.limit).ok().filter(|limit| *limit > 0);
        Ok(Self {
            limit,
            token: Some(asked.token).filter(|token| !token.is_empty()).map(str::to_owned),
            in_pages: limit.is_some(),
            version: asked.version.to_owned(),
            matching: asked.matching.to_owned(),
            selection: asked.selection(target)?,
        })
    }

    /// Returns the state to list. A continued list has its own, from its token.
    ///
    /// # Errors
    /// 400 for a malformed resourceVersion, or one beside a token.
    pub(crate) fn state(&self) -> Result<ReadAt, Status> {
        match (&self.token, self.version.as_str()) {
            (Some(_), "" | "0") => Ok(ReadAt::Latest),
            (Some(_), _) => Err(Status::bad_request("specifying resource version is not allowed when using continue")),
            (None, version) => read_at(version, &self.matching, self.in_pages),
        }
    }
}

/// Validates the combination of `resourceVersion` and `resourceVersionMatch` of a list.
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

/// Validates the combination of the options of a watch.
pub(super) fn watch_causes(initial: Option<bool>, matching: &str, continued: bool) -> Vec<StatusCause> {
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
    let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
    let message = format!("Unsupported value: {}: supported values: {}", quoted_beginning(value), supported.join(", "));
    StatusCause { reason: "FieldValueNotSupported".into(), message, field: field.into() }
}

/// Quotes the beginning of a value.
fn quoted_beginning(value: &str) -> String {
    go_quoted(&value[..value.floor_char_boundary(MAX_SHOWN)])
}

pub(super) fn refuse(causes: Vec<StatusCause>) -> Result<(), Status> {
    let kind = GroupKind { group: "meta.k8s.io".into(), kind: "ListOptions".into() };
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid(&kind, "", causes)) }
}

/// Combines `resourceVersion` and `resourceVersionMatch` of a list, which have been validated.
fn read_at(version: &str, matching: &str, in_pages: bool) -> Result<ReadAt, Status> {
    let at = match version {
        "" => return Ok(ReadAt::Latest),
        "0" => return Ok(ReadAt::AnyCached),
        text => parse_version(text)?,
    };
    Ok(match (matching, at) {
        (_, None) => ReadAt::Latest,
        ("Exact", Some(at)) => ReadAt::Exactly(at),
        ("", Some(at)) if in_pages => ReadAt::Exactly(at),
        (_, Some(at)) => ReadAt::NotOlderThan(at),
    })
}

/// Parses a resourceVersion; `None` for zero in any notation, which means any state.
///
/// # Errors
/// 400 when it is malformed.
pub(crate) fn parse_version(text: &str) -> Result<Option<ResourceVersion>, Status> {
    revision(text).ok_or_else(|| {
        Status::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {}: {}",
            quoted_beginning(text),
            no_number(text)
        ))
    })
}

/// Parses a resourceVersion like kube-apiserver's cache.
///
/// # Errors
/// 500 when it is malformed.
pub(crate) fn parse_cached(text: &str) -> Result<Option<ResourceVersion>, Status> {
    let why = || format!("resourceVersion: Invalid value: {}: {}", quoted_beginning(text), no_number(text));
    revision(text).ok_or_else(|| Status::new(Reason::Unknown, why()))
}

fn revision(text: &str) -> Option<Option<ResourceVersion>> {
    number::unsigned(text, Some(10)).map(ResourceVersion::new)
}

/// Returns Go's error for text that is not a revision.
pub(crate) fn no_number(text: &str) -> String {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let why = if is_number { "value out of range" } else { "invalid syntax" };
    format!("strconv.ParseUint: parsing {}: {why}", quoted_beginning(text))
}
