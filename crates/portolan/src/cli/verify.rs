//! `portolan verify`: read all that a store holds, and say whether it is as it was written.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use portolan_store::{Audit, StoreConfig, found_in};
use portolan_types::Seams;

use super::output;

/// Read all of a stopped server's store: damage is told that starting does not look for.
#[derive(Args)]
pub(crate) struct Verify {
    /// Data directory of the server, which must not run.
    #[arg(long)]
    pub(super) data_dir: PathBuf,
}

impl Verify {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let store = self.data_dir.join("store");
        let engine = found_in(&store).with_context(|| format!("there is no store in {}", self.data_dir.display()))?;
        let found = portolan_store::verify(StoreConfig::new(engine, Some(store)), Seams::system())?;
        let Audit { objects, superseded, writes, last, oldest } = found;
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

    fn verify(dir: &Path) -> Result<(), String> {
        Verify { data_dir: dir.to_owned() }.run().map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_store_is_read_and_damage_is_told() {
        let dir = tempfile::tempdir().unwrap();
        assert!(verify(dir.path()).unwrap_err().contains("there is no store"));
        let config = StoreConfig::new(Engine::Redb, Some(dir.path().join("store")));
        let running = open(config, Seams::system()).unwrap();
        assert!(verify(dir.path()).unwrap_err().contains("in use"));
        crate::cli::runtime().unwrap().block_on(running.close());
        drop(running);
        verify(dir.path()).unwrap();
        let file = dir.path().join("store/store.redb");
        let mut bytes = fs::read(&file).unwrap();
        bytes.iter_mut().skip(4096).for_each(|byte| *byte ^= 1);
        fs::write(&file, bytes).unwrap();
        verify(dir.path()).unwrap_err();
    }
}
