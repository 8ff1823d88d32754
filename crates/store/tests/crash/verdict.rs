//! Failures found on crashed disks, and the figures of a run.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use portolan_types::MonotonicInstant;

use crate::disk::DiskImage;

/// Interval of progress reports of a long run.
const PROGRESS: Duration = Duration::from_secs(15);
/// Most failing disks that are kept.
const KEPT: usize = 20;

/// Violated guarantee.
#[derive(Debug)]
pub(crate) enum CrashViolation {
    /// An acknowledged write is missing, or the store does not open.
    Lost(String),
    /// A revision is assigned twice, or out of order.
    Reused(String),
    /// The objects do not match any state that the store had.
    Torn(String),
    /// A watch from the oldest revision does not deliver each write once, in order.
    Watch(String),
}

impl fmt::Display for CrashViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(what) => write!(f, "lost: {what}"),
            Self::Reused(what) => write!(f, "reused: {what}"),
            Self::Torn(what) => write!(f, "torn: {what}"),
            Self::Watch(what) => write!(f, "watch: {what}"),
        }
    }
}

/// Figures of many crashes. A disk equal to an earlier one, with the same acknowledgements, is not opened again.
pub(crate) struct CrashTally {
    engine: &'static str,
    /// Number of crashes to run.
    steps: usize,
    /// True if progress is reported.
    is_long: bool,
    begun: MonotonicInstant,
    figures: Mutex<CrashFigures>,
}

struct CrashFigures {
    known: HashSet<(u64, (usize, u64))>,
    taken: HashSet<usize>,
    seeds: BTreeSet<u64>,
    /// Disks that were opened.
    images: usize,
    /// Disks that were crashed a second time, during their recovery.
    double: usize,
    wrong: [usize; 4],
    texts: Vec<String>,
    told: MonotonicInstant,
}

impl CrashTally {
    /// Creates the figures of a run with a number of steps.
    pub(crate) fn new(engine: &'static str, steps: usize, is_long: bool) -> Self {
        let begun = MonotonicInstant::now();
        let figures = CrashFigures {
            known: HashSet::new(),
            taken: HashSet::new(),
            seeds: BTreeSet::new(),
            images: 0,
            double: 0,
            wrong: [0; 4],
            texts: Vec::new(),
            told: begun,
        };
        Self { engine, steps, is_long, begun, figures: Mutex::new(figures) }
    }

    fn figures(&self) -> MutexGuard<'_, CrashFigures> {
        self.figures.lock()
    }

    /// Counts a crashed step, with the seed of its random parts.
    pub(crate) fn took(&self, step: usize, seed: u64) {
        let mut figures = self.figures();
        figures.taken.insert(step);
        figures.seeds.insert(seed);
    }

    /// Returns true if a disk is new; `done` is what was acknowledged, and the revision of an earlier recovery.
    pub(crate) fn is_new(&self, image: &DiskImage, done: (usize, u64)) -> bool {
        let digest = image.digest();
        self.figures().known.insert((digest, done))
    }

    /// Returns the number of opened disks.
    pub(crate) fn images(&self) -> usize {
        self.figures().images
    }

    /// Returns the number of those that were crashed once.
    pub(crate) fn single(&self) -> usize {
        let figures = self.figures();
        figures.images - figures.double
    }

    /// Counts a second crash of the last disk.
    pub(crate) fn was_double(&self) {
        self.figures().double += 1;
    }

    /// Records the result for a disk. A failure is reported at once, and its disk kept.
    pub(crate) fn note(&self, place: &str, image: &DiskImage, found: Result<(), CrashViolation>) {
        let mut figures = self.figures();
        figures.images += 1;
        if let Err(wrong) = found {
            let number = figures.texts.len();
            figures.wrong[match wrong {
                CrashViolation::Lost(_) => 0,
                CrashViolation::Reused(_) => 1,
                CrashViolation::Torn(_) => 2,
                CrashViolation::Watch(_) => 3,
            }] += 1;
            let mut text = format!("{}, {place}: {wrong}", self.engine);
            if number < KEPT {
                let name = format!("crash-{}-{}-{number}", self.engine.to_lowercase(), std::process::id());
                let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
                std::fs::create_dir_all(&kept).unwrap();
                image.write(&kept);
                text += &format!(" (kept in {})", kept.display());
            }
            say(&text);
            figures.texts.push(text);
        }
        if self.is_long && figures.told.elapsed() >= PROGRESS {
            figures.told = MonotonicInstant::now();
            let CrashFigures { taken, images, double, texts, .. } = &*figures;
            let (engine, taken, steps, wrong) = (self.engine, taken.len(), self.steps, texts.len());
            let seconds = self.begun.elapsed().as_secs();
            say(&format!(
                "{engine}: {images} images, {double} of them double, at {taken} of {steps} steps, {wrong} wrong, {seconds} s"
            ));
        }
    }

    /// Prints the figures as a row of the table of `cargo xtask torture --crash-images`.
    ///
    /// # Panics
    /// Panics on any failure.
    pub(crate) fn conclude(self) -> usize {
        let (engine, steps, seconds) = (self.engine, self.steps, self.begun.elapsed().as_secs());
        let CrashFigures { taken, seeds, images, double, wrong: [lost, reused, torn, watch], mut texts, .. } =
            self.figures.into_inner();
        let (taken, seeds) = (taken.len(), seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
        println!(
            "crash images: | {engine} | {taken} of {steps} | {images} | {double} | {lost} | {reused} | {torn} | {watch} \
             | {seeds} | {seconds} s |"
        );
        texts.truncate(KEPT);
        assert!(texts.is_empty(), "{engine}:\n{}", texts.join("\n"));
        images
    }
}

/// Prints a message while a test runs, not only at its end.
fn say(text: &str) {
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "{text}");
}
