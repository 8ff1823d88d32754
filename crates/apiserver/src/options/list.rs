//! Options of lists, watches and deletions of collections.

use portolan_machinery::fields::{FieldSelector, FieldTerms};
use portolan_types::{
    GroupKind, LabelSelector, ReadAt, Reason, ResourceVersion, Status, StatusCause, number, quoted::go_quoted,
};

use crate::{call::Target, query::Query};

/// Longest selector that is looked at, in bytes.
const MAX_SELECTOR: usize = 4096;
/// Characters of a wrong value that are shown.
const MAX_SHOWN: usize = 64;

/// `metav1.ListOptions` as a query has them, before anybody asks whether they fit together, or the kind.
struct Asked<'q> {
    labels: LabelSelector,
    fields: FieldTerms,
    bookmarks: bool,
    version: &'q str,
    matching: &'q str,
    seconds: Option<i64>,
    limit: i64,
    token: &'q str,
    initial: Option<bool>,
}

impl<'q> Asked<'q> {
    /// Upstream reads numbers in the order of its fields, and selectors when all else has been read.
    ///
    /// # Errors
    /// 400 for numbers that are none and selectors that cannot be parsed.
    fn read(query: &'q Query) -> Result<Self, Status> {
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
            initial: query.maybe_flag("sendInitialEvents"),
        })
    }

    fn selection(self, target: &Target) -> Result<Selection, Status> {
        Ok(Selection { labels: self.labels, fields: self.fields.of(&target.kind)? })
    }
}

/// The name that a field selector leaves nothing else of: it counts as that of the request, so that rules with resource names
/// allow it. Of options that cannot be read nothing counts.
pub(crate) fn selected_name(query: &Query) -> Option<String> {
    let asked = query.get("fieldSelector").and_then(|_| Asked::read(query).ok())?;
    let is_name = |name: &&str| !matches!(*name, "" | "." | "..") && !name.contains(['/', '%']);
    asked.fields.exact("metadata.name").filter(is_name).map(str::to_owned)
}

/// What a list, watch or deletecollection selects.
#[derive(Clone)]
pub(crate) struct Selection {
    pub(crate) labels: LabelSelector,
    pub(crate) fields: FieldSelector,
}

impl Selection {
    /// Whether everything is selected.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }
}

/// Options of a list.
pub(crate) struct ListOptions {
    pub(crate) selection: Selection,
    pub(crate) limit: Option<usize>,
    /// What the list goes on with.
    pub(crate) token: Option<String>,
    /// Whether it is read in pages, which are of exactly the revision that is named.
    pub(crate) in_pages: bool,
    version: String,
    matching: String,
}

impl ListOptions {
    /// From the query. What the store is asked with is looked at when it is: [`ListOptions::state`].
    ///
    /// # Errors
    /// 400 for what cannot be read, 422 for values that mean nothing together, then 400 for fields that the kind does not have.
    pub(crate) fn of(target: &Target, query: &Query) -> Result<Self, Status> {
        let asked = Asked::read(query)?;
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

    /// The state that is listed. A list that is gone on with has one of its own, once its token has been read.
    ///
    /// # Errors
    /// 400 when the resourceVersion is none, and for one beside a token.
    pub(crate) fn state(&self) -> Result<ReadAt, Status> {
        match (&self.token, self.version.as_str()) {
            (Some(_), "" | "0") => Ok(ReadAt::Latest),
            (Some(_), _) => Err(Status::bad_request("specifying resource version is not allowed when using continue")),
            (None, version) => read_at(version, &self.matching, self.in_pages),
        }
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
    let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
    let message = format!("Unsupported value: {}: supported values: {}", shown(value), supported.join(", "));
    StatusCause { reason: "FieldValueNotSupported".into(), message, field: field.into() }
}

/// The beginning of a value, quoted.
fn shown(value: &str) -> String {
    go_quoted(&value[..value.floor_char_boundary(MAX_SHOWN)])
}

fn refuse(causes: Vec<StatusCause>) -> Result<(), Status> {
    let kind = GroupKind { group: "meta.k8s.io".into(), kind: "ListOptions".into() };
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid(&kind, "", causes)) }
}

/// `resourceVersion` and `resourceVersionMatch` of a list, checked before, combined once into what they mean.
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

/// A resourceVersion from a query; `None` for zero, however it is written: any state.
///
/// # Errors
/// 400 when it is none.
pub(crate) fn parse_version(text: &str) -> Result<Option<ResourceVersion>, Status> {
    revision(text).ok_or_else(|| {
        Status::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {}: {}",
            shown(text),
            no_number(text)
        ))
    })
}

/// As [`parse_version`], in the words of upstream's cache.
///
/// # Errors
/// 500 when it is none.
pub(crate) fn parse_cached(text: &str) -> Result<Option<ResourceVersion>, Status> {
    let why = || format!("resourceVersion: Invalid value: {}: {}", shown(text), no_number(text));
    revision(text).ok_or_else(|| Status::new(Reason::Unknown, why()))
}

fn revision(text: &str) -> Option<Option<ResourceVersion>> {
    number::unsigned(text, Some(10)).map(ResourceVersion::new)
}

/// Go's error about text that is no revision.
pub(crate) fn no_number(text: &str) -> String {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let why = if is_number { "value out of range" } else { "invalid syntax" };
    format!("strconv.ParseUint: parsing {}: {why}", shown(text))
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
    /// As [`ListOptions::of`], then those of the resourceVersion.
    pub(crate) fn of(target: &Target, query: &Query) -> Result<Self, Status> {
        let asked = Asked::read(query)?;
        let (version, initial) = (asked.version, asked.initial);
        // Upstream gives such a watch its first state as one that asks for it.
        let is_given = initial.is_none() && asked.matching.is_empty() && matches!(version, "" | "0");
        let (wanted, at_least) = if is_given { (Some(true), "NotOlderThan") } else { (initial, asked.matching) };
        refuse(watch_causes(wanted, at_least, !asked.token.is_empty()))?;
        let (bookmarks, seconds) = (asked.bookmarks, asked.seconds);
        let selection = asked.selection(target)?;
        let at = if version.is_empty() { None } else { parse_cached(version)? };
        let from = match (initial, at) {
            (Some(true), at) => WatchFrom::Now(at),
            (Some(false), None) => WatchFrom::Live,
            (_, Some(after)) => WatchFrom::After(after),
            (_, None) => WatchFrom::Now(None),
        };
        Ok(Self {
            selection,
            from,
            marks_end: wanted == Some(true) && bookmarks,
            bookmarks,
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
            ("00", "Exact", false, Ok(ReadAt::Latest)),
            ("05", "", false, Ok(ReadAt::NotOlderThan(at(5)))),
            ("+5", "", false, Err(400)),
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

    #[test]
    fn a_selected_name_counts_where_all_can_be_read() {
        for (query, expected) in [
            ("fieldSelector=metadata.name%3Da", Some("a")),
            ("fieldSelector=x%3D1,metadata.name%3D%3Da", Some("a")),
            ("fieldSelector=metadata.name!%3Da", None),
            ("fieldSelector=metadata.name%3D..", None),
            ("fieldSelector=metadata.name%3Da%2Fb", None),
            ("fieldSelector=metadata.name%3D", None),
            ("fieldSelector=metadata.name%3Da&limit=x", None),
            ("fieldSelector=metadata.name%3Da,x", None),
            ("labelSelector=metadata.name%3Da", None),
        ] {
            let query = Query::parse(Some(query)).unwrap();
            assert_eq!(selected_name(&query).as_deref(), expected, "{query:?}");
        }
    }
}
