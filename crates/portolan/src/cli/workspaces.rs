//! Paths of logical clusters in messages to operators.

use std::{collections::HashMap, io::Read};

use portolan_store::{SnapshotError, SnapshotSummary, inspect_each};
use portolan_types::{LogicalClusterId, ObjectKey, Record, ResourceVersion};

/// Text before the number of a logical cluster.
const OF: &str = " of logical cluster ";

/// Readable workspaces: parent and name by logical cluster.
#[derive(Default)]
pub(super) struct WorkspacePaths(HashMap<LogicalClusterId, (LogicalClusterId, String)>);

impl WorkspacePaths {
    pub(super) fn note(&mut self, key: &ObjectKey, record: &Record) {
        if (&*key.resource.group, &*key.resource.resource) != ("tenancy.kcp.io", "workspaces") {
            return;
        }
        let workspace = record.to_value(ResourceVersion::FIRST).unwrap_or_default();
        let id = workspace.pointer("/spec/cluster").and_then(|id| id.as_str()?.parse().ok());
        self.0.extend(id.map(|id| (id, (key.cluster, key.name.to_string()))));
    }

    /// Returns the path of a logical cluster, if all its ancestors are known.
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

    /// Adds the paths of workspaces to a message about objects.
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

/// Inspects a snapshot as [`portolan_store::inspect`] does, and names missing objects with the paths of workspaces.
///
/// # Errors
/// The errors of `inspect`.
pub(super) fn inspect_named(input: impl Read) -> Result<SnapshotSummary, SnapshotError> {
    let mut workspaces = WorkspacePaths::default();
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
        let mut known = WorkspacePaths::default();
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
