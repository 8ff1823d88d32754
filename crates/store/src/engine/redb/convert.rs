//! Conversion of files of formats before 4, which are plain redb files: they get page checksums when they are opened.
//!
//! The file is copied block by block, with checksums, to a new file beside it. redb verifies the copy with its own
//! checksums, the only ones until then, and the copy is moved in place. Until then nothing is changed. The next
//! conversion overwrites the leftover of an interrupted one.
//!
//! In a file that was not closed, redb may roll back more than an unacknowledged commit. The opener therefore checks
//! the copy before it replaces the original.

use std::{
    fs::{self, File, Permissions},
    io::{self, BufReader, ErrorKind, Read as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown},
    path::{Path, PathBuf},
    sync::Arc,
};

use ::redb::StorageBackend as _;

use super::{
    RedbKv,
    checksummed_file::{ChecksummedFile, invalid},
    file,
    layout::{BLOCK, FileStart, SEALED, SECTOR, VERSION},
    refused,
};
use crate::{
    api::{BackendError, open_progress::OpenProgress},
    engine::{
        KvResult, OrderedKv, failed, failure,
        files::{as_folder, disk_usage, free_disk_space, sync_folder},
    },
};

const OPENING: &str = "opening the store's file";
const CONVERTING: &str = "adding checksums to the store's file";
/// Bytes of redb's cache while it verifies a copy.
const CACHE: usize = 16 << 20;
/// Bytes that are read at once.
const READ: usize = 1 << 20;
/// Bytes that redb may write while it verifies a copy.
const SPARE_BYTES: u64 = 1 << 20;

/// Error of a file that a newer version wrote.
#[derive(Debug, thiserror::Error)]
#[error("the store's file has format {found}, this version knows formats up to {known}")]
pub(crate) struct NewerLayout {
    pub(crate) found: u32,
    /// Newest format that this version knows, of files or of their content.
    pub(crate) known: u32,
}

/// Error of a file that an older version wrote and that was not converted yet.
#[derive(Debug, thiserror::Error)]
#[error(
    "it is of an older format, which the next start of a server converts; where it can only be read, copy the whole directory to where it \
     can be written, open the copy once, and name the copy"
)]
pub(crate) struct OlderLayout;

/// Check of a converted store before it replaces the original.
pub(crate) type Accept<'a> = dyn Fn(&dyn OrderedKv) -> KvResult<()> + 'a;

/// Converts a file of an older format. Does nothing to any other file, or if there is none.
///
/// # Errors
/// Fails if there is not enough disk space or the file is damaged; the file is unchanged then. [`NewerLayout`] for a
/// newer one.
pub(super) fn if_older(path: &Path, opening: &OpenProgress, accept: &Accept<'_>) -> KvResult<()> {
    if is_older(path)? { convert(path, opening, accept, free_disk_space) } else { Ok(()) }
}

/// Refuses a file that would have to be converted, or that this version cannot open.
///
/// # Errors
/// [`OlderLayout`], [`NewerLayout`]; the errors of the disk.
pub(super) fn refuse_other(path: &Path) -> KvResult<()> {
    if is_older(path)? {
        Err(BackendError { context: OlderLayout.to_string(), source: Some(Box::new(OlderLayout)) })
    } else {
        Ok(())
    }
}

fn is_older(path: &Path) -> KvResult<bool> {
    match start_of(path).map_err(failure(OPENING))? {
        Some(FileStart::Redb) => Ok(true),
        Some(FileStart::Version(newer)) if newer > VERSION => {
            let newer = NewerLayout { found: newer, known: VERSION };
            Err(BackendError { context: newer.to_string(), source: Some(Box::new(newer)) })
        }
        Some(FileStart::Version(_) | FileStart::Unknown) | None => Ok(false),
    }
}

fn start_of(path: &Path) -> io::Result<Option<FileStart>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let (mut start, mut sector) = (Vec::new(), [0; SECTOR]);
    file.take(SECTOR as u64).read_to_end(&mut start)?;
    sector[..start.len()].copy_from_slice(&start);
    Ok(Some(FileStart::of(&sector)))
}

fn convert(
    path: &Path,
    opening: &OpenProgress,
    accept: &Accept<'_>,
    free: impl Fn(&Path) -> io::Result<u64>,
) -> KvResult<()> {
    let (new, folder) = (beside(path), as_folder(path.parent().unwrap_or(path)));
    remove_if_there(&new).map_err(failure(CONVERTING))?;
    refuse_without_room(path, || free(folder))?;
    tracing::info!(file = %path.display(), "adding page checksums to the store's file, which takes a while");
    let made = copy(path, &new).map_err(refused).and_then(|()| look_through(&new, opening, accept));
    let made = made.and_then(|()| hand_over(path, &new).map_err(failure(CONVERTING)));
    if made.is_err() {
        remove_if_there(&new).map_err(failure(CONVERTING))?;
        return made;
    }
    fs::rename(&new, path).and_then(|()| sync_folder(folder)).map_err(failure(CONVERTING))
}

/// Gives the copy the owner and mode of the original, and syncs it.
fn hand_over(path: &Path, new: &Path) -> io::Result<()> {
    let (was, file) = (fs::metadata(path)?, File::open(new)?);
    let is = file.metadata()?;
    if (is.uid(), is.gid()) != (was.uid(), was.gid()) {
        fchown(&file, Some(was.uid()), Some(was.gid())).map_err(|error| {
            let what = format!("the copy cannot be made that of user {} and group {}: {error}", was.uid(), was.gid());
            io::Error::new(error.kind(), what)
        })?;
    }
    // After the owner, since a change of owner clears mode bits.
    if file.metadata()?.mode() != was.mode() {
        file.set_permissions(Permissions::from_mode(was.mode() & 0o7777))?;
    }
    file.sync_all()
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn refuse_without_room(path: &Path, free: impl Fn() -> io::Result<u64>) -> KvResult<()> {
    let taken = disk_usage(path).map_err(failure(CONVERTING))?;
    let wanted = taken + taken / (BLOCK as u64 / 4) + SPARE_BYTES;
    match free() {
        Ok(free) if free < wanted => {
            let what = format!(
                "its file is of an older format and has to be copied, for which {wanted} bytes are wanted and {free} are free; nothing was \
                 changed"
            );
            Err(failure(CONVERTING)(io::Error::new(ErrorKind::StorageFull, what)))
        }
        // If the free space is unknown, the copy itself may fail.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Copies a file. Blocks that were never written stay so.
fn copy(path: &Path, new: &Path) -> io::Result<()> {
    let old = File::open(path)?;
    let len = old.metadata()?.len();
    if !len.is_multiple_of(BLOCK as u64) {
        return Err(invalid("the store's file is cut off"));
    }
    let to = ChecksummedFile::on(Arc::new(file(new).map_err(io::Error::other)?))?;
    to.set_len(len)?;
    let (mut from, mut block) = (BufReader::with_capacity(READ, old), vec![0; BLOCK]);
    for number in 0..len / BLOCK as u64 {
        from.read_exact(&mut block)?;
        match number {
            0 => to.write(0, &block[..SEALED])?,
            _ if block.iter().all(|byte| *byte == 0) => {}
            _ => to.write_block(number, &block)?,
        }
    }
    to.sync_data()
}

/// Verifies a copy: damage of the original would get a valid checksum.
fn look_through(new: &Path, opening: &OpenProgress, accept: &Accept<'_>) -> KvResult<()> {
    let copy = RedbKv::on(file(new)?, CACHE, opening)?;
    let looked = copy.verify().map_err(|error| failed(format!("{CONVERTING}: {}", error.context)));
    let looked = looked.and_then(|()| accept(&copy));
    copy.close();
    looked
}

#[cfg(test)]
impl RedbKv {
    /// Removes the checksums of a file, as if an older version had written it.
    pub(crate) fn make_older(path: &Path) {
        let bytes = fs::read(path).unwrap();
        let blocks = super::layout::redb_len(bytes.len() as u64).unwrap() / BLOCK as u64;
        let mut older: Vec<u8> = (0..blocks)
            .flat_map(|block| {
                let at = super::layout::at(block) as usize;
                bytes[at..at + BLOCK].to_vec()
            })
            .collect();
        older[SEALED..SECTOR].fill(0);
        fs::write(path, older).unwrap();
    }

    /// Marks a file as written by the next version.
    pub(crate) fn make_newer(path: &Path) {
        let mut bytes = fs::read(path).unwrap();
        bytes[..SECTOR].copy_from_slice(&FileStart::sector(VERSION + 1));
        fs::write(path, bytes).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use ::redb::Database;
    use bytes::Bytes;

    use super::{
        super::{TABLE, layout::GROUP},
        *,
    };
    use crate::engine::read;

    /// More than a group of blocks.
    const PAIRS: usize = 1500;
    const PLENTY: fn(&Path) -> io::Result<u64> = |_| Ok(u64::MAX);

    fn key(n: usize) -> Vec<u8> {
        format!("key-{n:05}").into_bytes()
    }

    fn value(n: usize) -> Bytes {
        format!("value-{n:05}-").repeat([20, 300, 1000][n % 3]).into()
    }

    /// Builds a file as an older version left it, closed or killed.
    fn old(path: &Path, is_closed: bool) {
        let database = Database::create(path).unwrap();
        for part in 0..3 {
            let write = database.begin_write().unwrap();
            let mut table = write.open_table(TABLE).unwrap();
            for n in (part..PAIRS).step_by(3) {
                table.insert(&*key(n), &*value(n)).unwrap();
            }
            drop(table);
            write.commit().unwrap();
        }
        if !is_closed {
            let killed = fs::read(path).unwrap();
            drop(database);
            fs::write(path, killed).unwrap();
        }
    }

    fn opened(path: &Path) -> KvResult<RedbKv> {
        RedbKv::open(path, 1 << 20, &OpenProgress::default())
    }

    fn is_whole(kv: &RedbKv) -> bool {
        read(kv, |view| (0..PAIRS).all(|n| view.get(&key(n)).unwrap() == Some(value(n)))).unwrap()
    }

    #[test]
    fn a_file_without_checksums_gets_them_when_it_is_opened() {
        for is_closed in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("store.redb");
            old(&path, is_closed);
            assert!(fs::metadata(&path).unwrap().len() > GROUP * BLOCK as u64);
            // Leftover of an interrupted conversion.
            fs::write(beside(&path), "half").unwrap();
            let kv = opened(&path).unwrap();
            assert!(is_whole(&kv), "closed: {is_closed}");
            kv.close();
            assert_eq!(start_of(&path).unwrap(), Some(FileStart::Version(VERSION)));
            assert!(!beside(&path).exists());
            let kv = opened(&path).unwrap();
            assert!(is_whole(&kv) && kv.verify().is_ok());
            kv.close();
        }
    }

    #[test]
    fn without_room_or_of_a_damaged_file_nothing_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        old(&path, true);
        let before = fs::read(&path).unwrap();
        let taken = disk_usage(&path).unwrap();
        let refused = convert(&path, &OpenProgress::default(), &|_| Ok(()), |_| Ok(taken)).unwrap_err();
        assert!(refused.is_full() && refused.to_string().contains(&format!("and {taken} are free")), "{refused}");
        assert!(fs::read(&path).unwrap() == before && !beside(&path).exists());

        let mut damaged = before.clone();
        let places = (0..before.len()).filter(|at| before[*at..].starts_with(b"value-00007"));
        places.for_each(|at| damaged[at] ^= 1);
        fs::write(&path, &damaged).unwrap();
        let refused = convert(&path, &OpenProgress::default(), &|_| Ok(()), PLENTY).unwrap_err();
        assert!(!refused.is_full() && refused.source.is_none(), "it is damage: {refused}");
        assert!(fs::read(&path).unwrap() == damaged && !beside(&path).exists());

        fs::write(&path, &before[..before.len() - 100]).unwrap();
        let refused = convert(&path, &OpenProgress::default(), &|_| Ok(()), PLENTY).unwrap_err();
        assert!(refused.to_string().contains("cut off"), "{refused}");
    }

    #[test]
    fn a_newer_format_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        let bytes = [&FileStart::sector(VERSION + 1)[..], &[7; 100_000]].concat();
        fs::write(&path, &bytes).unwrap();
        let refused = opened(&path).map(drop).unwrap_err();
        let newer = refused.source.unwrap().downcast::<NewerLayout>().unwrap();
        assert_eq!((newer.found, fs::read(&path).unwrap()), (VERSION + 1, bytes));
    }

    #[test]
    fn the_file_keeps_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        let is_of = |path: &Path| fs::metadata(path).map(|is| (is.uid(), is.gid(), is.mode() & 0o7777)).unwrap();
        old(&path, true);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        // Only root may give a file away.
        let is_given = fchown(File::open(&path).unwrap(), Some(12_345), Some(23_456)).is_ok();
        let before = is_of(&path);
        assert!(before.2 == 0o640 && (!is_given || (before.0, before.1) == (12_345, 23_456)), "{before:?}");
        opened(&path).unwrap().close();
        assert_eq!(start_of(&path).unwrap(), Some(FileStart::Version(VERSION)));
        assert_eq!(is_of(&path), before);
    }

    #[test]
    fn a_rejected_copy_keeps_the_original() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        old(&path, false);
        let before = fs::read(&path).unwrap();
        let lacks = |kv: &dyn OrderedKv| {
            assert!(read(kv, |view| view.get(&key(7)).unwrap() == Some(value(7))).unwrap());
            Err(failed("the last commit is missing"))
        };
        let refused = RedbKv::open_if(&path, 1 << 20, &OpenProgress::default(), &lacks).map(drop).unwrap_err();
        assert_eq!(refused.context, "the last commit is missing");
        assert!(fs::read(&path).unwrap() == before && !beside(&path).exists());
    }

    #[test]
    fn a_read_only_open_names_the_older_format() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        refuse_other(&path).unwrap();
        old(&path, true);
        assert!(refuse_other(&path).unwrap_err().source.unwrap().is::<OlderLayout>());
        opened(&path).unwrap().close();
        refuse_other(&path).unwrap();
        fs::write(&path, FileStart::sector(VERSION + 1)).unwrap();
        assert!(refuse_other(&path).unwrap_err().source.unwrap().is::<NewerLayout>());
        fs::write(&path, "no store at all").unwrap();
        refuse_other(&path).unwrap();
    }
}
