//! The writing half of protobuf's wire format (`encoding/protowire`).

/// Writes a tag and a number.
pub fn number(out: &mut Vec<u8>, number: u32, value: u64) {
    varint(out, u64::from(number) << 3);
    varint(out, value);
}

/// Writes a tag, a length and bytes.
pub fn bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    head(out, number, value.len());
    out.extend_from_slice(value);
}

/// Writes the tag and the length of the following field.
pub fn head(out: &mut Vec<u8>, number: u32, length: usize) {
    varint(out, u64::from(number) << 3 | 2);
    varint(out, length as u64);
}

/// Writes a tag, a length and the message that `write` makes.
pub fn message<E>(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
    varint(out, u64::from(number) << 3 | 2);
    // One byte is kept for the length; the message moves in the rarer case that it needs more.
    let start = out.len();
    out.push(0);
    write(out)?;
    let length = out.len() - start - 1;
    if length < 0x80 {
        out[start] = length as u8;
    } else {
        let mut prefix = Vec::with_capacity(10);
        varint(&mut prefix, length as u64);
        out.splice(start..=start, prefix);
    }
    Ok(())
}

/// Writes a tag and a float of 64 bits.
pub fn double(out: &mut Vec<u8>, number: u32, value: f64) {
    varint(out, u64::from(number) << 3 | 1);
    out.extend_from_slice(&value.to_bits().to_le_bytes());
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
