//! `portolan verify`: checks all data of a store.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use portolan_store::{OpenError, StoreAudit, StoreConfig};
use portolan_types::{ObjectKey, Record, Seams};

use super::{
    COULD_NOT_LOOK, FAILED,
    data_dir::{engine_in, explained, store_in},
    output,
    workspaces::WorkspacePaths,
};

/// Read and check all data of a stopped server's store, including parts that a start does not check. On redb, a
/// read-only store is checked in place; one of sled must be copied first.
///
/// Exit code 0: everything is intact. 1: something is damaged, perhaps only history, which needs no action. 2: the
/// check was not possible, for example because a server runs or there is no store.
#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// Data directory of the server, which must not run.
    #[arg(long)]
    pub(super) data_dir: PathBuf,
}

/// Error of a damaged store.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UnsoundStore(String);

/// Returns the exit code for an error.
pub(super) fn code(error: &anyhow::Error) -> u8 {
    let is_lost = matches!(error.downcast_ref(), Some(OpenError::Lost(_)));
    if is_lost || error.is::<UnsoundStore>() { FAILED } else { COULD_NOT_LOOK }
}

impl VerifyArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Some(engine) = engine_in(&self.data_dir)? else {
            bail!("there is no store in {}", self.data_dir.display());
        };
        let mut workspaces = WorkspacePaths::default();
        let mut note = |key: &ObjectKey, record: &Record| workspaces.note(key, record);
        let config = StoreConfig::new(engine, Some(store_in(&self.data_dir)));
        let found = portolan_store::verify_each(config, Seams::system(), &mut note);
        let found = found.map_err(|refusal| match refusal {
            OpenError::Unsound { .. } => UnsoundStore(workspaces.name_in(&refusal.to_string())).into(),
            OpenError::Damaged { .. } => UnsoundStore(refusal.to_string()).into(),
            OpenError::InUse(_) => anyhow::Error::from(refusal).context(
                "a server has the store open: stop it, or save a snapshot of it and verify a store restored from that",
            ),
            refusal => explained(refusal),
        })?;
        let StoreAudit { objects, superseded, writes, last, oldest } = found;
        output::print(&format!(
            "objects            {objects}\nearlier states     {superseded}\nwrites in history  {writes}\n\
             history from       {oldest}\nrevision           {last}\n"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use portolan_store::{Engine, open};

    use super::*;

    fn verify(dir: &Path) -> Result<(), (u8, String)> {
        let verified = VerifyArgs { data_dir: dir.to_owned() }.run();
        verified.map_err(|error| (code(&error), format!("{error:#}")))
    }

    #[test]
    fn a_store_is_read_and_damage_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |code: u8, words: &str| {
            let told = verify(dir.path()).unwrap_err();
            assert!(told.0 == code && told.1.contains(words), "{told:?}");
        };
        refused(2, "there is no store");
        let config = StoreConfig::new(Engine::Redb, Some(dir.path().join("store")));
        let running = open(config, Seams::system()).unwrap();
        refused(2, "in use");
        crate::cli::runtime().unwrap().block_on(running.close());
        drop(running);
        verify(dir.path()).unwrap();
        let file = dir.path().join("store/store.redb");
        let whole = fs::read(&file).unwrap();
        let mut bytes = whole.clone();
        bytes.iter_mut().skip(4096).for_each(|byte| *byte ^= 1);
        fs::write(&file, bytes).unwrap();
        refused(1, "damaged");
        fs::write(&file, whole).unwrap();
        fs::write(dir.path().join("store/store.mark"), "no mark").unwrap();
        refused(1, "store.mark");
        fs::remove_file(&file).unwrap();
        refused(1, "store.redb is missing");
    }
}
