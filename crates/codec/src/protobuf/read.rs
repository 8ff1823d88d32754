//! Protobuf's wire format: tags, numbers, lengths, read in the order and within the bounds of gogo's generated code,
//! which kube-apiserver reads with. Knows no types.

use super::ProtobufError;

/// The form of a value on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint,
    Fixed64,
    Bytes,
    StartGroup,
    EndGroup,
    Fixed32,
    /// Wire type that protobuf does not have.
    Other(u8),
}

impl WireType {
    fn of(tag: u64) -> Self {
        match tag & 7 {
            0 => Self::Varint,
            1 => Self::Fixed64,
            2 => Self::Bytes,
            3 => Self::StartGroup,
            4 => Self::EndGroup,
            5 => Self::Fixed32,
            other => Self::Other(other as u8),
        }
    }

    /// Returns the wire type as a number in a tag.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Varint => 0,
            Self::Fixed64 => 1,
            Self::Bytes => 2,
            Self::StartGroup => 3,
            Self::EndGroup => 4,
            Self::Fixed32 => 5,
            Self::Other(number) => number,
        }
    }
}

/// Reads a message, or an entry of a map in it, from its start to its end.
pub(super) struct WireReader<'a> {
    /// All of the message.
    data: &'a [u8],
    at: usize,
    /// Position after which no field may begin. A field that begins earlier may end after it, but not after the end of
    /// the message.
    end: usize,
}

impl<'a> WireReader<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, end: data.len() }
    }

    /// Returns the next field's number and wire type, `None` at the end. `message`: name of the message, for errors.
    pub(super) fn tag(&mut self, message: impl Fn() -> String) -> Result<Option<(u32, WireType)>, ProtobufError> {
        let Some((number, wire, tag)) = self.any_tag()? else { return Ok(None) };
        if wire == WireType::EndGroup {
            return Err(ProtobufError::EndGroup(message()));
        }
        match number {
            1.. => Ok(Some((number.unsigned_abs(), wire))),
            _ => Err(ProtobufError::IllegalTag { message: message(), number, tag }),
        }
    }

    /// Returns the next tag like [`WireReader::tag`], of any form. Go cuts the field number to 32 bits.
    pub(super) fn any_tag(&mut self) -> Result<Option<(i32, WireType, u64)>, ProtobufError> {
        if self.is_over() {
            return Ok(None);
        }
        let tag = self.varint()?;
        Ok(Some(((tag >> 3) as u32 as i32, WireType::of(tag), tag)))
    }

    /// Reads a number of up to 64 bits.
    pub(super) fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.data.get(self.at).ok_or(ProtobufError::Truncated)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Overflow)
    }

    /// Reads eight bytes, little endian.
    pub(super) fn fixed64(&mut self) -> Result<u64, ProtobufError> {
        let rest = self.data.get(self.at..).ok_or(ProtobufError::Truncated)?;
        let bytes = rest.first_chunk::<8>().ok_or(ProtobufError::Truncated)?;
        self.at += 8;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// Reads a length and that many bytes.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], ProtobufError> {
        let end = self.length()?;
        let bytes = self.data.get(self.at..end).ok_or(ProtobufError::Truncated)?;
        self.at = end;
        Ok(bytes)
    }

    /// Reads a length, and returns a reader of that many bytes of this message. This reader continues after them.
    pub(super) fn entry(&mut self) -> Result<Self, ProtobufError> {
        let end = self.length()?;
        let entry = Self { data: self.data, at: self.at, end };
        if end > self.data.len() {
            return Err(ProtobufError::Truncated);
        }
        self.at = end;
        Ok(entry)
    }

    /// Reads a length, and calls `each` until that many bytes are read; continues where the last call ended.
    pub(super) fn run(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<(), ProtobufError>,
    ) -> Result<(), ProtobufError> {
        let end = self.length()?;
        if end > self.data.len() {
            return Err(ProtobufError::Truncated);
        }
        while self.at < end {
            each(self)?;
        }
        Ok(())
    }

    /// Skips a value that is not needed.
    pub(super) fn skip(&mut self, wire: WireType) -> Result<(), ProtobufError> {
        let (mut open, mut wire) = (0usize, wire);
        loop {
            match wire {
                WireType::Varint => drop(self.varint()?),
                WireType::Fixed64 => self.at = self.at.saturating_add(8),
                WireType::Bytes => self.at = self.length()?,
                WireType::Fixed32 => self.at = self.at.saturating_add(4),
                WireType::StartGroup => open += 1,
                WireType::EndGroup => open = open.checked_sub(1).ok_or(ProtobufError::EndOfNoGroup)?,
                WireType::Other(number) => return Err(ProtobufError::IllegalWireType(number)),
            }
            if open == 0 {
                return if self.at > self.end { Err(ProtobufError::Truncated) } else { Ok(()) };
            }
            if self.at >= self.data.len() {
                return Err(ProtobufError::Truncated);
            }
            wire = WireType::of(self.varint()?);
        }
    }

    /// Returns the number of bytes that were read beyond its end.
    pub(super) fn beyond(&self) -> usize {
        self.at.saturating_sub(self.end)
    }

    fn is_over(&self) -> bool {
        self.at >= self.end
    }

    /// Reads a length, and returns the offset of its end, which may be beyond the data.
    fn length(&mut self) -> Result<usize, ProtobufError> {
        let length = i64::try_from(self.varint()?).map_err(|_| ProtobufError::NegativeLength)?;
        let at = i64::try_from(self.at).unwrap_or(i64::MAX);
        let end = at.checked_add(length).ok_or(ProtobufError::NegativeLength)?;
        Ok(usize::try_from(end).unwrap_or(usize::MAX))
    }
}
