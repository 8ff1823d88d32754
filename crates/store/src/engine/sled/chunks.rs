//! Values split into pieces of at most 4 KiB.
//!
//! The head, under the value's own key, is a tag and bytes: 0 for a whole value, 1 for the length and the first piece
//! of a longer one. Further pieces have the key 0xFF, the value's key, and their number, behind all keys of the layout.

use ::sled::{Db, IVec};
use bytes::Bytes;

use crate::engine::{KvResult, failed};

/// Bytes of a value in one piece: with its head it stays below 4 KiB.
const PIECE: usize = 4096 - 64;
const WHOLE: u8 = 0;
const IN_PIECES: u8 = 1;

/// Splits one write into writes of pieces, and removes surplus pieces of the previous value.
pub(super) fn write(
    db: &Db,
    key: &[u8],
    value: Option<&Bytes>,
    mut put: impl FnMut(Vec<u8>, Option<Vec<u8>>) -> ::sled::Result<()>,
) -> ::sled::Result<()> {
    let before = db.get(key)?.map_or(0, |head| further_pieces(&head));
    put(key.to_vec(), value.map(|value| head(value)))?;
    let pieces: Vec<&[u8]> = value.map_or(Vec::new(), |value| value.chunks(PIECE).skip(1).collect());
    for (number, piece) in pieces.iter().enumerate() {
        put(piece_key(key, number), Some(piece.to_vec()))?;
    }
    (pieces.len()..before).try_for_each(|number| put(piece_key(key, number), None))
}

/// Joins the pieces of a value.
pub(super) fn join(key: &[u8], head: &IVec, read: impl Fn(&[u8]) -> KvResult<Option<IVec>>) -> KvResult<Bytes> {
    let damaged = || failed("the store is damaged: a value is not whole");
    let (tag, rest) = head.split_first().ok_or_else(damaged)?;
    if *tag == WHOLE {
        return Ok(Bytes::copy_from_slice(rest));
    }
    let (len, first) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
    let len = u32::from_le_bytes(*len) as usize;
    // A damaged length must not allocate all memory.
    let mut value = Vec::with_capacity(len.min(1 << 20));
    value.extend_from_slice(first);
    for number in 0..further_pieces(head) {
        value.extend_from_slice(&read(&piece_key(key, number))?.ok_or_else(damaged)?);
    }
    if value.len() == len { Ok(value.into()) } else { Err(damaged()) }
}

fn head(value: &[u8]) -> Vec<u8> {
    if value.len() <= PIECE {
        return [&[WHOLE], value].concat();
    }
    let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
    [&[IN_PIECES], &len.to_le_bytes()[..], &value[..PIECE]].concat()
}

fn further_pieces(head: &IVec) -> usize {
    match head.split_first() {
        Some((&IN_PIECES, rest)) => {
            let len = rest.first_chunk::<4>().map_or(0, |len| u32::from_le_bytes(*len) as usize);
            len.div_ceil(PIECE).saturating_sub(1)
        }
        Some(_) | None => 0,
    }
}

fn piece_key(key: &[u8], number: usize) -> Vec<u8> {
    let number = u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes();
    [&[u8::MAX], key, &number].concat()
}
