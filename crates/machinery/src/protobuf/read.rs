//! Protobuf's wire format: tags, numbers, lengths, read in the order and within the bounds of gogo's generated code, which
//! kube-apiserver reads with. Knows no types.

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
    /// What protobuf does not have.
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

    /// As it stands in a tag.
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
pub(super) struct Reader<'a> {
    /// All of the message.
    data: &'a [u8],
    at: usize,
    /// Where no more fields begin. What begins before may end behind it, as long as it is within the message.
    end: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, end: data.len() }
    }

    /// The next field's number and wire type, `None` at the end; `message` is the name of what is read.
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

    /// As [`Reader::tag`], whatever it is. Go takes what is left of the tag for a number of 32 bits.
    pub(super) fn any_tag(&mut self) -> Result<Option<(i32, WireType, u64)>, ProtobufError> {
        if self.is_over() {
            return Ok(None);
        }
        let tag = self.varint()?;
        Ok(Some(((tag >> 3) as u32 as i32, WireType::of(tag), tag)))
    }

    /// A number of up to 64 bits.
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

    /// Eight bytes, little endian.
    pub(super) fn fixed64(&mut self) -> Result<u64, ProtobufError> {
        let rest = self.data.get(self.at..).ok_or(ProtobufError::Truncated)?;
        let bytes = rest.first_chunk::<8>().ok_or(ProtobufError::Truncated)?;
        self.at += 8;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// A length and that many bytes.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], ProtobufError> {
        let end = self.length()?;
        let bytes = self.data.get(self.at..end).ok_or(ProtobufError::Truncated)?;
        self.at = end;
        Ok(bytes)
    }

    /// A length, and what has it within this message. The reader goes on behind it.
    pub(super) fn entry(&mut self) -> Result<Self, ProtobufError> {
        let end = self.length()?;
        let entry = Self { data: self.data, at: self.at, end };
        if end > self.data.len() {
            return Err(ProtobufError::Truncated);
        }
        self.at = end;
        Ok(entry)
    }

    /// A length, and what `each` reads until there is an end of it; it goes on where that has ended.
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

    /// Goes over a value nobody asked for.
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

    /// How many bytes behind its end were read.
    pub(super) fn beyond(&self) -> usize {
        self.at.saturating_sub(self.end)
    }

    fn is_over(&self) -> bool {
        self.at >= self.end
    }

    /// A length, as the place where it ends, which may be beyond all.
    fn length(&mut self) -> Result<usize, ProtobufError> {
        let length = i64::try_from(self.varint()?).map_err(|_| ProtobufError::NegativeLength)?;
        let at = i64::try_from(self.at).unwrap_or(i64::MAX);
        let end = at.checked_add(length).ok_or(ProtobufError::NegativeLength)?;
        Ok(usize::try_from(end).unwrap_or(usize::MAX))
    }
}
