//! Child processes of this test whose file operations are recorded by `shim.c`.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use crate::disk::{DiskImage, DiskOperation, Inode};

/// Arguments of a child process: engine and folder.
pub(crate) const ENGINE: &str = "PORTOLAN_CRASH_ENGINE";
pub(crate) const DIR: &str = "PORTOLAN_CRASH_DIR";

/// File, beside the data, in which a child records acknowledgements.
pub(crate) const SAID: &str = "said";

/// Recording of a child process.
pub(crate) struct RecordedProcess {
    /// Initial content of the disk.
    pub(crate) start: DiskImage,
    pub(crate) steps: Vec<DiskOperation>,
    /// Acknowledgements by the number of steps.
    pub(crate) said: Vec<(usize, String)>,
    /// Number of calls that were made to fail.
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

/// Fault that the shim injects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InjectedFault {
    /// Kind of call: `w` for writes and resizes, `s` for syncs, `n` for changes of names; `p` for partial writes, which
    /// succeed with half of the bytes.
    pub(crate) kind: char,
    pub(crate) at: usize,
    pub(crate) errno: i32,
    /// Without it, the fault lasts until the file `root` + `.room` exists.
    pub(crate) once: bool,
}

/// Runs the test `child` of this program on `root`, prepared with `start`; returns its recording.
pub(crate) fn record(
    child: &str,
    engine: &str,
    root: &Path,
    start: DiskImage,
    fault: Option<InjectedFault>,
) -> RecordedProcess {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", child, "--nocapture", "--test-threads=1"]).env(ENGINE, engine).env(DIR, root);
    record_command(command, root, start, fault)
}

/// Runs a program that works on `root`, prepared with `start`; returns its recording.
pub(crate) fn record_command(
    mut command: Command,
    root: &Path,
    start: DiskImage,
    fault: Option<InjectedFault>,
) -> RecordedProcess {
    let trace = root.with_extension("trace");
    command.env("LD_PRELOAD", library()).env("PORTOLAN_SHIM_ROOT", root).env("PORTOLAN_SHIM_TRACE", &trace);
    if let Some(InjectedFault { kind, at, errno, once }) = fault {
        command.env("PORTOLAN_SHIM_FAULT", format!("{kind} {at} {errno} {}", u8::from(once)));
    }
    let output = command.output().unwrap();
    let notes = std::fs::read(&trace).unwrap();
    std::fs::remove_file(&trace).unwrap();
    let mut reader =
        NoteReader { now: start.clone(), inodes: HashMap::new(), steps: Vec::new(), said: Vec::new(), faults: 0 };
    let mut rest = notes.as_slice();
    while let Some(note) = ShimNote::take(&mut rest) {
        reader.take(&note);
    }
    RecordedProcess { start, steps: reader.steps, said: reader.said, faults: reader.faults, output }
}

/// Bytes of a note before its data.
const HEAD: usize = 21;

/// Note of the shim.
struct ShimNote<'a> {
    kind: u8,
    inode: u64,
    number: usize,
    bytes: &'a [u8],
}

impl<'a> ShimNote<'a> {
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

/// Converter of notes to steps on a disk with its own inode numbers: the system reuses inodes.
struct NoteReader {
    now: DiskImage,
    inodes: HashMap<u64, Inode>,
    steps: Vec<DiskOperation>,
    said: Vec<(usize, String)>,
    faults: usize,
}

impl NoteReader {
    fn take(&mut self, note: &ShimNote<'_>) {
        match note.kind {
            b'C' | b'M' => {
                let inode = self.now.make(note.kind == b'M');
                self.inodes.insert(note.inode, inode);
                self.step(DiskOperation::Named(self.now.place(note.path()), inode));
            }
            b'O' => {
                let found = self.now.find(note.path()).unwrap_or_else(|| panic!("{} was opened", note.path()));
                self.inodes.insert(note.inode, found);
            }
            b'W' if self.is_said(note.inode) => {
                let text = std::str::from_utf8(note.bytes).unwrap();
                self.said.push((self.steps.len(), text.to_owned()));
            }
            b'W' => self.step(DiskOperation::Wrote(self.inodes[&note.inode], note.number, note.bytes.to_vec())),
            b'T' => self.step(DiskOperation::Resized(self.inodes[&note.inode], note.number)),
            b'S' => self.step(DiskOperation::Synced(self.inodes[&note.inode])),
            b'F' => self.faults += 1,
            b'U' => self.step(DiskOperation::Removed(self.now.place(note.path()))),
            b'R' => {
                let (from, to) = note.path().split_once('\0').unwrap();
                let moved = self.now.find(from).unwrap_or_else(|| panic!("{from} was renamed"));
                self.step(DiskOperation::Renamed(self.now.place(from), self.now.place(to), moved));
            }
            other => panic!("the shim notes no {:?}", char::from(other)),
        }
    }

    fn is_said(&self, inode: u64) -> bool {
        self.now.find(SAID).is_some_and(|said| self.inodes.get(&inode) == Some(&said))
    }

    fn step(&mut self, step: DiskOperation) {
        self.now.apply(&step);
        self.steps.push(step);
    }
}
