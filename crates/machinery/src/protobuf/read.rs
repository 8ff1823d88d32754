//! Protobuf's wire format: tags, numbers, lengths. Knows no types.

use super::ProtobufError;

/// How deep groups may nest in fields that are skipped.
const MAX_GROUPS: u32 = 32;

/// The form of a value on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint,
    Fixed64,
    Bytes,
    StartGroup,
    EndGroup,
    Fixed32,
}

impl WireType {
    /// As it stands in a tag.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Varint => 0,
            Self::Fixed64 => 1,
            Self::Bytes => 2,
            Self::StartGroup => 3,
            Self::EndGroup => 4,
            Self::Fixed32 => 5,
        }
    }
}

/// Reads a message from its start to its end.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    /// The next field's number and wire type, `None` at the end.
    pub(super) fn tag(&mut self) -> Result<Option<(u32, WireType)>, ProtobufError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Bytes,
            3 => WireType::StartGroup,
            4 => WireType::EndGroup,
            5 => WireType::Fixed32,
            other => return Err(ProtobufError::IllegalWireType(other as u8)),
        };
        // Go takes what is left of the tag for a number of 32 bits.
        match (tag >> 3) as u32 as i32 {
            number @ 1.. => Ok(Some((number.unsigned_abs(), wire))),
            number => Err(ProtobufError::IllegalTag { message: String::new(), number, tag }),
        }
    }

    /// A number of up to 64 bits.
    pub(super) fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0u64;
        for (at, byte) in self.rest.iter().enumerate() {
            if at == 10 {
                return Err(ProtobufError::Overflow);
            }
            value |= u64::from(byte & 0x7f) << (7 * at).min(63);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[at + 1..];
                return Ok(value);
            }
        }
        Err(ProtobufError::Truncated)
    }

    /// Eight bytes, little endian.
    pub(super) fn fixed64(&mut self) -> Result<u64, ProtobufError> {
        let (bytes, rest) = self.rest.split_first_chunk::<8>().ok_or(ProtobufError::Truncated)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// A length and that many bytes.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], ProtobufError> {
        let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Truncated)?;
        self.take(length)
    }

    /// Goes over a value nobody asked for.
    pub(super) fn skip(&mut self, wire: WireType) -> Result<(), ProtobufError> {
        let mut open = 0;
        let mut wire = wire;
        loop {
            match wire {
                WireType::Varint => drop(self.varint()?),
                WireType::Fixed64 => drop(self.take(8)?),
                WireType::Bytes => drop(self.bytes()?),
                WireType::Fixed32 => drop(self.take(4)?),
                WireType::StartGroup if open == MAX_GROUPS => return Err(ProtobufError::TooDeep),
                WireType::StartGroup => open += 1,
                WireType::EndGroup if open == 0 => return Err(ProtobufError::IllegalWireType(wire.number())),
                WireType::EndGroup => open -= 1,
            }
            if open == 0 {
                return Ok(());
            }
            wire = self.tag()?.ok_or(ProtobufError::Truncated)?.1;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtobufError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(ProtobufError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}
