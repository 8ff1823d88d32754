//! Slots of evictions from lost physical clusters, limited by a rate per physical cluster and a total rate.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use portolan_types::{ObjectKey, Uid};
use tokio::time::Instant;

/// Rates at which objects leave lost physical clusters.
#[derive(Clone, Copy, Debug)]
pub struct EvictionRates {
    /// Objects per second that leave one physical cluster; 10. At least 1 per hour.
    pub per_cluster: f64,
    /// Objects per second that leave all together; 20. At least 1 per hour.
    pub in_total: f64,
    /// Objects that leave at once, before a rate begins to hold; 10.
    pub burst: u32,
}

impl Default for EvictionRates {
    fn default() -> Self {
        Self { per_cluster: 10.0, in_total: 20.0, burst: 10 }
    }
}

/// Time after which a paused eviction asks again.
const PAUSE: Duration = Duration::from_secs(5);

/// Slots at one rate (the generic cell rate algorithm). An object gets its slot at its first request, and waits until
/// then without further requests.
#[derive(Clone, Copy, Debug)]
struct SlotRow {
    interval: Duration,
    /// Time by which a slot may be earlier than the rate alone would have it.
    tolerance: Duration,
    /// Time at which the next slot would be without a burst.
    next: Option<Instant>,
}

impl SlotRow {
    fn new(per_second: f64, burst: u32) -> Self {
        let interval = Duration::from_secs_f64(1.0 / per_second.clamp(1.0 / 3_600.0, 1_000_000.0));
        Self { interval, tolerance: interval * burst.saturating_sub(1), next: None }
    }

    fn first_free(&self, now: Instant) -> Instant {
        self.next.and_then(|next| next.checked_sub(self.tolerance)).map_or(now, |slot| slot.max(now))
    }

    fn take(&mut self, slot: Instant, now: Instant) {
        self.next = Some(self.next.map_or(now, |next| next.max(now)).max(slot) + self.interval);
    }
}

/// Slots of the objects of one lost physical cluster.
struct ClusterSlots {
    row: SlotRow,
    objects: HashMap<ObjectKey, Instant>,
}

/// Slots of all evictions.
pub(crate) struct EvictionSlots {
    rates: EvictionRates,
    total: SlotRow,
    clusters: BTreeMap<Uid, ClusterSlots>,
    /// Lost physical clusters that nothing more leaves, because most are in doubt.
    paused: BTreeSet<Uid>,
    /// Evictions from physical clusters that have returned.
    past: u64,
}

impl EvictionSlots {
    pub(crate) fn new(rates: EvictionRates) -> Self {
        let total = SlotRow::new(rates.in_total, rates.burst);
        Self { rates, total, clusters: BTreeMap::new(), paused: BTreeSet::new(), past: 0 }
    }

    /// Pauses the evictions from these physical clusters, and from no others.
    pub(crate) fn pause(&mut self, paused: impl Iterator<Item = Uid>) {
        self.paused = paused.collect();
    }

    /// Returns the time until an object may leave a lost physical cluster; zero once it is due.
    pub(crate) fn time_left(&mut self, from: &Uid, key: &ObjectKey, now: Instant) -> Duration {
        let (rates, total) = (self.rates, &mut self.total);
        let cluster = self.clusters.entry(from.clone()).or_insert_with(|| ClusterSlots {
            row: SlotRow::new(rates.per_cluster, rates.burst),
            objects: HashMap::new(),
        });
        let slot = *cluster.objects.entry(key.clone()).or_insert_with(|| {
            let slot = total.first_free(now).max(cluster.row.first_free(now));
            total.take(slot, now);
            cluster.row.take(slot, now);
            slot
        });
        let left = slot.saturating_duration_since(now);
        if self.paused.contains(from) { left.max(PAUSE) } else { left }
    }

    /// Keeps the slots of these physical clusters only: evictions from others are cancelled, and their slots are free.
    pub(crate) fn retain<'a>(&mut self, lost: impl Iterator<Item = &'a Uid>, now: Instant) {
        let lost: BTreeSet<&Uid> = lost.collect();
        let before = self.clusters.len();
        let done = |cluster: &ClusterSlots| cluster.objects.values().filter(|slot| **slot <= now).count();
        let ended = self.clusters.iter().filter(|(uid, _)| !lost.contains(uid));
        let past: usize = ended.map(|(_, cluster)| done(cluster)).sum();
        self.past = self.past.saturating_add(u64::try_from(past).unwrap_or(u64::MAX));
        self.clusters.retain(|uid, _| lost.contains(uid));
        if self.clusters.len() < before {
            let latest = self.clusters.values().flat_map(|cluster| cluster.objects.values()).max().copied();
            self.total.next = latest.map(|slot| slot.max(now) + self.total.interval);
        }
    }

    /// Returns the number of evictions since the start, and the number of waiting objects.
    pub(crate) fn counts(&self, now: Instant) -> (u64, u64) {
        let slots = || self.clusters.values().flat_map(|cluster| cluster.objects.values());
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let done = number(slots().filter(|slot| **slot <= now).count());
        (self.past.saturating_add(done), number(slots().filter(|slot| **slot > now).count()))
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, LogicalClusterId};

    use super::*;

    fn key(number: usize) -> ObjectKey {
        let resource = GroupResource::new("apps", "deployments");
        let name = format!("d{number}").parse().unwrap();
        ObjectKey::namespaced(LogicalClusterId::new(7), resource, "shop".parse().unwrap(), name)
    }

    fn uid(text: &str) -> Uid {
        text.parse().unwrap()
    }

    fn slots() -> EvictionSlots {
        EvictionSlots::new(EvictionRates { per_cluster: 10.0, in_total: 12.5, burst: 5 })
    }

    /// Returns the number of objects that may leave within `seconds`.
    fn within(slots: &mut EvictionSlots, from: &str, numbers: std::ops::Range<usize>, now: Instant) -> [usize; 3] {
        let left: Vec<_> = numbers.map(|number| slots.time_left(&uid(from), &key(number), now)).collect();
        [0.0, 1.0, 10.0].map(|second| left.iter().filter(|left| left.as_secs_f64() <= second).count())
    }

    #[test]
    fn objects_leave_in_a_burst_and_then_at_the_rate_of_their_physical_cluster() {
        let (mut slots, now) = (slots(), Instant::now());
        assert_eq!(within(&mut slots, "a", 0..1_000, now), [5, 15, 105]);
        assert_eq!(within(&mut slots, "a", 0..1_000, now), [5, 15, 105], "each has its slot, however often it asks");
        assert_eq!(slots.counts(now), (5, 995));
        let later = now + Duration::from_secs(10);
        assert_eq!(slots.time_left(&uid("a"), &key(104), later), Duration::ZERO);
        assert_eq!(slots.counts(later).0, 105);
    }

    #[test]
    fn all_together_have_a_rate_too() {
        let (mut slots, now) = (slots(), Instant::now());
        let mut left = Vec::new();
        for number in 0..500 {
            left.push(slots.time_left(&uid("a"), &key(number), now));
            left.push(slots.time_left(&uid("b"), &key(1_000 + number), now));
        }
        let within = |second: f64| left.iter().filter(|left| left.as_secs_f64() <= second).count();
        assert_eq!([within(0.0), within(1.0), within(10.0)], [5, 17, 130]);
    }

    #[test]
    fn a_pause_keeps_running_moves() {
        let (mut slots, now) = (slots(), Instant::now());
        assert_eq!(slots.time_left(&uid("a"), &key(1), now), Duration::ZERO);
        slots.pause([uid("a")].into_iter());
        assert_eq!(slots.time_left(&uid("a"), &key(1), now), PAUSE);
        assert_eq!(slots.time_left(&uid("b"), &key(2), now), Duration::ZERO);
        slots.pause(std::iter::empty());
        assert_eq!(slots.time_left(&uid("a"), &key(1), now), Duration::ZERO);
    }

    #[test]
    fn a_cancelled_read_frees_its_permit() {
        let (mut slots, now) = (slots(), Instant::now());
        within(&mut slots, "a", 0..10_000, now);
        slots.retain(std::iter::empty(), now);
        assert_eq!(slots.counts(now), (5, 0), "the first five have left");
        assert!(slots.time_left(&uid("b"), &key(1), now) <= Duration::from_millis(100));
    }
}
