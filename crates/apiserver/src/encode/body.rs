//! Bodies of answers.

use std::convert::Infallible;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http_body::Frame;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody, combinators::UnsyncBoxBody};

/// The body of an answer. It cannot fail: what goes wrong in the middle ends it.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A body that is there as a whole.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// No body.
pub(crate) fn empty() -> Body {
    Empty::new().boxed_unsync()
}

/// A body that comes in pieces.
pub(crate) fn stream(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Body {
    StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece)))).boxed_unsync()
}
