//! Time and randomness come in through these, so that the whole plane can run in a seeded simulation.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};

use crate::names::Uid;

/// The wall clock. For waiting, tasks use the runtime's own time, which tests can pause.
pub trait Clock: Send + Sync {
    /// The present moment.
    fn now(&self) -> Timestamp;
}

/// A source of random bytes.
pub trait Entropy: Send + Sync {
    /// Fills `bytes` with random ones.
    fn fill(&self, bytes: &mut [u8]);
}

/// All nondeterminism that the pure parts need, as one argument.
#[derive(Clone)]
pub struct Seams {
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Random bytes.
    pub entropy: Arc<dyn Entropy>,
}

/// Kubernetes' alphabet of generated names: no vowels, so that no words come out, and nothing that looks alike.
const NAME_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

impl Seams {
    /// The real clock and the operating system's randomness.
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock), entropy: Arc::new(SystemEntropy) }
    }

    /// A clock that stands at `now` and bytes that follow from `seed`.
    pub fn seeded(seed: u64, now: Timestamp) -> Self {
        Self {
            clock: Arc::new(FixedClock(now)),
            entropy: Arc::new(SeededEntropy(Mutex::new(StdRng::seed_from_u64(seed)))),
        }
    }

    /// The present moment as `metadata.creationTimestamp` has it: RFC 3339, UTC, whole seconds.
    pub fn now_text(&self) -> String {
        seconds_text(self.clock.now())
    }

    /// A new random uid (UUID version 4).
    pub fn uid(&self) -> Uid {
        let mut b = [0; 16];
        self.entropy.fill(&mut b);
        b[6] = (b[6] & 0x0f) | 0x40;
        b[8] = (b[8] & 0x3f) | 0x80;
        let mut text = String::with_capacity(36);
        for (at, byte) in b.into_iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.extend([byte >> 4, byte & 0x0f].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
        }
        text.parse().expect("hex digits and dashes are a path segment")
    }

    /// Whether what has a chance from 0, never, to 1, always, comes true.
    pub fn comes_true(&self, chance: f64) -> bool {
        let mut bytes = [0; 4];
        self.entropy.fill(&mut bytes);
        f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0) < chance
    }

    /// `n` random characters of the alphabet that `generateName` uses.
    pub fn name_suffix(&self, n: usize) -> String {
        let mut bytes = vec![0; n];
        self.entropy.fill(&mut bytes);
        bytes.iter().map(|b| char::from(NAME_ALPHABET[usize::from(*b) % NAME_ALPHABET.len()])).collect()
    }
}

/// `at` in RFC 3339, UTC, whole seconds.
pub fn seconds_text(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `at` in RFC 3339, UTC, six decimals, as `MicroTime` has it.
pub fn micros_text(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

struct FixedClock(Timestamp);

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        self.0
    }
}

struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        rand::rng().fill_bytes(bytes);
    }
}

struct SeededEntropy(Mutex<StdRng>);

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().expect("no code panics under this lock").fill_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_version_4_and_follow_the_seed() {
        let seams = |seed| Seams::seeded(seed, Timestamp::UNIX_EPOCH);
        let uid = seams(7).uid();
        assert_eq!(uid, seams(7).uid());
        assert_ne!(uid, seams(8).uid());
        assert_eq!((uid.len(), &uid[14..15]), (36, "4"));
    }

    #[test]
    fn chances_come_true_as_often_as_they_say() {
        let seams = Seams::seeded(7, Timestamp::UNIX_EPOCH);
        for (chance, expected) in [(0.0, 0..=0), (0.02, 150..=250), (0.5, 4800..=5200), (1.0, 10_000..=10_000)] {
            let came_true = (0..10_000).filter(|_| seams.comes_true(chance)).count();
            assert!(expected.contains(&came_true), "{chance}: {came_true}");
        }
    }

    #[test]
    fn times_are_written_as_kubernetes_does() {
        let at = Timestamp::new(1_700_000_000, 123_456_789).unwrap();
        assert_eq!(seconds_text(at), "2023-11-14T22:13:20Z");
        assert_eq!(micros_text(at), "2023-11-14T22:13:20.123456Z");
    }
}
