//! The protobuf form of objects: bodies that typed Go clients send, and answers to clients that ask for it.
//!
//! A body is four magic bytes, then an envelope ([`decode`] reads it, [`encode`] writes it) around the object's own
//! message. The codec walks the kind table and converts to and from JSON trees. [`decode`] returns the JSON that Go
//! would print for the same bytes, so the rest of the server need not know the encoding of a request: pointers differ
//! from zero values, `omitempty` drops zeros, lists that are always written read as `null` when absent. [`encode`]
//! writes the bytes that Go writes.
//!
//! Types without protobuf numbers (custom resources) have no protobuf form: they give [`ProtobufError::UnknownKind`],
//! which the server answers with 415 or 406.

mod envelope;
mod json;
mod message;
mod names;
mod read;
mod special;
mod write;

#[cfg(test)]
mod tests;

pub use envelope::{
    CONTENT_TYPE, ListNumbers, around_items, decode, decode_also, decode_raw, encode, is_protobuf, push_item, type_of,
    watch_frame,
};
pub(crate) use json::absent;

/// Why bytes cannot be decoded, or a tree not encoded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProtobufError {
    /// The body does not start with the magic bytes.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NotEnveloped,
    /// A length or a number reaches over the end.
    #[error("unexpected EOF")]
    Truncated,
    /// There are no bytes, or none after the magic bytes.
    #[error("empty {0}")]
    Empty(&'static str),
    /// A length is beyond 63 bits.
    #[error("proto: negative length found during unmarshaling")]
    NegativeLength,
    /// A number is longer than 64 bits.
    #[error("proto: integer overflow")]
    Overflow,
    /// The wire type of a known field does not fit its kind.
    #[error("proto: wrong wireType = {wire} for field {field}")]
    WireType {
        /// Go's name of the field.
        field: String,
        /// The wire type, as protobuf counts them.
        wire: u8,
    },
    /// A wire type that protobuf does not have.
    #[error("proto: illegal wireType {0}")]
    IllegalWireType(u8),
    /// The end of a group that has not started, in a skipped field.
    #[error("proto: unexpected end of group")]
    EndOfNoGroup,
    /// The end of a group that has not started.
    #[error("proto: {0}: wiretype end group for non-group")]
    EndGroup(
        /// The message.
        String,
    ),
    /// A field number that protobuf does not have.
    #[error("proto: {message}: illegal tag {number} (wire type {tag})")]
    IllegalTag {
        /// The message.
        message: String,
        /// Number of the field.
        number: i32,
        /// Number and wire type as they are on the wire.
        tag: u64,
    },
    /// Messages are nested too deeply.
    #[error("the protobuf message is nested too deeply")]
    TooDeep,
    /// The message would grow out of proportion in memory.
    #[error("the protobuf message holds too many messages for its size")]
    TooMany,
    /// The envelope declares a compressed object.
    #[error("unable to decode an object with content encoding {0:?}")]
    Encoded(String),
    /// No type of this kind has a protobuf form.
    #[error("no kind {kind:?} is registered with a protobuf form for version {api_version:?}")]
    UnknownKind {
        /// The apiVersion.
        api_version: String,
        /// The kind.
        kind: String,
    },
    /// A field should hold JSON text and does not.
    #[error("the field {field} does not hold valid JSON")]
    InvalidJson {
        /// The JSON name of the field.
        field: String,
    },
    /// A value has no meaning for its field, on the wire or in the tree.
    #[error("the field {field} holds an invalid value")]
    InvalidValue {
        /// The JSON name of the field.
        field: String,
    },
}
