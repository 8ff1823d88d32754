//! Options of reads and writes, parsed once from the query.

mod list;
mod write;

pub(crate) use list::{
    ListOptions, Selection, WatchFrom, WatchOptions, no_number, parse_cached, parse_version, selected_name,
};
pub(crate) use write::WriteOptions;
