//! Seam through which time and randomness come in, so that a simulation can seed them. `clippy.toml` refuses the
//! sources themselves everywhere else.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the seam")]

use std::{
    ops::Add,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};

use crate::names::Uid;

/// Wall clock. Tasks that wait use the runtime's time, which tests can pause.
pub trait Clock: Send + Sync {
    /// Returns the present moment.
    fn now(&self) -> Timestamp;
}

/// Source of random bytes.
pub trait Entropy: Send + Sync {
    /// Fills `bytes` with random ones.
    fn fill(&self, bytes: &mut [u8]);
}

/// Clock and randomness, as one argument.
#[derive(Clone)]
pub struct Seams {
    /// Wall clock.
    pub clock: Arc<dyn Clock>,
    /// Random bytes.
    pub entropy: Arc<dyn Entropy>,
}

/// Alphabet of Kubernetes' generated names: no vowels, so that it spells no words, and no letters that look alike.
const NAME_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

impl Seams {
    /// Returns the machine's clock and the operating system's randomness.
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock), entropy: Arc::new(SystemEntropy) }
    }

    /// Returns a clock that stands at `now` and bytes that follow from `seed`.
    pub fn seeded(seed: u64, now: Timestamp) -> Self {
        Self {
            clock: Arc::new(FixedClock(now)),
            entropy: Arc::new(SeededEntropy(Mutex::new(StdRng::seed_from_u64(seed)))),
        }
    }

    /// Returns the present moment as `metadata.creationTimestamp` is written: RFC 3339, UTC, whole seconds.
    pub fn now_text(&self) -> String {
        seconds_text(self.clock.now())
    }

    /// Returns a new random uid (UUID version 4).
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

    /// Returns true with a probability of `chance`, from 0 to 1.
    pub fn comes_true(&self, chance: f64) -> bool {
        let mut bytes = [0; 4];
        self.entropy.fill(&mut bytes);
        f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0) < chance
    }

    /// Returns `n` random characters of the alphabet that `generateName` uses.
    pub fn name_suffix(&self, n: usize) -> String {
        let mut bytes = vec![0; n];
        self.entropy.fill(&mut bytes);
        bytes.iter().map(|b| char::from(NAME_ALPHABET[usize::from(*b) % NAME_ALPHABET.len()])).collect()
    }
}

/// Moment of the machine's monotonic clock, for threads beside the runtime and for measuring work, neither of which the
/// runtime's time covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MonotonicInstant(Instant);

impl MonotonicInstant {
    /// Returns the present moment.
    pub fn now() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since this moment.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

impl Add<Duration> for MonotonicInstant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

/// Formats `at` in RFC 3339, UTC, whole seconds.
pub fn seconds_text(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats `at` in RFC 3339, UTC, six decimals, like `MicroTime`.
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
