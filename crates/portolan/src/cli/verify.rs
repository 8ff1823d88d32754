//! `portolan verify`: read all that a store holds, and say whether it is as it was written.

use std::{collections::HashMap, path::PathBuf};

use anyhow::Context as _;
use clap::Args;
use portolan_store::{Audit, OpenError, StoreConfig, found_in};
use portolan_types::{LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};

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
        let mut workspaces = Workspaces::default();
        let mut note = |key: &ObjectKey, record: &Record| workspaces.note(key, record);
        let found = portolan_store::verify_each(StoreConfig::new(engine, Some(store)), Seams::system(), &mut note);
        let found = found.map_err(|refusal| match refusal {
            OpenError::Unsound { .. } => anyhow::Error::msg(workspaces.name_in(&refusal.to_string())),
            refusal => refusal.into(),
        })?;
        let Audit { objects, superseded, writes, last, oldest } = found;
        output::print(&format!(
            "objects            {objects}\nearlier states     {superseded}\nwrites in history  {writes}\n\
             history from       {oldest}\nrevision           {last}\n"
        ))
    }
}

/// What stands before the number of a logical cluster.
const OF: &str = " of logical cluster ";

/// The workspaces that could be read: where each is, and its name.
#[derive(Default)]
struct Workspaces(HashMap<LogicalClusterId, (LogicalClusterId, String)>);

impl Workspaces {
    fn note(&mut self, key: &ObjectKey, record: &Record) {
        if (&*key.resource.group, &*key.resource.resource) != ("tenancy.kcp.io", "workspaces") {
            return;
        }
        let workspace = record.to_value(ResourceVersion::FIRST).unwrap_or_default();
        let id = workspace.pointer("/spec/cluster").and_then(|id| id.as_str()?.parse().ok());
        self.0.extend(id.map(|id| (id, (key.cluster, key.name.to_string()))));
    }

    /// The path of a logical cluster, when all workspaces above it are known.
    fn path(&self, of: LogicalClusterId) -> Option<String> {
        let (mut at, mut names) = (of, Vec::new());
        while at != LogicalClusterId::ROOT {
            let (parent, name) = self.0.get(&at).filter(|_| names.len() <= self.0.len())?;
            names.push(name.as_str());
            at = *parent;
        }
        names.push("root");
        names.reverse();
        Some(names.join(":"))
    }

    /// A text about objects, with the paths of their workspaces.
    fn name_in(&self, text: &str) -> String {
        let mut parts = text.split(OF);
        let mut named = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (id, rest) = part.split_at(part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(part.len()));
            match id.parse().ok().and_then(|id| self.path(id)) {
                Some(path) => named.extend([" of workspace ", &path, " (", id, ")", rest]),
                None => named.extend([OF, part]),
            }
        }
        named
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
    fn workspaces_are_named_as_far_as_they_are_known() {
        let (outer, inner) = (LogicalClusterId::new(7), LogicalClusterId::new(8));
        let mut known = Workspaces::default();
        known.0.insert(inner, (outer, "inner".into()));
        let text = format!(
            "it:\n  maps \"a\" of logical cluster {inner}: no\n  maps \"b\" of logical cluster root\n  more: no"
        );
        assert!(known.name_in(&text).contains(&format!("\"a\" of logical cluster {inner}: no\n")), "not that above it");
        known.0.insert(outer, (LogicalClusterId::ROOT, "outer".into()));
        let named = known.name_in(&text);
        let expected = format!("it:\n  maps \"a\" of workspace root:outer:inner ({inner}): no\n  maps \"b\"");
        assert_eq!(named, expected + " of workspace root (root)\n  more: no");
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
