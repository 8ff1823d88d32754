//! Crashing many steps of a run, in passes that lie far apart: one that is ended early has looked everywhere.

use std::{
    collections::BTreeSet,
    env,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{disk::Standing, folder, run::Run, runtime, shim::record, verdict::Tally};

/// Steps between those of a pass: so many passes take every step once.
const PASSES: usize = 61;
/// How much further the next pass begins.
const APART: usize = 23;
/// By so many passes the next seed begins later: a long run takes about as many.
const SHIFT: usize = 20;
/// Of so many images one has its recovery crashed as well.
const RECOVERIES: usize = 9;

/// A number that this run was told.
pub(crate) fn told(name: &str) -> Option<usize> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// How many crashes there are, and when there are no more.
struct Extent {
    /// At least so many passes.
    passes: usize,
    /// And so many different disks.
    images: usize,
    /// But no longer.
    end: Option<Instant>,
    /// Says where the first pass begins, and what is left by chance; once every step was taken, that is said by the next one.
    seed: usize,
    workers: usize,
}

impl Extent {
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
            end: minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes as u64)),
            seed: told("PORTOLAN_CRASH_SEED").unwrap_or(1),
            workers: told("PORTOLAN_CRASH_WORKERS").unwrap_or(1).max(1),
        }
    }

    fn is_long(&self) -> bool {
        self.passes != 1
    }

    fn is_out_of_time(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    fn is_over(&self, pass: usize, tally: &Tally) -> bool {
        self.is_out_of_time() || pass >= self.passes && tally.images() >= self.images
    }

    fn seed(&self, pass: usize) -> u64 {
        (self.seed + pass / PASSES) as u64
    }

    /// The first step of a pass.
    fn first(&self, pass: usize) -> usize {
        // Seeds begin at 1.
        let turn = self.seed.saturating_sub(1) % PASSES * SHIFT + pass % PASSES;
        turn * APART % PASSES
    }
}

/// Crashes steps of the run, and of some recoveries, and returns how many disks were opened.
pub(crate) fn crash_many(engine: &'static str) -> usize {
    let (extent, run) = (Extent::told(), Run::new(engine, "child_that_works"));
    let (tally, next) = (Tally::new(engine, run.recorded.steps.len(), extent.is_long()), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..extent.workers {
            scope.spawn(|| runtime().block_on(work(&run, &extent, &next, &tally)));
        }
    });
    let images = tally.conclude();
    assert!(images >= extent.images || extent.is_out_of_time(), "{engine}: there are only {images} different disks");
    images
}

/// Takes passes that nobody has taken yet, as long as there are to be more.
async fn work(run: &Run, extent: &Extent, next: &AtomicUsize, tally: &Tally) {
    loop {
        let pass = next.fetch_add(1, Ordering::Relaxed);
        // A pass that finds no other disks would be followed by others for ever.
        if extent.is_over(pass, tally) || !run.crash_steps(extent, pass, tally).await && pass >= PASSES {
            break;
        }
    }
}

impl Run {
    /// How the process left the disk when it had done so many steps.
    pub(crate) fn killed(&self, at: usize) -> Standing {
        Standing::of(self.recorded.start.clone()).after(&self.recorded.steps[..at])
    }

    /// Crashes the steps of a pass, and some of the recoveries: of what a crash left, and by turns of what a process left that
    /// was only killed, so that what it had not synced can still be lost. Returns whether there were disks that are new.
    async fn crash_steps(&self, extent: &Extent, pass: usize, tally: &Tally) -> bool {
        let (seed, first) = (extent.seed(pass), extent.first(pass));
        let (start, mut found_new) = (Standing::of(self.recorded.start.clone()), false);
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
                    let first = if is_killed { self.killed(at) } else { Standing::of(image) };
                    self.crash_recovery(at, first, seed, tally).await;
                }
            }
        }
        found_new
    }

    /// Records how what a crash or the end of a process left is recovered, and crashes that.
    pub(crate) async fn crash_recovery(&self, at: usize, first: Standing, seed: u64, tally: &Tally) {
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

/// The revision that a line of a child's tells as acknowledged.
fn revision(text: &str) -> Option<u64> {
    text.strip_prefix("acknowledged ")?.parse().ok()
}

#[test]
fn another_seed_takes_other_steps_and_each_takes_all_in_the_end() {
    let extent = |seed| Extent { passes: 0, images: 0, end: None, seed, workers: 1 };
    let firsts = |seed, passes| (0..passes).map(|pass| extent(seed).first(pass)).collect::<BTreeSet<_>>();
    for seed in [0, 1, 2, 11, usize::MAX] {
        assert_eq!(firsts(seed, PASSES), (0..PASSES).collect(), "seed {seed}");
        assert_eq!(extent(seed).first(PASSES), extent(seed).first(0), "seed {seed}: and begins anew");
    }
    let of_three: BTreeSet<_> = (1..=3).flat_map(|seed| firsts(seed, SHIFT)).collect();
    assert_eq!(of_three.len(), 3 * SHIFT, "long runs of three seeds have no step in common");
}
