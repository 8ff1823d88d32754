//! The wire form of protobuf: all that the oracle reads and writes of it stands on this, and on no code under test.

use super::normal::MAGIC;

/// A field of a message.
#[derive(Debug, PartialEq)]
pub(super) struct Field<'m> {
    pub(super) number: u64,
    pub(super) content: Content<'m>,
}

/// What a field holds, as far as the wire tells.
#[derive(Debug, PartialEq)]
pub(super) enum Content<'m> {
    Number(u64),
    /// Of four or eight bytes.
    Fixed(&'m [u8]),
    /// What has a length: a text, bytes or a message.
    Long(&'m [u8]),
}

/// The first field of a message, and what follows it.
pub(super) fn field(message: &[u8]) -> Option<(Field<'_>, &[u8])> {
    let (key, rest) = varint(message)?;
    let (content, rest) = match key & 7 {
        0 => varint(rest).map(|(value, rest)| (Content::Number(value), rest))?,
        1 => rest.split_at_checked(8).map(|(value, rest)| (Content::Fixed(value), rest))?,
        2 => {
            let (length, rest) = varint(rest)?;
            rest.split_at_checked(usize::try_from(length).ok()?).map(|(value, rest)| (Content::Long(value), rest))?
        }
        5 => rest.split_at_checked(4).map(|(value, rest)| (Content::Fixed(value), rest))?,
        _ => return None,
    };
    Some((Field { number: key >> 3, content }, rest))
}

/// All fields in their order; `None` for what is no message.
pub(super) fn fields(mut message: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let (field, rest) = field(message)?;
        found.push(field);
        message = rest;
    }
    Some(found)
}

/// The fields of this number that have a length.
pub(super) fn long(message: &[u8], number: u64) -> Vec<&[u8]> {
    let all = fields(message).unwrap_or_default().into_iter().filter(|field| field.number == number);
    let long = all.filter_map(|field| match field.content {
        Content::Long(value) => Some(value),
        Content::Number(_) | Content::Fixed(_) => None,
    });
    long.collect()
}

/// A number of variable length, and what follows it.
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

/// A field that has a length, written.
pub(super) fn nested(number: u64, content: &[u8]) -> Vec<u8> {
    [number_of(number << 3 | 2), number_of(content.len() as u64), content.to_vec()].concat()
}

/// A field that is a number, written.
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

/// An object in its envelope: what it is, and the fields of its message.
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
            Field { number: 1, content: Content::Number(300) },
            Field { number: 17, content: Content::Long(b"a") },
            Field { number: 2, content: Content::Fixed(&[1, 2, 3, 4]) },
            Field { number: 17, content: Content::Long(b"b") },
        ];
        assert_eq!(fields(&message).unwrap(), expected);
        assert_eq!(long(&message, 17), [b"a", b"b"]);
        assert_eq!(fields(&message[..message.len() - 1]), None, "what is cut off is no message");
    }
}
