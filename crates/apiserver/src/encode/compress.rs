//! gzip, for large responses to clients that accept it.

use std::io::Write as _;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures::{Stream, StreamExt as _, stream};
use http::{HeaderMap, header::ACCEPT_ENCODING};

/// Largest response that is sent uncompressed, in bytes.
pub(crate) const MIN_SIZE: usize = 128 * 1024;
/// Compression level; kube-apiserver uses the same.
const LEVEL: u32 = 4;
/// Compressed bytes that are sent before the end.
const FLUSH_SIZE: usize = 32 * 1024;

/// Returns true if the client accepts gzip.
pub(crate) fn wants_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("gzip") && !parts.any(|q| q == "q=0" || q == "q=0.0")
    })
}

/// Compresses pieces as they come, so that only a few are in memory.
pub(crate) fn gzip<E>(pieces: impl Stream<Item = Result<Bytes, E>> + Unpin) -> impl Stream<Item = Result<Bytes, E>> {
    let encoder = GzEncoder::new(Vec::new(), Compression::new(LEVEL));
    stream::try_unfold(Some((encoder, pieces)), |state| async move {
        let Some((mut encoder, mut pieces)) = state else { return Ok(None) };
        while let Some(piece) = pieces.next().await {
            encoder.write_all(&piece?).expect("memory takes writes");
            if encoder.get_ref().len() >= FLUSH_SIZE {
                let ready = std::mem::take(encoder.get_mut());
                return Ok(Some((Bytes::from(ready), Some((encoder, pieces)))));
            }
        }
        Ok(Some((Bytes::from(encoder.finish().expect("memory takes writes")), None)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[tokio::test]
    async fn pieces_come_back_whole() {
        let pieces: Vec<Bytes> = (0..2000).map(|n| Bytes::from(format!("piece {} of it, {}\n", n, n * 7919))).collect();
        let stream = stream::iter(pieces.clone().into_iter().map(Ok::<_, std::convert::Infallible>));
        let packed: Vec<Bytes> = gzip(Box::pin(stream)).map(|piece| piece.unwrap()).collect().await;
        let packed = packed.concat();
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut text).unwrap();
        assert_eq!(text, pieces.concat());
    }

    #[test]
    fn only_clients_that_accept_gzip_get_it() {
        for (value, expected) in [("gzip", true), ("deflate, gzip;q=0.5", true), ("gzip;q=0", false), ("br", false)] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, value.parse().unwrap());
            assert_eq!(wants_gzip(&headers), expected, "{value}");
        }
    }
}
