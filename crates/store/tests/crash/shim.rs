//! Running a part of this test as a process of its own whose file operations are written down, by `shim.c`.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use crate::disk::{Disk, Inode, Step};

/// A child's arguments: which engine, and which folder.
pub(crate) const ENGINE: &str = "PORTOLAN_CRASH_ENGINE";
pub(crate) const DIR: &str = "PORTOLAN_CRASH_DIR";

/// The file, beside the data, in which a child says what was acknowledged.
pub(crate) const SAID: &str = "said";

/// What a child did.
pub(crate) struct Recorded {
    /// What lay there before.
    pub(crate) start: Disk,
    pub(crate) steps: Vec<Step>,
    /// After how many steps it said what.
    pub(crate) said: Vec<(usize, String)>,
    /// How many of its calls were made to fail.
    pub(crate) faults: usize,
    pub(crate) output: Output,
}

/// Builds the shim, once for all tests. Rust's own linker is called through `cc` as well.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let own = std::process::id();
        let (library, made) = (dir.join("crash-shim.so"), dir.join(format!("crash-shim.{own}.so")));
        let source = dir.join(format!("crash-shim.{own}.c"));
        std::fs::write(&source, include_str!("shim.c")).unwrap();
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let args = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o"];
        let status = Command::new(compiler).args(args).arg(&made).arg(&source).status().expect("cc runs");
        assert!(status.success(), "the shim is not accepted by the C compiler");
        std::fs::remove_file(source).unwrap();
        std::fs::rename(made, &library).unwrap();
        library
    })
}

/// A fault that the shim makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// `w` for writes and resizes, `s` for syncs, `n` for what makes or changes a name; `p` for writes that do not fail, but take
    /// half of what they are given.
    pub(crate) kind: char,
    pub(crate) at: usize,
    pub(crate) errno: i32,
    /// Else it lasts until there is a file `root` + `.room`.
    pub(crate) once: bool,
}

/// Runs the test `child` of this program on `root`, where `start` lies, and returns what it did there.
pub(crate) fn record(child: &str, engine: &str, root: &Path, start: Disk, fault: Option<Fault>) -> Recorded {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", child, "--nocapture", "--test-threads=1"]).env(ENGINE, engine).env(DIR, root);
    record_command(command, root, start, fault)
}

/// Runs a program that works on `root`, where `start` lies, and returns what it did there.
pub(crate) fn record_command(mut command: Command, root: &Path, start: Disk, fault: Option<Fault>) -> Recorded {
    let trace = root.with_extension("trace");
    command.env("LD_PRELOAD", library()).env("PORTOLAN_SHIM_ROOT", root).env("PORTOLAN_SHIM_TRACE", &trace);
    if let Some(Fault { kind, at, errno, once }) = fault {
        command.env("PORTOLAN_SHIM_FAULT", format!("{kind} {at} {errno} {}", u8::from(once)));
    }
    let output = command.output().unwrap();
    let notes = std::fs::read(&trace).unwrap();
    std::fs::remove_file(&trace).unwrap();
    let mut reader =
        Reader { now: start.clone(), inodes: HashMap::new(), steps: Vec::new(), said: Vec::new(), faults: 0 };
    let mut rest = notes.as_slice();
    while let Some(note) = Note::take(&mut rest) {
        reader.take(&note);
    }
    Recorded { start, steps: reader.steps, said: reader.said, faults: reader.faults, output }
}

/// Bytes of a note before those that it is about.
const HEAD: usize = 21;

/// A note of the shim.
struct Note<'a> {
    kind: u8,
    inode: u64,
    number: usize,
    bytes: &'a [u8],
}

impl<'a> Note<'a> {
    fn take(rest: &mut &'a [u8]) -> Option<Self> {
        let (head, _) = rest.split_first_chunk::<HEAD>()?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let len = u32::from_le_bytes(std::array::from_fn(|byte| head[17 + byte])) as usize;
        let bytes = rest.get(HEAD..HEAD + len)?;
        let note = Self { kind: head[0], inode: number(1), number: usize::try_from(number(9)).ok()?, bytes };
        *rest = &rest[HEAD + len..];
        Some(note)
    }

    fn path(&self) -> &'a str {
        std::str::from_utf8(self.bytes).unwrap()
    }
}

/// Turns notes into steps on a disk of its own numbers: the system uses those of its inodes again.
struct Reader {
    now: Disk,
    inodes: HashMap<u64, Inode>,
    steps: Vec<Step>,
    said: Vec<(usize, String)>,
    faults: usize,
}

impl Reader {
    fn take(&mut self, note: &Note<'_>) {
        match note.kind {
            b'C' | b'M' => {
                let inode = self.now.make(note.kind == b'M');
                self.inodes.insert(note.inode, inode);
                self.step(Step::Named(self.now.place(note.path()), inode));
            }
            b'O' => {
                let found = self.now.find(note.path()).unwrap_or_else(|| panic!("{} was opened", note.path()));
                self.inodes.insert(note.inode, found);
            }
            b'W' if self.is_said(note.inode) => {
                let text = std::str::from_utf8(note.bytes).unwrap();
                self.said.push((self.steps.len(), text.to_owned()));
            }
            b'W' => self.step(Step::Wrote(self.inodes[&note.inode], note.number, note.bytes.to_vec())),
            b'T' => self.step(Step::Resized(self.inodes[&note.inode], note.number)),
            b'S' => self.step(Step::Synced(self.inodes[&note.inode])),
            b'F' => self.faults += 1,
            b'U' => self.step(Step::Removed(self.now.place(note.path()))),
            b'R' => {
                let (from, to) = note.path().split_once('\0').unwrap();
                let moved = self.now.find(from).unwrap_or_else(|| panic!("{from} was renamed"));
                self.step(Step::Renamed(self.now.place(from), self.now.place(to), moved));
            }
            other => panic!("the shim notes no {:?}", char::from(other)),
        }
    }

    fn is_said(&self, inode: u64) -> bool {
        self.now.find(SAID).is_some_and(|said| self.inodes.get(&inode) == Some(&said))
    }

    fn step(&mut self, step: Step) {
        self.now.apply(&step);
        self.steps.push(step);
    }
}
