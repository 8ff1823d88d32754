//! Options of reads and writes, parsed once from the query.

mod list;
mod watch;
mod write;

pub(crate) use list::{ListOptions, ObjectSelection, no_number, parse_cached, parse_version, selected_name};
pub(crate) use watch::{WatchFrom, WatchOptions};
pub(crate) use write::WriteOptions;
