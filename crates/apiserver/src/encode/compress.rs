//! gzip, for large answers to those who ask for it.

use std::io::Write as _;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, header::ACCEPT_ENCODING};

/// Answers up to this size are not worth compressing, in bytes.
pub(crate) const MIN_SIZE: usize = 128 * 1024;
/// Fast rather than small: what upstream uses.
const LEVEL: u32 = 4;

/// Whether the client takes gzip.
pub(crate) fn wants_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("gzip") && !parts.any(|q| q == "q=0" || q == "q=0.0")
    })
}

/// Compresses pieces one by one, so that never more than a piece is in memory.
pub(crate) fn gzip(pieces: impl Iterator<Item = Bytes>) -> impl Iterator<Item = Bytes> {
    let mut pieces = pieces;
    let mut encoder = Some(GzEncoder::new(Vec::new(), Compression::new(LEVEL)));
    std::iter::from_fn(move || {
        let mut running = encoder.take()?;
        for piece in pieces.by_ref() {
            running.write_all(&piece).expect("memory takes writes");
            if running.get_ref().len() >= 32 * 1024 {
                let ready = std::mem::take(running.get_mut());
                encoder = Some(running);
                return Some(Bytes::from(ready));
            }
        }
        Some(Bytes::from(running.finish().expect("memory takes writes")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn pieces_come_back_whole() {
        let pieces: Vec<Bytes> = (0..2000).map(|n| Bytes::from(format!("piece {} of it, {}\n", n, n * 7919))).collect();
        let packed: Vec<u8> = gzip(pieces.clone().into_iter()).flatten().collect();
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut text).unwrap();
        assert_eq!(text, pieces.concat());
    }

    #[test]
    fn only_those_who_ask_get_gzip() {
        for (value, expected) in [("gzip", true), ("deflate, gzip;q=0.5", true), ("gzip;q=0", false), ("br", false)] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, value.parse().unwrap());
            assert_eq!(wants_gzip(&headers), expected, "{value}");
        }
    }
}
