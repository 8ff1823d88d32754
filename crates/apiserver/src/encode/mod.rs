//! Encoding of responses: content negotiation, objects, lists, bodies.

mod accept;
mod body;
mod compress;
mod items;
mod list;
mod media_type;
mod negotiate;
mod object;
mod response;

pub use body::{Body, BodyError, full};
pub(crate) use body::{empty, stream, with_charge, with_guard};
pub(crate) use compress::wants_gzip;
pub(crate) use list::{DeletedList, list, packed};
pub(crate) use negotiate::{
    FormOffer, MetaVersion, MetadataShape, NegotiatedForm, OBJECT_TYPES, ObjectForm, OfferedForms, ResponseFormat,
    aggregated, negotiate, no_stream, preferred, route,
};
pub(crate) use object::{ResponseShape, media_in, media_of, object, value, wants_pretty, with_revision, yaml};
pub(crate) use response::{StatusForm, document, finish, indented, json, own_kind, status, status_object, text, warn};
