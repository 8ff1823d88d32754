//! Options of reads and writes, parsed once from the query.

use portolan_machinery::{decode::FieldValidation, fields::FieldSelector};
use portolan_types::{GroupKind, LabelSelector, ReadAt, ResourceVersion, Status, StatusCause};

use crate::{call::Call, call::Target, query::Query};

/// Longest selector that is looked at, in bytes.
const MAX_SELECTOR: usize = 4096;
/// Longest name of a field manager.
const MAX_MANAGER: usize = 128;

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
        Ok(Self {
            dry_run: dry_run(&call.query, options_kind(call))?,
            manager: call.field_manager()?,
            validation: FieldValidation::parse(call.query.text("fieldValidation"))?,
        })
    }
}

fn options_kind(call: &Call) -> &'static str {
    match call.attributes.verb.as_str() {
        "create" => "CreateOptions",
        "patch" => "PatchOptions",
        _ => "UpdateOptions",
    }
}

fn dry_run(query: &Query, kind: &str) -> Result<bool, Status> {
    let mut any = false;
    for value in query.all("dryRun").filter(|value| !value.is_empty()) {
        if value != "All" {
            let message = format!("Unsupported value: [{value:?}]: supported values: \"All\"");
            return Err(invalid(kind, "dryRun", "FieldValueNotSupported", message));
        }
        any = true;
    }
    Ok(any)
}

/// 422 about options.
pub(crate) fn invalid(kind: &str, field: &str, reason: &str, message: impl Into<String>) -> Status {
    let kind = GroupKind { group: "meta.k8s.io".into(), kind: kind.into() };
    Status::invalid(
        &kind,
        "",
        vec![StatusCause { reason: reason.into(), message: message.into(), field: field.into() }],
    )
}

/// A field manager is up to 128 printable characters.
pub(crate) fn check_field_manager(name: &str) -> Result<(), Status> {
    let wrong = |message: String| Err(invalid("PatchOptions", "fieldManager", "FieldValueInvalid", message));
    if name.len() > MAX_MANAGER {
        return Err(invalid(
            "PatchOptions",
            "fieldManager",
            "FieldValueTooLong",
            "Too long: may not be more than 128 bytes",
        ));
    }
    match name.chars().find(|c| c.is_control()) {
        Some(_) => wrong(format!("Invalid value: {name:?}: should only contain printable characters")),
        None => Ok(()),
    }
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
        if query.get("sendInitialEvents").is_some() {
            return Err(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        let limit = query.number("limit")?.filter(|n| *n > 0).and_then(|n| usize::try_from(n).ok());
        let token = query.get("continue").filter(|t| !t.is_empty()).map(str::to_owned);
        let matching = query.text("resourceVersionMatch");
        if token.is_some() {
            if !matching.is_empty() {
                return Err(forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            if !matches!(query.text("resourceVersion"), "" | "0") {
                return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
            }
        }
        let at = read_at(query.text("resourceVersion"), matching, limit.is_some())?;
        Ok(Self { selection: Selection::of(target, query)?, at, limit, token })
    }
}

fn forbidden(field: &str, why: &str) -> Status {
    invalid("ListOptions", field, "FieldValueForbidden", format!("Forbidden: {why}"))
}

/// `resourceVersion` and `resourceVersionMatch` of a list, combined once into what they mean.
fn read_at(version: &str, matching: &str, limited: bool) -> Result<ReadAt, Status> {
    let parsed = match version {
        "" | "0" => None,
        text => Some(parse_version(text)?),
    };
    match (matching, version, parsed) {
        ("", "", _) => Ok(ReadAt::Latest),
        ("", "0", _) => Ok(ReadAt::AnyCached),
        ("", _, Some(at)) if limited => Ok(ReadAt::Exactly(at)),
        ("", _, Some(at)) => Ok(ReadAt::NotOlderThan(at)),
        ("Exact" | "NotOlderThan", "", _) => Err(forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        )),
        ("Exact", "0", _) => Err(forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        )),
        ("Exact", _, Some(at)) => Ok(ReadAt::Exactly(at)),
        ("NotOlderThan", "0", _) => Ok(ReadAt::AnyCached),
        ("NotOlderThan", _, Some(at)) => Ok(ReadAt::NotOlderThan(at)),
        (other, ..) => {
            let message = format!("Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\", \"\"");
            Err(invalid("ListOptions", "resourceVersionMatch", "FieldValueNotSupported", message))
        }
    }
}

/// A resourceVersion from a query.
///
/// # Errors
/// 400 when it is none.
pub(crate) fn parse_version(text: &str) -> Result<ResourceVersion, Status> {
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(64).collect();
        Status::bad_request(format!("Invalid value: {shown:?}: invalid resource version"))
    })
}

/// Where a watch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchFrom {
    /// The state as of now (or not older than this), as ADDED events; then what comes.
    Now(Option<ResourceVersion>),
    /// What comes after this.
    After(ResourceVersion),
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
        let initial = query.maybe_flag("sendInitialEvents");
        match (initial, matching) {
            (None, "") | (Some(_), "NotOlderThan") => {}
            (None, _) => {
                return Err(forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            (Some(_), _) => {
                return Err(forbidden(
                    "resourceVersionMatch",
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
        }
        let at = match version {
            "" | "0" => None,
            text => Some(parse_version(text)?),
        };
        let from = match (initial, at) {
            (Some(true), at) => WatchFrom::Now(at),
            (_, Some(after)) => WatchFrom::After(after),
            (_, None) => WatchFrom::Now(None),
        };
        Ok(Self {
            selection: Selection::of(target, query)?,
            from,
            marks_end: initial == Some(true) && query.flag("allowWatchBookmarks"),
            bookmarks: query.flag("allowWatchBookmarks"),
            timeout_seconds: query.number("timeoutSeconds")?.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0),
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
            ("0", "Exact", false, Err(422)),
            ("", "Exact", false, Err(422)),
            ("5", "Newer", false, Err(422)),
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
}
