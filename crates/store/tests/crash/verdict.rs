//! What was found on crashed disks, and the figures of a run.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    io::{self, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

use crate::disk::Disk;

/// How often a long run says how far it has come.
const PROGRESS: Duration = Duration::from_secs(15);
/// So many disks that were not as they must be are kept.
const KEPT: usize = 20;

/// What must never be.
#[derive(Debug)]
pub(crate) enum Wrong {
    /// Something that was acknowledged is not there, or the store does not open.
    Lost(String),
    /// A revision is given a second time, or out of order.
    Reused(String),
    /// Objects are there that belong to no state that the store ever had.
    Torn(String),
    /// A watch from the oldest revision does not bring each write once, in order.
    Watch(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(what) => write!(f, "lost: {what}"),
            Self::Reused(what) => write!(f, "reused: {what}"),
            Self::Torn(what) => write!(f, "torn: {what}"),
            Self::Watch(what) => write!(f, "watch: {what}"),
        }
    }
}

/// Figures of many crashes. A disk that is as one before it, with the same acknowledged, is not opened again.
pub(crate) struct Tally {
    engine: &'static str,
    /// How many there are to be crashed.
    steps: usize,
    /// Whether it says how far it has come.
    is_long: bool,
    begun: Instant,
    figures: Mutex<Figures>,
}

struct Figures {
    known: HashSet<(u64, (usize, u64))>,
    taken: HashSet<usize>,
    seeds: BTreeSet<u64>,
    /// Disks that were opened.
    images: usize,
    /// Of these, how many were crashed a second time, while they were recovered.
    double: usize,
    wrong: [usize; 4],
    texts: Vec<String>,
    told: Instant,
}

impl Tally {
    /// Of a run of so many steps.
    pub(crate) fn new(engine: &'static str, steps: usize, is_long: bool) -> Self {
        let begun = Instant::now();
        let figures = Figures {
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

    fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock()
    }

    /// A step is crashed, with random parts of a seed.
    pub(crate) fn took(&self, step: usize, seed: u64) {
        let mut figures = self.figures();
        figures.taken.insert(step);
        figures.seeds.insert(seed);
    }

    /// Whether a disk is new; `done` is how much was acknowledged, and to where it was recovered before.
    pub(crate) fn is_new(&self, image: &Disk, done: (usize, u64)) -> bool {
        let digest = image.digest();
        self.figures().known.insert((digest, done))
    }

    /// Disks that were opened.
    pub(crate) fn images(&self) -> usize {
        self.figures().images
    }

    /// Of these, those that were crashed once.
    pub(crate) fn single(&self) -> usize {
        let figures = self.figures();
        figures.images - figures.double
    }

    /// The last disk was crashed a second time.
    pub(crate) fn was_double(&self) {
        self.figures().double += 1;
    }

    /// Notes what was found on a disk. One that is not as it must be is told at once, and kept.
    pub(crate) fn note(&self, place: &str, image: &Disk, found: Result<(), Wrong>) {
        let mut figures = self.figures();
        figures.images += 1;
        if let Err(wrong) = found {
            let number = figures.texts.len();
            figures.wrong[match wrong {
                Wrong::Lost(_) => 0,
                Wrong::Reused(_) => 1,
                Wrong::Torn(_) => 2,
                Wrong::Watch(_) => 3,
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
            figures.told = Instant::now();
            let Figures { taken, images, double, texts, .. } = &*figures;
            let (engine, taken, steps, wrong) = (self.engine, taken.len(), self.steps, texts.len());
            let seconds = self.begun.elapsed().as_secs();
            say(&format!(
                "{engine}: {images} images, {double} of them double, at {taken} of {steps} steps, {wrong} wrong, {seconds} s"
            ));
        }
    }

    /// Says the figures, as a row of the table of `cargo xtask torture --crash-images`.
    ///
    /// # Panics
    /// When anything was wrong.
    pub(crate) fn conclude(self) -> usize {
        let (engine, steps, seconds) = (self.engine, self.steps, self.begun.elapsed().as_secs());
        let Figures { taken, seeds, images, double, wrong: [lost, reused, torn, watch], mut texts, .. } =
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

/// Says something while a test runs, which otherwise is heard at its end, or never.
fn say(text: &str) {
    // Nobody may listen.
    let _ = writeln!(io::stderr(), "{text}");
}
