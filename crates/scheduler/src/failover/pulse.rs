//! Pulse of a physical cluster: its heartbeats, as this server sees them.

use std::time::Duration;

use portolan_types::ResourceVersion;

use super::FailoverTiming;

/// Heartbeats of one physical cluster. A new one counts as just heard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterPulse {
    /// Revision of the last heartbeat.
    revision: Option<ResourceVersion>,
    /// Answers that the worker has counted since the last silence.
    unbroken: u64,
    silent_for: Duration,
    well_for: Duration,
    is_doubted: bool,
    is_lost: bool,
    /// True once it is known whether it was lost before this server saw it.
    is_adopted: bool,
}

impl ClusterPulse {
    /// Takes over, once, the verdict of an earlier leader.
    pub(crate) fn adopt(&mut self, is_lost: bool) {
        if !std::mem::replace(&mut self.is_adopted, true) {
            self.is_lost = is_lost;
        }
    }

    /// Notes a heartbeat. One that was seen before says nothing new.
    pub(crate) fn beat(&mut self, revision: ResourceVersion, unbroken: u64) {
        if self.revision.is_some_and(|last| last >= revision) {
            return;
        }
        if unbroken <= self.unbroken {
            self.well_for = Duration::ZERO;
        }
        (self.revision, self.unbroken, self.silent_for) = (Some(revision), unbroken, Duration::ZERO);
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, passed: Duration, timing: &FailoverTiming) {
        self.silent_for = self.silent_for.saturating_add(passed);
        self.is_doubted = self.silent_for >= timing.doubted_after;
        self.well_for = self.well_for.saturating_add(passed);
        if self.is_doubted {
            self.well_for = Duration::ZERO;
        }
        if self.silent_for >= timing.lost_after {
            self.is_lost = true;
        } else if self.well_for >= timing.well_after {
            self.is_lost = false;
        }
    }

    /// Pauses the pulse of a physical cluster with a misconfigured connection, which is neither a loss nor a return.
    pub(crate) fn hold(&mut self) {
        self.well_for = Duration::ZERO;
    }

    /// Returns true if the silence lasted too long, and the physical cluster has not been well for long enough since.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Returns true while it is silent for longer than between two heartbeats.
    pub(crate) fn is_doubted(&self) -> bool {
        self.is_doubted
    }

    /// Returns true if this server has seen a heartbeat of it.
    pub(crate) fn is_heard(&self) -> bool {
        self.revision.is_some()
    }

    /// Returns the time since the last heartbeat during which this server ran.
    pub(crate) fn silence(&self) -> Duration {
        self.silent_for
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the seconds at which the state turns, for a physical cluster that answers as `answers` says of each
    /// second.
    fn turns(seconds: u64, answers: impl Fn(u64) -> bool) -> Vec<(u64, bool)> {
        let timing = FailoverTiming::default();
        let (mut pulse, mut unbroken, mut turns) = (ClusterPulse::default(), 0, Vec::new());
        for second in 1..=seconds {
            unbroken = if answers(second) { unbroken + 1 } else { 0 };
            if unbroken > 0 {
                pulse.beat(ResourceVersion::new(second).unwrap(), unbroken);
            }
            let before = pulse.is_lost();
            pulse.pass(SECOND, &timing);
            if pulse.is_lost() != before {
                turns.push((second, pulse.is_lost()));
            }
        }
        turns
    }

    #[test]
    fn a_loss_takes_a_while_and_a_return_too() {
        for (case, seconds, answers, expected) in [
            ("it answers always", 1_000, Box::new(|_| true) as Box<dyn Fn(u64) -> bool>, vec![]),
            ("it misses a few heartbeats", 1_000, Box::new(|s| !(100..138).contains(&s)), vec![]),
            (
                "it is lost, and returns",
                1_000,
                Box::new(|s| !(101..=160).contains(&s)),
                vec![(139, true), (190, false)],
            ),
            ("it never returns", 1_000, Box::new(|s| s <= 100), vec![(139, true)]),
            ("it flaps at 1 Hz", 1_000, Box::new(|s| s % 2 == 0), vec![]),
            (
                "it is lost, and flaps at 1 Hz from then on",
                1_000,
                Box::new(|s| s <= 100 || (s > 160 && s % 2 == 0)),
                vec![(139, true)],
            ),
            (
                "it flaps in its return",
                300,
                Box::new(|s| s <= 100 || (s > 160 && s != 180)),
                vec![(139, true), (210, false)],
            ),
        ] {
            assert_eq!(turns(seconds, answers), expected, "{case}");
        }
    }

    #[test]
    fn a_heartbeat_that_is_read_again_is_no_news() {
        let (mut pulse, timing) = (ClusterPulse::default(), FailoverTiming::default());
        let first = ResourceVersion::new(7).unwrap();
        pulse.beat(first, 1);
        pulse.pass(SECOND * 30, &timing);
        pulse.beat(first, 1);
        assert_eq!(pulse.silence(), SECOND * 30);
        pulse.pass(SECOND * 10, &timing);
        assert!(pulse.is_lost());
    }

    #[test]
    fn a_connection_that_cannot_be_used_is_neither_lost_nor_well() {
        let timing = FailoverTiming::default();
        let mut pulse = ClusterPulse::default();
        pulse.adopt(true);
        pulse.adopt(false);
        pulse.pass(SECOND * 20, &timing);
        (0..100).for_each(|_| pulse.hold());
        pulse.pass(SECOND * 4, &timing);
        assert!(pulse.is_lost());
        let mut pulse = ClusterPulse::default();
        (0..100).for_each(|_| pulse.hold());
        assert_eq!((pulse.is_lost(), pulse.silence()), (false, Duration::ZERO));
    }
}
