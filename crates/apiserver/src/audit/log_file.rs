//! Audit log file with rotation by size, and removal of old files by number and age, as in kube-apiserver.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::{Timestamp, tz::TimeZone};
use portolan_types::Seams;

use crate::config::AuditLogConfig;

/// Time in the name of a rotated file.
const STAMP: &str = "%Y-%m-%dT%H-%M-%S.%3f";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MIB: u64 = 1 << 20;
/// Size from which a file is rotated unless configured, as in kube-apiserver.
const DEFAULT_MIB: u64 = 100;

/// Open log.
pub(super) struct AuditLog {
    config: AuditLogConfig,
    seams: Seams,
    out: LogOutput,
}

enum LogOutput {
    Standard,
    File { file: BufWriter<File>, bytes: u64 },
}

impl AuditLog {
    /// Opens the log; an existing file is continued.
    ///
    /// # Errors
    /// A file that cannot be created.
    pub(super) fn open(config: &AuditLogConfig, seams: Seams) -> io::Result<Self> {
        let out = if config.path == Path::new("-") { LogOutput::Standard } else { open_file(&config.path)? };
        Ok(Self { config: config.clone(), seams, out })
    }

    /// Writes a line, which ends with a line feed.
    ///
    /// # Errors
    /// A failed write or rotation. The next line is tried again.
    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let length = line.len() as u64;
        if let LogOutput::File { bytes, .. } = &self.out
            && *bytes > 0
            && *bytes + length > self.limit()
        {
            self.rotate()?;
        }
        match &mut self.out {
            LogOutput::Standard => io::stdout().lock().write_all(line),
            LogOutput::File { file, bytes } => {
                *bytes += length;
                file.write_all(line)
            }
        }
    }

    /// Passes buffered lines to the system.
    ///
    /// # Errors
    /// A failed write.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.out {
            LogOutput::Standard => io::stdout().lock().flush(),
            LogOutput::File { file, .. } => file.flush(),
        }
    }

    fn limit(&self) -> u64 {
        let mib = if self.config.max_size_mib == 0 { DEFAULT_MIB } else { self.config.max_size_mib };
        mib.saturating_mul(MIB)
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.flush()?;
        let path = &self.config.path;
        match fs::rename(path, free_name(path, self.seams.clock.now())) {
            // Another program, such as logrotate, has moved the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        self.out = open_file(path)?;
        self.remove_old();
        Ok(())
    }

    /// Removes rotated files beyond the configured number and age. One that cannot be removed is tried again after the
    /// next rotation.
    fn remove_old(&self) {
        let mut rotated = rotated_files(&self.config.path);
        rotated.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let oldest = match self.config.max_age_days {
            0 => Timestamp::MIN,
            days => {
                let age = DAY.saturating_mul(u32::try_from(days).unwrap_or(u32::MAX));
                self.seams.clock.now().checked_sub(age).unwrap_or(Timestamp::MIN)
            }
        };
        let kept = if self.config.max_backups == 0 { usize::MAX } else { self.config.max_backups };
        for (index, (at, file)) in rotated.into_iter().enumerate() {
            if index < kept && at >= oldest {
                continue;
            }
            if let Err(error) = fs::remove_file(&file) {
                tracing::warn!(file = %file.display(), %error, "an old audit log cannot be removed");
            }
        }
    }
}

fn open_file(path: &Path) -> io::Result<LogOutput> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let bytes = file.metadata()?.len();
    Ok(LogOutput::File { file: BufWriter::new(file), bytes })
}

/// Splits a file name into what comes before and after the time of a rotated one.
fn name_parts(path: &Path) -> (String, String) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let extension = path.extension().map(|text| format!(".{}", text.to_string_lossy())).unwrap_or_default();
    (format!("{stem}-"), extension)
}

/// Returns the name of a rotated file that does not exist yet.
fn free_name(path: &Path, now: Timestamp) -> PathBuf {
    let (prefix, suffix) = name_parts(path);
    let mut at = now;
    loop {
        let candidate = path.with_file_name(format!("{prefix}{}{suffix}", at.strftime(STAMP)));
        match at.checked_add(Duration::from_millis(1)) {
            Ok(next) if candidate.exists() => at = next,
            Ok(_) | Err(_) => return candidate,
        }
    }
}

/// Returns the rotated files of a log with their times.
fn rotated_files(path: &Path) -> Vec<(Timestamp, PathBuf)> {
    let (prefix, suffix) = name_parts(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let rotated = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let stamp = name.strip_prefix(&prefix)?.strip_suffix(&suffix)?;
        let at = jiff::civil::DateTime::strptime(STAMP, stamp).ok()?;
        Some((at.to_zoned(TimeZone::UTC).ok()?.timestamp(), entry.path()))
    });
    rotated.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_rotated_by_size_and_old_ones_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let now: Timestamp = "2026-11-27T10:00:00Z".parse().unwrap();
        for (name, _) in [("audit-2026-11-01T00-00-00.000.log", ()), ("audit-notes.log", ()), ("other.log", ())] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let config = AuditLogConfig { path: path.clone(), max_age_days: 7, max_backups: 2, max_size_mib: 1 };
        let mut log = AuditLog::open(&config, Seams::seeded(1, now)).unwrap();
        let line = [vec![b'x'; 700 * 1024], b"\n".to_vec()].concat();
        for _ in 0..4 {
            log.write(&line).unwrap();
        }
        log.flush().unwrap();
        assert_eq!(
            names(folder.path()),
            [
                "audit-2026-11-27T10-00-00.001.log",
                "audit-2026-11-27T10-00-00.002.log",
                "audit-notes.log",
                "audit.log",
                "other.log"
            ],
            "the oldest ones are gone, by number and by age; foreign files stay"
        );
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(log);
        let mut again = AuditLog::open(&config, Seams::seeded(1, now)).unwrap();
        again.write(b"more\n").unwrap();
        again.flush().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len() as usize, line.len() + 5, "an existing file is continued");
    }

    #[test]
    fn a_file_that_was_moved_away_is_begun_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("audit.log"), folder.path().join("audit.log.1"));
        let config = AuditLogConfig { path: path.clone(), max_age_days: 0, max_backups: 0, max_size_mib: 1 };
        let mut log = AuditLog::open(&config, Seams::system()).unwrap();
        let line = vec![b'x'; 700 * 1024];
        log.write(&line).unwrap();
        fs::rename(&path, &moved).unwrap();
        log.write(&line).unwrap();
        log.flush().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len() as usize, line.len());
        assert_eq!(fs::metadata(&moved).unwrap().len() as usize, line.len());
    }

    #[test]
    fn without_limits_every_file_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let config = AuditLogConfig { path: folder.path().join("a"), max_age_days: 0, max_backups: 0, max_size_mib: 1 };
        let mut log = AuditLog::open(&config, Seams::system()).unwrap();
        let line = vec![b'x'; 1 << 20];
        for _ in 0..5 {
            log.write(&line).unwrap();
        }
        assert_eq!(names(folder.path()).len(), 5);
    }
}
