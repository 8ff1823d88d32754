//! Frames of the tunnel, as `proto/tunnel.proto` describes them, and the limits that both ends hold to.

mod generated;

use prost::Message as _;
use tonic::codec::{Codec as _, Streaming};
use tonic_prost::ProstCodec;

pub use generated::{End, Frame, Goodbye, GoodbyeCode, Hello, Open, Reset, Welcome, frame};

/// Version of the protocol.
pub const PROTOCOL: u32 = 1;
/// Streams that may be open at a time in one session.
pub const MAX_STREAMS: usize = 1_024;
/// Most data of one frame, in bytes.
pub const MAX_DATA: usize = 16 * 1024;
/// Largest frame, in bytes: data and its envelope, or a hello with all its servers.
pub const MAX_FRAME: usize = MAX_DATA + 4 * 1024;
/// Credit of each direction of a new stream, in bytes.
pub const INITIAL_WINDOW: u32 = 32 * 1024;
/// Largest text of a hello, a reset or a goodbye, in bytes.
pub const MAX_TEXT: usize = 256;
/// Most servers in a hello.
pub const MAX_SERVERS: usize = 64;

impl Frame {
    /// Returns a frame of stream `stream`; 0 stands for the session.
    pub fn of(epoch: u64, stream: u32, kind: frame::Kind) -> Self {
        Self { epoch, stream, kind: Some(kind) }
    }

    /// Returns the number of bytes on the wire.
    pub fn size(&self) -> usize {
        self.encoded_len()
    }
}

/// Cuts `text` to [`MAX_TEXT`] bytes, and replaces control characters: it comes from the peer and goes into logs.
pub fn printable(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        if shown.len() + character.len_utf8() > MAX_TEXT {
            break;
        }
        shown.push(if character.is_control() { ' ' } else { character });
    }
    shown
}

/// Decodes the frames of a request body.
pub(crate) fn decode_request<B>(body: B) -> Streaming<Frame>
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    Streaming::new_request(codec().decoder(), body, None, Some(MAX_FRAME))
}

/// Decodes the frames of a response body.
pub(crate) fn decode_response<B>(body: B, code: http::StatusCode) -> Streaming<Frame>
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    Streaming::new_response(codec().decoder(), body, code, None, Some(MAX_FRAME))
}

/// Returns the codec of frames.
pub(crate) fn codec() -> ProstCodec<Frame, Frame> {
    ProstCodec::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_peer_are_bounded_and_of_one_line() {
        for (text, expected) in [("plain", "plain"), ("a\nb\u{1b}[31m", "a b [31m"), ("", "")] {
            assert_eq!(printable(text), expected);
        }
        assert_eq!(printable(&"é".repeat(1_000)).len(), MAX_TEXT);
    }

    #[test]
    fn a_full_frame_fits_the_limit() {
        let data = Frame::of(u64::MAX, u32::MAX, frame::Kind::Data(vec![0; MAX_DATA].into()));
        let servers = vec!["x".repeat(36); MAX_SERVERS];
        let hello = Hello { protocol: u32::MAX, version: "v".repeat(MAX_TEXT), servers };
        for frame in [data, Frame::of(0, 0, frame::Kind::Hello(hello))] {
            assert!(frame.size() <= MAX_FRAME, "{}", frame.size());
        }
    }
}
