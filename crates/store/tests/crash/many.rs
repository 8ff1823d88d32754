//! Crashes of many steps of a run, in interleaved passes: a run that ends early has covered the whole range.

use std::{
    collections::BTreeSet,
    env,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use crate::{disk::CrashableDisk, folder, run::WorkloadRun, runtime, shim::record, verdict::CrashTally};
use portolan_types::MonotonicInstant;

/// Stride of a pass: so many passes cover every step once.
const PASSES: usize = 61;
/// Offset of the next pass.
const APART: usize = 23;
/// Offset of the next seed, in passes: a long run has about as many.
const SHIFT: usize = 20;
/// Number of images per crashed recovery.
const RECOVERIES: usize = 9;

/// Reads a number from an environment variable.
pub(crate) fn told(name: &str) -> Option<usize> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Extent of a run.
struct CrashExtent {
    /// Least number of passes.
    passes: usize,
    /// Least number of different disks.
    images: usize,
    /// Time limit.
    end: Option<MonotonicInstant>,
    /// Start of the first pass, and seed of the random parts; later passes use later seeds once every step was taken.
    seed: usize,
    workers: usize,
}

impl CrashExtent {
    fn told() -> Self {
        let (stride, images) = (told("PORTOLAN_CRASH_STRIDE"), told("PORTOLAN_CRASH_IMAGES"));
        let minutes = told("PORTOLAN_CRASH_MINUTES");
        let passes = match (stride, images, minutes) {
            (Some(stride), ..) => PASSES.div_ceil(stride.max(1)),
            (None, Some(_), _) => 0,
            (None, None, Some(_)) => usize::MAX,
            (None, None, None) => 1,
        };
        Self {
            passes,
            images: images.unwrap_or_default(),
            end: minutes.map(|minutes| MonotonicInstant::now() + Duration::from_secs(60 * minutes as u64)),
            seed: told("PORTOLAN_CRASH_SEED").unwrap_or(1),
            workers: told("PORTOLAN_CRASH_WORKERS").unwrap_or(1).max(1),
        }
    }

    fn is_long(&self) -> bool {
        self.passes != 1
    }

    fn is_out_of_time(&self) -> bool {
        self.end.is_some_and(|end| MonotonicInstant::now() >= end)
    }

    fn is_over(&self, pass: usize, tally: &CrashTally) -> bool {
        self.is_out_of_time() || pass >= self.passes && tally.images() >= self.images
    }

    fn seed(&self, pass: usize) -> u64 {
        (self.seed + pass / PASSES) as u64
    }

    /// Returns the first step of a pass.
    fn first(&self, pass: usize) -> usize {
        // Seeds begin at 1.
        let turn = self.seed.saturating_sub(1) % PASSES * SHIFT + pass % PASSES;
        turn * APART % PASSES
    }
}

/// Crashes steps of the run, and of some recoveries; returns the number of opened disks.
pub(crate) fn crash_many(engine: &'static str) -> usize {
    let (extent, run) = (CrashExtent::told(), WorkloadRun::new(engine, "child_that_works"));
    let (tally, next) = (CrashTally::new(engine, run.recorded.steps.len(), extent.is_long()), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..extent.workers {
            scope.spawn(|| runtime().block_on(work(&run, &extent, &next, &tally)));
        }
    });
    let images = tally.conclude();
    assert!(images >= extent.images || extent.is_out_of_time(), "{engine}: there are only {images} different disks");
    images
}

/// Takes passes until the extent is reached.
async fn work(run: &WorkloadRun, extent: &CrashExtent, next: &AtomicUsize, tally: &CrashTally) {
    loop {
        let pass = next.fetch_add(1, Ordering::Relaxed);
        // A pass without new disks would otherwise be followed by others forever.
        if extent.is_over(pass, tally) || !run.crash_steps(extent, pass, tally).await && pass >= PASSES {
            break;
        }
    }
}

impl WorkloadRun {
    /// Returns the disk after a number of steps of the process.
    pub(crate) fn killed(&self, at: usize) -> CrashableDisk {
        CrashableDisk::of(self.recorded.start.clone()).after(&self.recorded.steps[..at])
    }

    /// Crashes the steps of a pass, and some of the recoveries, alternating between a crash and a killed process, whose
    /// unsynced data can still be lost. Returns true if there were new disks.
    async fn crash_steps(&self, extent: &CrashExtent, pass: usize, tally: &CrashTally) -> bool {
        let (seed, first) = (extent.seed(pass), extent.first(pass));
        let (start, mut found_new) = (CrashableDisk::of(self.recorded.start.clone()), false);
        for (at, left, image) in start.crashes(&self.recorded.steps, |at| at % PASSES == first, seed) {
            if extent.is_over(pass, tally) {
                break;
            }
            tally.took(at, seed);
            if tally.is_new(&image, (self.done(at), 0)) {
                found_new = true;
                let place = format!("seed {seed}, after step {at}, {left:?} left");
                tally.note(&place, &image, self.check(at, 0, &image).await);
                let single = tally.single();
                if single.is_multiple_of(RECOVERIES) {
                    let is_killed = (single / RECOVERIES).is_multiple_of(2);
                    let first = if is_killed { self.killed(at) } else { CrashableDisk::of(image) };
                    self.crash_recovery(at, first, seed, tally).await;
                }
            }
        }
        found_new
    }

    /// Records the recovery of a disk, and crashes it.
    pub(crate) async fn crash_recovery(&self, at: usize, first: CrashableDisk, seed: u64, tally: &CrashTally) {
        let dir = folder();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let left = first.seen();
        left.write(&root);
        let recovery = record("child_that_recovers", self.engine, &root, left, None);
        let errors = String::from_utf8_lossy(&recovery.output.stderr);
        assert!(recovery.output.status.success(), "after step {at}: {errors}");
        let (steps, said) = (&recovery.steps, &recovery.said);
        let (seed, stride) = (seed.wrapping_mul(1_000_003).wrapping_add(at as u64), steps.len().div_ceil(3).max(1));
        for (twice, left, image) in first.crashes(steps, |at| at % stride == 0, seed) {
            let recovered = said.iter().filter(|(steps, _)| *steps <= twice).filter_map(|(_, text)| revision(text));
            let recovered = recovered.max().unwrap_or_default();
            if tally.is_new(&image, (self.done(at), recovered)) {
                let place = format!("seed {seed}, after step {at}, and {twice} of recovering, {left:?} left");
                tally.note(&place, &image, self.check(at, recovered, &image).await);
                tally.was_double();
            }
        }
    }
}

/// Parses the revision that a line of a child process acknowledges.
fn revision(text: &str) -> Option<u64> {
    text.strip_prefix("acknowledged ")?.parse().ok()
}

#[test]
fn another_seed_takes_other_steps_and_each_takes_all_in_the_end() {
    let extent = |seed| CrashExtent { passes: 0, images: 0, end: None, seed, workers: 1 };
    let firsts = |seed, passes| (0..passes).map(|pass| extent(seed).first(pass)).collect::<BTreeSet<_>>();
    for seed in [0, 1, 2, 11, usize::MAX] {
        assert_eq!(firsts(seed, PASSES), (0..PASSES).collect(), "seed {seed}");
        assert_eq!(extent(seed).first(PASSES), extent(seed).first(0), "seed {seed}: and begins anew");
    }
    let of_three: BTreeSet<_> = (1..=3).flat_map(|seed| firsts(seed, SHIFT)).collect();
    assert_eq!(of_three.len(), 3 * SHIFT, "long runs of three seeds have no step in common");
}
