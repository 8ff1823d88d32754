//! A disk as a crash could leave it: files, folders, and what of the steps since the last sync survives.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    hash::{Hash as _, Hasher as _},
    path::Path,
};

use crate::{digest::Digest, numbers::Numbers};

/// Bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// A file or folder, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Inode {
    number: u64,
    is_folder: bool,
}

/// The folder that is recorded.
const ROOT: Inode = Inode { number: 0, is_folder: true };

/// A name in a folder.
pub(crate) type Place = (Inode, String);

/// What a process did.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Named(Place, Inode),
    Removed(Place),
    Renamed(Place, Place, Inode),
    Resized(Inode, usize),
    Wrote(Inode, usize, Vec<u8>),
    /// What was done before to this file, or to the names in this folder, survives from now on.
    Synced(Inode),
}

impl Step {
    /// Whether it is about a name.
    pub(crate) fn is_of_a_name(&self) -> bool {
        matches!(self, Self::Named(..) | Self::Removed(_) | Self::Renamed(..))
    }

    /// Whether syncing `inode` makes this last.
    fn is_of(&self, inode: Inode) -> bool {
        match self {
            Self::Named((dir, _), _) | Self::Removed((dir, _)) => *dir == inode,
            Self::Renamed((from, _), (to, _), _) => *from == inode || *to == inode,
            Self::Resized(file, _) | Self::Wrote(file, ..) => *file == inode,
            Self::Synced(_) => false,
        }
    }
}

/// Files and folders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    files: HashMap<Inode, Vec<u8>>,
    names: BTreeMap<Place, Inode>,
    made: u64,
}

impl Disk {
    /// A file or folder that has no name yet.
    pub(crate) fn make(&mut self, is_folder: bool) -> Inode {
        self.made += 1;
        Inode { number: self.made, is_folder }
    }

    /// Makes a folder.
    pub(crate) fn add_folder(&mut self, path: &str) {
        let (place, inode) = (self.place(path), self.make(true));
        self.names.insert(place, inode);
    }

    /// Makes a file.
    pub(crate) fn add_file(&mut self, path: &str, bytes: Vec<u8>) {
        let (place, inode) = (self.place(path), self.make(false));
        self.files.insert(inode, bytes);
        self.names.insert(place, inode);
    }

    /// The folder and the name of a path.
    pub(crate) fn place(&self, path: &str) -> Place {
        match path.rsplit_once('/') {
            Some((dir, name)) => (self.find(dir).unwrap_or_else(|| panic!("no folder {dir}")), name.to_owned()),
            None => (ROOT, path.to_owned()),
        }
    }

    /// What a path names.
    pub(crate) fn find(&self, path: &str) -> Option<Inode> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(ROOT, |folder, name| self.names.get(&(folder, name.to_owned())).copied())
    }

    pub(crate) fn apply(&mut self, step: &Step) {
        self.apply_part(step, || true);
    }

    /// Does a step as far as `survives` says of each of its sectors.
    fn apply_part(&mut self, step: &Step, mut survives: impl FnMut() -> bool) {
        match step {
            Step::Named(place, inode) => {
                // Its number is taken, also when its name is lost.
                self.made = self.made.max(inode.number);
                if survives() {
                    self.names.insert(place.clone(), *inode);
                }
            }
            Step::Removed(place) if survives() => drop(self.names.remove(place)),
            Step::Renamed(from, to, inode) if survives() => {
                self.names.remove(from);
                self.names.insert(to.clone(), *inode);
            }
            Step::Resized(file, len) if survives() => self.files.entry(*file).or_default().resize(*len, 0),
            Step::Wrote(file, at, data) => {
                let bytes = self.files.entry(*file).or_default();
                for (number, sector) in sectors(*at, data) {
                    if survives() {
                        bytes.resize(bytes.len().max(number + sector.len()), 0);
                        bytes[number..number + sector.len()].copy_from_slice(sector);
                    }
                }
            }
            _ => {}
        }
    }

    /// All names and all that is in their files in one number.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = Digest::default();
        self.digest_from(ROOT, &mut hasher);
        hasher.finish()
    }

    fn digest_from(&self, folder: Inode, hasher: &mut Digest) {
        for ((_, name), inode) in self.names_in(folder) {
            (name, inode.is_folder, self.files.get(inode)).hash(hasher);
            self.digest_from(*inode, hasher);
        }
        // Where the folder ends.
        "".hash(hasher);
    }

    fn names_in(&self, folder: Inode) -> impl Iterator<Item = (&Place, &Inode)> {
        self.names.iter().filter(move |((of, _), _)| *of == folder)
    }

    /// Makes the files in an empty folder.
    pub(crate) fn write(&self, dir: &Path) {
        self.write_from(ROOT, dir);
    }

    fn write_from(&self, folder: Inode, dir: &Path) {
        for ((_, name), inode) in self.names_in(folder) {
            let path = dir.join(name);
            if inode.is_folder {
                fs::create_dir(&path).unwrap();
                self.write_from(*inode, &path);
            } else {
                fs::write(&path, self.files.get(inode).map_or(&[][..], Vec::as_slice)).unwrap();
            }
        }
    }
}

/// The parts of `data`, written at `at`, that a disk writes whole or not at all.
fn sectors(at: usize, data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let first = (SECTOR - at % SECTOR).min(data.len());
    let (head, rest) = data.split_at(first);
    let rest = rest.chunks(SECTOR).enumerate().map(move |(number, part)| (at + first + number * SECTOR, part));
    [(at, head)].into_iter().chain(rest)
}

/// What of the unsynced steps a crash leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Left {
    All,
    Nothing,
    SomeSteps,
    SomeSectors,
}

impl Left {
    const EACH: [Self; 4] = [Self::All, Self::Nothing, Self::SomeSteps, Self::SomeSectors];

    fn image(self, standing: &Standing, numbers: &mut Numbers) -> Disk {
        let mut disk = standing.synced.clone();
        for step in &standing.pending {
            let whole = numbers.below(2) == 0;
            disk.apply_part(step, || match self {
                Self::All => true,
                Self::Nothing => false,
                Self::SomeSteps => whole,
                Self::SomeSectors => numbers.below(2) == 0,
            });
        }
        disk
    }
}

/// What is on a disk for good, and what was done since then and not synced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    synced: Disk,
    pending: Vec<Step>,
}

impl Standing {
    /// A disk on which nothing is left to be synced.
    pub(crate) fn of(synced: Disk) -> Self {
        Self { synced, pending: Vec::new() }
    }

    /// What those see who come after a process that was killed: the system goes on, and forgets nothing.
    pub(crate) fn seen(&self) -> Disk {
        let mut disk = self.synced.clone();
        self.pending.iter().for_each(|step| disk.apply(step));
        disk
    }

    /// This after further steps.
    pub(crate) fn after(mut self, steps: &[Step]) -> Self {
        steps.iter().for_each(|step| self.take(step));
        self
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Synced(inode) => {
                let (lasting, rest) =
                    std::mem::take(&mut self.pending).into_iter().partition(|step| step.is_of(*inode));
                self.pending = rest;
                let lasting: Vec<Step> = lasting;
                lasting.iter().for_each(|step| self.synced.apply(step));
            }
            step => self.pending.push(step.clone()),
        }
    }

    /// The disk as a crash after each of further steps that `is_taken`, and after the last, could leave it, and after which one
    /// that is. What is left by chance depends on the seed and the step alone.
    pub(crate) fn crashes<'a>(
        mut self,
        steps: &'a [Step],
        is_taken: impl Fn(usize) -> bool + 'a,
        seed: u64,
    ) -> impl Iterator<Item = (usize, Left, Disk)> + 'a {
        steps.iter().enumerate().flat_map(move |(at, step)| {
            self.take(step);
            let taken = if is_taken(at) || at + 1 == steps.len() { &Left::EACH[..] } else { &[] };
            let mut numbers = Numbers::of((seed, at));
            let images = taken.iter().map(|left| (at + 1, *left, left.image(&self, &mut numbers)));
            images.collect::<Vec<_>>()
        })
    }
}
