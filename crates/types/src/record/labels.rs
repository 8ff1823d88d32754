//! The labels of an object as they lie on disk: who reads many objects needs no memory of their own for the labels of each.

use std::fmt;

use bytes::Bytes;

/// Labels, each key once. Their number, then length and text of each key and value; numbers are `u32`, little-endian.
#[derive(Clone, PartialEq, Eq)]
pub struct Labels(Bytes);

impl Labels {
    /// From pairs, in their order.
    pub fn of<'a>(pairs: impl ExactSizeIterator<Item = (&'a str, &'a str)>) -> Self {
        if pairs.len() == 0 {
            return Self::default();
        }
        let mut bytes = Vec::with_capacity(4 + 32 * pairs.len());
        push_number(&mut bytes, pairs.len());
        for text in pairs.flat_map(<[&str; 2]>::from) {
            push_number(&mut bytes, text.len());
            bytes.extend_from_slice(text.as_bytes());
        }
        Self(bytes.into())
    }

    /// Those that `bytes` begin with, sharing them; `None` where these are no labels.
    pub fn read(bytes: &Bytes) -> Option<Self> {
        Some(Self(bytes.slice(..Pairs::begin(bytes)?.measure(bytes)?)))
    }

    /// Their bytes.
    pub fn encoded(&self) -> &[u8] {
        &self.0
    }

    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(found, _)| *found == key).map(|(_, value)| value)
    }

    /// Keys and values.
    pub fn iter(&self) -> Pairs<'_> {
        Pairs::begin(&self.0).unwrap_or_default()
    }
}

impl Default for Labels {
    fn default() -> Self {
        Self(Bytes::from_static(&[0; 4]))
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Keys and values of labels that bytes begin with.
#[derive(Clone, Copy, Default)]
pub struct Pairs<'a> {
    bytes: &'a [u8],
    left: usize,
}

impl<'a> Pairs<'a> {
    /// `None` where these are no labels.
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        let pairs = Self::begin(bytes)?;
        pairs.measure(bytes).map(|_| pairs)
    }

    fn begin(mut bytes: &'a [u8]) -> Option<Self> {
        let left = number(&mut bytes)?;
        Some(Self { bytes, left })
    }

    /// How long they are, of the bytes that they begin.
    fn measure(mut self, whole: &[u8]) -> Option<usize> {
        while self.left > 0 {
            self.pair()?;
        }
        Some(whole.len() - self.bytes.len())
    }

    fn pair(&mut self) -> Option<(&'a str, &'a str)> {
        let pair = (text(&mut self.bytes)?, text(&mut self.bytes)?);
        self.left -= 1;
        Some(pair)
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 { None } else { self.pair() }
    }
}

fn number(bytes: &mut &[u8]) -> Option<usize> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    usize::try_from(u32::from_le_bytes(*number)).ok()
}

fn text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let len = number(bytes)?;
    let (text, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    std::str::from_utf8(text).ok()
}

fn push_number(out: &mut Vec<u8>, number: usize) {
    let number = u32::try_from(number).expect("objects are smaller than 4 GiB");
    out.extend_from_slice(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_share_the_bytes_that_they_are_read_from() {
        for pairs in [&[][..], &[("app", "web")], &[("a", ""), ("b", "é"), ("c/d", "x")]] {
            let labels = Labels::of(pairs.iter().copied());
            let read = Labels::read(&[labels.encoded(), b"more"].concat().into()).unwrap();
            assert_eq!((&read, read.iter().collect::<Vec<_>>()), (&labels, pairs.to_vec()));
            assert!(pairs.iter().all(|(key, value)| read.get(key) == Some(value)) && read.get("other").is_none());
            for cut in 0..labels.encoded().len() {
                assert_eq!(
                    Labels::read(&Bytes::copy_from_slice(&labels.encoded()[..cut])),
                    None,
                    "{cut} of {labels:?}"
                );
            }
        }
        assert_eq!(Labels::read(&Bytes::from_static(b"\x01\0\0\0\x01\0\0\0\xff\0\0\0\0")), None, "no text");
    }
}
