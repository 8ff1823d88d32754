//! From answers to bytes: what form a client wants, and how it gets it.

mod accept;
mod body;
mod compress;
mod go_sort;
mod items;
mod list;
mod media_type;
mod negotiate;
mod object;
mod response;

pub use body::{Body, BodyError, full};
pub(crate) use body::{empty, held, kept, stream};
pub(crate) use compress::wants_gzip;
pub(crate) use list::{Deletions, Listing, list, packed};
pub(crate) use negotiate::{
    Accepted, Form, Many, Media, MetaVersion, OBJECT_TYPES, Offer, Shown, aggregated, negotiate, no_stream, preferred,
    route,
};
pub(crate) use object::{Shape, json_bytes, media_of, object, tree, value, wants_pretty, with_revision, yaml};
pub(crate) use response::{Written, document, finish, indented, json, own_kind, status, status_object, text, warn};
