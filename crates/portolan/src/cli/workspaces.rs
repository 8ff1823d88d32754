//! Logical clusters in texts for operators: by their paths, as far as those are known.

use std::{collections::HashMap, io::Read};

use portolan_store::{Snapshot, SnapshotError, inspect_each};
use portolan_types::{LogicalClusterId, ObjectKey, Record, ResourceVersion};

/// What stands before the number of a logical cluster.
const OF: &str = " of logical cluster ";

/// The workspaces that could be read: where each is, and its name.
#[derive(Default)]
pub(super) struct Workspaces(HashMap<LogicalClusterId, (LogicalClusterId, String)>);

impl Workspaces {
    pub(super) fn note(&mut self, key: &ObjectKey, record: &Record) {
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
    pub(super) fn name_in(&self, text: &str) -> String {
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

/// Looks at a snapshot as [`portolan_store::inspect`] does; what is missing in it is told with the paths of workspaces.
///
/// # Errors
/// Those of `inspect`.
pub(super) fn inspect_named(input: impl Read) -> Result<Snapshot, SnapshotError> {
    let mut workspaces = Workspaces::default();
    let mut snapshot = inspect_each(input, &mut |key, record| workspaces.note(key, record))?;
    for damaged in &mut snapshot.damaged.first {
        *damaged = workspaces.name_in(damaged);
    }
    Ok(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
