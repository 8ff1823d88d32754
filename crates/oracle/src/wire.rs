//! Wire format of protobuf. The oracle depends on this code, and on no code under test.

use super::normal::MAGIC;

/// Field of a message.
#[derive(Debug, PartialEq)]
pub(super) struct WireField<'m> {
    pub(super) number: u64,
    pub(super) content: WireContent<'m>,
}

/// Content of a field, as far as the wire format defines it.
#[derive(Debug, PartialEq)]
pub(super) enum WireContent<'m> {
    Number(u64),
    /// Four or eight bytes.
    Fixed(&'m [u8]),
    /// Length-delimited content: a string, bytes or a message.
    Long(&'m [u8]),
}

/// Returns the first field of a message and the rest.
pub(super) fn field(message: &[u8]) -> Option<(WireField<'_>, &[u8])> {
    let (key, rest) = varint(message)?;
    let (content, rest) = match key & 7 {
        0 => varint(rest).map(|(value, rest)| (WireContent::Number(value), rest))?,
        1 => rest.split_at_checked(8).map(|(value, rest)| (WireContent::Fixed(value), rest))?,
        2 => {
            let (length, rest) = varint(rest)?;
            rest.split_at_checked(usize::try_from(length).ok()?)
                .map(|(value, rest)| (WireContent::Long(value), rest))?
        }
        5 => rest.split_at_checked(4).map(|(value, rest)| (WireContent::Fixed(value), rest))?,
        _ => return None,
    };
    Some((WireField { number: key >> 3, content }, rest))
}

/// Returns all fields in order; `None` if the bytes are not a message.
pub(super) fn fields(mut message: &[u8]) -> Option<Vec<WireField<'_>>> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let (field, rest) = field(message)?;
        found.push(field);
        message = rest;
    }
    Some(found)
}

/// Returns the length-delimited fields of this number.
pub(super) fn long(message: &[u8], number: u64) -> Vec<&[u8]> {
    let all = fields(message).unwrap_or_default().into_iter().filter(|field| field.number == number);
    let long = all.filter_map(|field| match field.content {
        WireContent::Long(value) => Some(value),
        WireContent::Number(_) | WireContent::Fixed(_) => None,
    });
    long.collect()
}

/// Reads a varint; returns it and the rest.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(u32::try_from(index * 7).ok()?)?;
        if byte & 0x80 == 0 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

/// Encodes a length-delimited field.
pub(super) fn nested(number: u64, content: &[u8]) -> Vec<u8> {
    [number_of(number << 3 | 2), number_of(content.len() as u64), content.to_vec()].concat()
}

/// Encodes a varint field.
pub(super) fn counted(number: u64, value: u64) -> Vec<u8> {
    [number_of(number << 3), number_of(value)].concat()
}

fn number_of(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
    bytes
}

/// Reads an object in its envelope: its type, and the fields of its message.
pub(super) fn object(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let kind = [nested(1, api_version.as_bytes()), nested(2, kind.as_bytes())].concat();
    [MAGIC, &nested(1, &kind), &nested(2, message)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_their_order() {
        let message = [counted(1, 300), nested(17, b"a"), vec![2 << 3 | 5, 1, 2, 3, 4], nested(17, b"b")].concat();
        let expected = [
            WireField { number: 1, content: WireContent::Number(300) },
            WireField { number: 17, content: WireContent::Long(b"a") },
            WireField { number: 2, content: WireContent::Fixed(&[1, 2, 3, 4]) },
            WireField { number: 17, content: WireContent::Long(b"b") },
        ];
        assert_eq!(fields(&message).unwrap(), expected);
        assert_eq!(long(&message, 17), [b"a", b"b"]);
        assert_eq!(fields(&message[..message.len() - 1]), None, "truncated bytes are not a message");
    }
}
