//! Planner scenarios: input objects as YAML, and the transitions and explanations that follow as text beside them.
//!
//! `UPDATE_SCENARIOS=1 cargo test -p portolan-placement --test scenarios` writes the texts again. README.md has the
//! format.

#![allow(clippy::panic, reason = "tests fail by panics")]

mod scenario;
mod world;

use std::{
    fs,
    path::{Path, PathBuf},
};

use scenario::Scenario;

/// Minimum number of scenarios, so that none gets lost unnoticed.
const LEAST: usize = 150;

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/cases");
    let files = fs::read_dir(folder).expect("the folder is there").map(|file| file.expect("it can be read").path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|ext| ext == "yaml")).collect();
    files.sort();
    files
}

#[test]
fn scenarios_end_as_written() {
    let update = std::env::var_os("UPDATE_SCENARIOS").is_some();
    let mut wrong = Vec::new();
    let files = files();
    for path in &files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let scenario = Scenario::parse(&name, &fs::read_to_string(path).expect("it can be read"));
        let found = scenario.play();
        let golden = path.with_extension("txt");
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        if update {
            fs::write(&golden, &found).expect("it can be written");
        } else if found != expected {
            wrong.push(format!("{name}\n--- expected\n{expected}\n--- found\n{found}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} scenarios:\n{}", wrong.len(), files.len(), wrong.join("\n"));
    assert!(files.len() >= LEAST, "{} scenarios", files.len());
}
