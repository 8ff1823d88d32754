//! House checks: the direction of dependencies between crates, and what must not be in the dependency tree.

use std::{collections::BTreeMap, path::Path, process::Command};

use serde_json::Value;

/// Which of our crates each of our crates may use, tests included. `docs/ARCHITECTURE.md` draws it.
const ALLOWED: [(&str, &[&str]); 13] = [
    ("portolan-types", &[]),
    ("portolan-machinery", &["portolan-cel", "portolan-types"]),
    ("portolan-cel", &["portolan-types"]),
    ("portolan-store", &["portolan-types"]),
    ("portolan-placement", &["portolan-types"]),
    ("portolan-syncer", &["portolan-types"]),
    ("portolan-tunnel", &["portolan-types"]),
    ("portolan-controllers", &["portolan-machinery", "portolan-store", "portolan-types"]),
    ("portolan-apiserver", &["portolan-cel", "portolan-machinery", "portolan-store", "portolan-types"]),
    ("portolan-scheduler", &["portolan-placement", "portolan-store", "portolan-types"]),
    (
        "portolan-simulator",
        &["portolan-apiserver", "portolan-controllers", "portolan-machinery", "portolan-store", "portolan-types"],
    ),
    ("portolan", &["*"]),
    ("xtask", &[]),
];

/// Which crates may name a library that shapes the code around it.
const CONFINED: [(&str, &[&str]); 6] = [
    ("sled", &["portolan-store"]),
    ("redb", &["portolan-store"]),
    ("axum", &["portolan-apiserver"]),
    ("tonic", &["portolan-tunnel", "portolan-store"]),
    ("kube", &["portolan-syncer", "portolan"]),
    ("k8s-openapi", &["portolan-syncer", "portolan"]),
];

/// Packages that must not be in the lock file, and those that may be there once.
const BANNED: [&str; 3] = ["aws-lc-rs", "aws-lc-sys", "openssl-sys"];
const SINGLE: [&str; 4] = ["rustls", "prost", "cel", "json-patch"];

fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--manifest-path"])
        .arg(manifest)
        .output()
        .expect("cargo runs, since it runs this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

fn dependencies() -> BTreeMap<String, Vec<String>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata()["packages"].as_array().cloned().unwrap_or_default();
    let names =
        |package: &Value| package["dependencies"].as_array().into_iter().flatten().map(|d| text(&d["name"])).collect();
    packages.iter().map(|package| (text(&package["name"]), names(package))).collect()
}

#[test]
fn crates_depend_on_each_other_in_one_direction_only() {
    let all = dependencies();
    assert_eq!(all.len(), ALLOWED.len(), "a new crate needs its row here and in docs/ARCHITECTURE.md");
    for (name, used) in &all {
        let (_, allowed) = ALLOWED.iter().find(|(own, _)| own == name).unwrap_or_else(|| panic!("{name} has no row"));
        // A crate asks itself for what only its tests need.
        for other in used.iter().filter(|other| *other != name && all.contains_key(*other)) {
            let fine = allowed.contains(&"*") || allowed.contains(&other.as_str());
            assert!(fine, "{name} must not depend on {other}");
        }
    }
}

#[test]
fn libraries_stay_in_their_crate() {
    for (name, used) in dependencies() {
        for (library, crates) in CONFINED {
            let fine = crates.contains(&name.as_str()) || !used.iter().any(|other| other == library);
            assert!(fine, "{name} must not use {library}");
        }
    }
}

#[test]
fn the_lock_file_has_one_of_each_and_none_of_the_banned() {
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    let text = std::fs::read_to_string(lock).expect("Cargo.lock is committed");
    let count = |name: &str| text.lines().filter(|line| *line == format!("name = {name:?}")).count();
    for name in BANNED {
        assert_eq!(count(name), 0, "{name}");
    }
    for name in SINGLE {
        assert!(count(name) <= 1, "{name} is there {} times", count(name));
    }
}

/// Where the clock and randomness of the machine may be read: the seam itself, and what never decides anything.
const CLOCKS: [&str; 4] = ["types/src/seams.rs", "store/src/metrics.rs", "portolan/src/cli/", "xtask/"];
const NONDETERMINISM: [&str; 6] =
    ["SystemTime::now", "Timestamp::now", "rand::rng", "thread_rng", "OsRng", "std::time::Instant"];

#[test]
fn time_and_randomness_come_in_through_the_seam() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders = vec![crates];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the sources are there").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                check_clocks(&path);
            }
        }
    }
}

fn check_clocks(path: &Path) {
    let name = path.to_string_lossy().replace('\\', "/");
    let is_test = name.contains("/tests") || name.contains("/benches/") || name.contains("/examples/");
    if is_test || CLOCKS.iter().any(|allowed| name.contains(allowed)) {
        return;
    }
    let text = std::fs::read_to_string(path).expect("sources are text");
    // Tests inside a file come last.
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    for word in NONDETERMINISM {
        assert!(!code.contains(word), "{name} uses {word}; take it from portolan_types::Seams");
    }
}
