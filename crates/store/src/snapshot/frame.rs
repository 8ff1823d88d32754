//! Frames of a snapshot: `magic | format u32 | frames`, a frame being `kind u8 | length u32 | CRC-32 of kind and
//! payload u32 | payload`, numbers little-endian. The last frame holds the SHA-256 of all bytes before it.

use std::io::{self, Read};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{FORMAT, SnapshotError, damaged};

const MAGIC: &[u8; 18] = b"portolan snapshot\n";
/// Most bytes of one frame: an object and its key fit, and a reader's memory stays bounded.
const MAX_PAYLOAD: usize = 8 << 20;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameKind {
    /// JSON: revision, time and version.
    Header = b'H',
    /// Number and name of a resource, before its first object.
    Resource = b'R',
    /// Objects in key order.
    Objects = b'O',
    /// ID of a deleted logical cluster.
    Gone = b'G',
    /// JSON: counts and SHA-256.
    End = b'E',
}

impl FrameKind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Header, Self::Resource, Self::Objects, Self::Gone, Self::End]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Encoder of frames. The encoded bytes are taken piece by piece.
pub(super) struct FrameWriter {
    made: Vec<u8>,
    hash: Sha256,
    bytes: u64,
}

impl FrameWriter {
    pub(super) fn new() -> Self {
        let mut writer = Self { made: Vec::new(), hash: Sha256::new(), bytes: 0 };
        writer.write(MAGIC);
        writer.write(&FORMAT.to_le_bytes());
        writer
    }

    pub(super) fn frame(&mut self, kind: FrameKind, payload: &[u8]) {
        let len = u32::try_from(payload.len()).expect("frames are bounded far below 4 GiB");
        self.write(&[kind as u8]);
        self.write(&len.to_le_bytes());
        self.write(&checksum(kind, payload).to_le_bytes());
        self.write(payload);
    }

    /// Returns the SHA-256 of all bytes so far, in hex.
    pub(super) fn digest(&self) -> String {
        hex(self.hash.clone())
    }

    /// Returns the number of encoded bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the bytes encoded since the last call.
    pub(super) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.made).into()
    }

    fn write(&mut self, bytes: &[u8]) {
        self.made.extend_from_slice(bytes);
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

/// Decoder of frames.
pub(super) struct FrameReader<R> {
    input: R,
    hash: Sha256,
    bytes: u64,
    /// SHA-256 of all bytes before the last frame.
    before: String,
}

impl<R: Read> FrameReader<R> {
    /// # Errors
    /// Fails if the input is not a snapshot of a known format.
    pub(super) fn new(input: R) -> Result<Self, SnapshotError> {
        let mut reader = Self { input, hash: Sha256::new(), bytes: 0, before: String::new() };
        let found = reader.take::<18>().map_err(|error| match error {
            SnapshotError::Damaged(_) => SnapshotError::NoSnapshot,
            error => error,
        })?;
        if found != *MAGIC {
            return Err(SnapshotError::NoSnapshot);
        }
        match u32::from_le_bytes(reader.take()?) {
            1..=FORMAT => Ok(reader),
            0 => Err(SnapshotError::NoSnapshot),
            found => Err(SnapshotError::NewerFormat { found }),
        }
    }

    /// Reads the next frame.
    ///
    /// # Errors
    /// `Damaged` if it was changed or is cut off.
    pub(super) fn frame(&mut self) -> Result<(FrameKind, Vec<u8>), SnapshotError> {
        self.before = hex(self.hash.clone());
        let kind = FrameKind::of(self.take::<1>()?[0]).ok_or_else(|| damaged("a frame has an unknown kind"))?;
        let len = u32::from_le_bytes(self.take()?) as usize;
        let sum = u32::from_le_bytes(self.take()?);
        if len > MAX_PAYLOAD {
            return Err(damaged("a frame is too long"));
        }
        let mut payload = vec![0; len];
        self.fill(&mut payload)?;
        if checksum(kind, &payload) == sum { Ok((kind, payload)) } else { Err(damaged("a checksum does not match")) }
    }

    /// Returns the number of bytes read, and their SHA-256 in hex.
    pub(super) fn so_far(&self) -> (u64, String) {
        (self.bytes, hex(self.hash.clone()))
    }

    /// Returns the SHA-256 of all bytes before the last frame, in hex.
    pub(super) fn digest_before(&self) -> &str {
        &self.before
    }

    /// Returns the number of bytes, at the end of the input.
    ///
    /// # Errors
    /// `Damaged` if more follows.
    pub(super) fn finish(mut self) -> Result<u64, SnapshotError> {
        match self.input.read(&mut [0])? {
            0 => Ok(self.bytes),
            _ => Err(damaged("something follows its end")),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), SnapshotError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged("it is cut off"),
            _ => error.into(),
        })?;
        self.hash.update(&*bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

fn checksum(kind: FrameKind, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind as u8]);
    hasher.update(payload);
    hasher.finalize()
}

pub(super) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
