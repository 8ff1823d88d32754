//! Options of watches.

use portolan_types::{ResourceVersion, Status};

use crate::{request::ResourceTarget, routing::query::Query};

use super::{
    ObjectSelection,
    list::{RawListOptions, parse_cached, refuse, watch_causes},
};

/// Start of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchFrom {
    /// The current state (or one not older than this) as ADDED events, then later events.
    Now(Option<ResourceVersion>),
    /// Events after this revision.
    After(ResourceVersion),
    /// Events from now on.
    Live,
}

/// Options of a watch.
pub(crate) struct WatchOptions {
    pub(crate) selection: ObjectSelection,
    pub(crate) from: WatchFrom,
    /// True if a bookmark marks the end of the initial state.
    pub(crate) marks_end: bool,
    pub(crate) bookmarks: bool,
    pub(crate) timeout_seconds: Option<u64>,
}

impl WatchOptions {
    /// Parses the query.
    ///
    /// # Errors
    /// As [`super::ListOptions::of`], then the errors of the resourceVersion.
    pub(crate) fn of(target: &ResourceTarget, query: &Query) -> Result<Self, Status> {
        let asked = RawListOptions::read(query)?;
        let (version, initial) = (asked.version, asked.initial);
        // kube-apiserver treats this watch as if it had requested the initial state.
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
