//! Whole corpus: generated requests, and the files under `e2e/corpus`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::catalog::ResourceCatalog;
use super::step::OracleScript;
use super::{file, fresh};

/// Returns the scripts whose names begin with one of `only`, or all.
pub(super) fn read(folder: &Path, catalog: &ResourceCatalog, only: &[String]) -> Result<Vec<OracleScript>> {
    let wanted = |name: &str| only.is_empty() || only.iter().any(|start| name.starts_with(start.as_str()));
    let mut scripts: Vec<OracleScript> =
        fresh::scripts(catalog).into_iter().filter(|script| wanted(&script.name)).collect();
    for path in files(folder)? {
        let name = name(folder, &path)?;
        if wanted(&name) {
            scripts.push(file::read(&path, &name, catalog)?);
        }
    }
    Ok(scripts)
}

/// `apps/deployment` for `…/apps/deployment.yaml`.
fn name(folder: &Path, file: &Path) -> Result<String> {
    let relative = file.strip_prefix(folder).context("a file outside the corpus")?.with_extension("");
    Ok(relative.to_string_lossy().replace('\\', "/"))
}

/// Returns the files of all groups, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for group in entries(folder)?.into_iter().filter(|path| path.is_dir()) {
        files.extend(entries(&group)?.into_iter().filter(|path| path.extension().is_some_and(|end| end == "yaml")));
    }
    Ok(files)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut entries: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use harness::tools::repository;

    #[test]
    fn every_file_can_be_read() {
        let folder = repository().join("e2e/corpus");
        let mut requests = 0;
        for path in files(&folder).unwrap() {
            let text = fs::read_to_string(&path).unwrap();
            let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
            let name = name(&folder, &path).unwrap();
            let script = file::read(&path, &name, &ResourceCatalog::of_one(&documents[0]))
                .unwrap_or_else(|error| panic!("{error:#}"));
            assert!(!script.steps.is_empty(), "{name}");
            requests += script.steps.len();
        }
        assert!(requests > 1500, "the corpus has only {requests} requests");
    }
}
