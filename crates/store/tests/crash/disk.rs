//! Disk as a crash could leave it: files, folders, and the unsynced steps that survive.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    hash::{Hash as _, Hasher as _},
    path::Path,
};

use crate::{digest::ContentDigest, numbers::NumberStream};

/// Bytes that a disk writes entirely or not at all.
const SECTOR: usize = 512;

/// File or folder, independent of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Inode {
    number: u64,
    is_folder: bool,
}

/// Recorded folder.
const ROOT: Inode = Inode { number: 0, is_folder: true };

/// Name in a folder.
pub(crate) type DirectoryEntry = (Inode, String);

/// Operation of a process.
#[derive(Clone, Debug)]
pub(crate) enum DiskOperation {
    Named(DirectoryEntry, Inode),
    Removed(DirectoryEntry),
    Renamed(DirectoryEntry, DirectoryEntry, Inode),
    Resized(Inode, usize),
    Wrote(Inode, usize, Vec<u8>),
    /// Makes earlier operations on this file, or on the names in this folder, survive.
    Synced(Inode),
}

impl DiskOperation {
    /// Returns true if the operation changes a name.
    pub(crate) fn is_of_a_name(&self) -> bool {
        matches!(self, Self::Named(..) | Self::Removed(_) | Self::Renamed(..))
    }

    /// Returns true if syncing `inode` makes the operation durable.
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
pub(crate) struct DiskImage {
    files: HashMap<Inode, Vec<u8>>,
    names: BTreeMap<DirectoryEntry, Inode>,
    made: u64,
}

impl DiskImage {
    /// Adds a file or folder without a name.
    pub(crate) fn make(&mut self, is_folder: bool) -> Inode {
        self.made += 1;
        Inode { number: self.made, is_folder }
    }

    /// Creates a folder.
    pub(crate) fn add_folder(&mut self, path: &str) {
        let (place, inode) = (self.place(path), self.make(true));
        self.names.insert(place, inode);
    }

    /// Creates a file.
    pub(crate) fn add_file(&mut self, path: &str, bytes: Vec<u8>) {
        let (place, inode) = (self.place(path), self.make(false));
        self.files.insert(inode, bytes);
        self.names.insert(place, inode);
    }

    /// Returns the folder and the name of a path.
    pub(crate) fn place(&self, path: &str) -> DirectoryEntry {
        match path.rsplit_once('/') {
            Some((dir, name)) => (self.find(dir).unwrap_or_else(|| panic!("no folder {dir}")), name.to_owned()),
            None => (ROOT, path.to_owned()),
        }
    }

    /// Resolves a path.
    pub(crate) fn find(&self, path: &str) -> Option<Inode> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(ROOT, |folder, name| self.names.get(&(folder, name.to_owned())).copied())
    }

    pub(crate) fn apply(&mut self, step: &DiskOperation) {
        self.apply_part(step, || true);
    }

    /// Applies an operation, for the sectors that `survives` accepts.
    fn apply_part(&mut self, step: &DiskOperation, mut survives: impl FnMut() -> bool) {
        match step {
            DiskOperation::Named(place, inode) => {
                // Its number is in use, even if its name is lost.
                self.made = self.made.max(inode.number);
                if survives() {
                    self.names.insert(place.clone(), *inode);
                }
            }
            DiskOperation::Removed(place) if survives() => drop(self.names.remove(place)),
            DiskOperation::Renamed(from, to, inode) if survives() => {
                self.names.remove(from);
                self.names.insert(to.clone(), *inode);
            }
            DiskOperation::Resized(file, len) if survives() => self.files.entry(*file).or_default().resize(*len, 0),
            DiskOperation::Wrote(file, at, data) => {
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

    /// Returns a digest of all names and contents.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = ContentDigest::default();
        self.digest_from(ROOT, &mut hasher);
        hasher.finish()
    }

    fn digest_from(&self, folder: Inode, hasher: &mut ContentDigest) {
        for ((_, name), inode) in self.names_in(folder) {
            (name, inode.is_folder, self.files.get(inode)).hash(hasher);
            self.digest_from(*inode, hasher);
        }
        // End of the folder.
        "".hash(hasher);
    }

    fn names_in(&self, folder: Inode) -> impl Iterator<Item = (&DirectoryEntry, &Inode)> {
        self.names.iter().filter(move |((of, _), _)| *of == folder)
    }

    /// Writes the files to an empty folder.
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

/// Splits `data`, written at `at`, into the parts that a disk writes entirely or not at all.
fn sectors(at: usize, data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let first = (SECTOR - at % SECTOR).min(data.len());
    let (head, rest) = data.split_at(first);
    let rest = rest.chunks(SECTOR).enumerate().map(move |(number, part)| (at + first + number * SECTOR, part));
    [(at, head)].into_iter().chain(rest)
}

/// Unsynced steps that survive a crash.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SurvivingOperations {
    All,
    Nothing,
    SomeSteps,
    SomeSectors,
}

impl SurvivingOperations {
    const EACH: [Self; 4] = [Self::All, Self::Nothing, Self::SomeSteps, Self::SomeSectors];

    fn image(self, standing: &CrashableDisk, numbers: &mut NumberStream) -> DiskImage {
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

/// Durable content of a disk, and the unsynced operations since.
#[derive(Clone, Debug, Default)]
pub(crate) struct CrashableDisk {
    synced: DiskImage,
    pending: Vec<DiskOperation>,
}

impl CrashableDisk {
    /// Builds a disk without unsynced operations.
    pub(crate) fn of(synced: DiskImage) -> Self {
        Self { synced, pending: Vec::new() }
    }

    /// Returns the disk that later processes see after a kill: the system continues and loses nothing.
    pub(crate) fn seen(&self) -> DiskImage {
        let mut disk = self.synced.clone();
        self.pending.iter().for_each(|step| disk.apply(step));
        disk
    }

    /// Returns the disk after further operations.
    pub(crate) fn after(mut self, steps: &[DiskOperation]) -> Self {
        steps.iter().for_each(|step| self.take(step));
        self
    }

    fn take(&mut self, step: &DiskOperation) {
        match step {
            DiskOperation::Synced(inode) => {
                let (lasting, rest) =
                    std::mem::take(&mut self.pending).into_iter().partition(|step| step.is_of(*inode));
                self.pending = rest;
                let lasting: Vec<DiskOperation> = lasting;
                lasting.iter().for_each(|step| self.synced.apply(step));
            }
            step => self.pending.push(step.clone()),
        }
    }

    /// Calls back with the disk as a crash could leave it, after each further step that `is_taken` and after the last
    /// one, with the step. Random choices depend on the seed and the step only.
    pub(crate) fn crashes<'a>(
        mut self,
        steps: &'a [DiskOperation],
        is_taken: impl Fn(usize) -> bool + 'a,
        seed: u64,
    ) -> impl Iterator<Item = (usize, SurvivingOperations, DiskImage)> + 'a {
        steps.iter().enumerate().flat_map(move |(at, step)| {
            self.take(step);
            let taken = if is_taken(at) || at + 1 == steps.len() { &SurvivingOperations::EACH[..] } else { &[] };
            let mut numbers = NumberStream::of((seed, at));
            let images = taken.iter().map(|left| (at + 1, *left, left.image(&self, &mut numbers)));
            images.collect::<Vec<_>>()
        })
    }
}
