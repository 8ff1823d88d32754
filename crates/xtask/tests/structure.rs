//! House checks: the direction of dependencies between crates, and forbidden dependencies.

use std::{collections::BTreeMap, path::Path, process::Command};

use serde_json::Value;

/// Crates of the workspace that each crate may use, tests included. `docs/ARCHITECTURE.md` draws it.
const ALLOWED: [(&str, &[&str]); 25] = [
    ("portolan-types", &[]),
    ("portolan-gocompat", &["portolan-types"]),
    ("portolan-cel", &["portolan-gocompat", "portolan-types"]),
    ("portolan-kinds", &["portolan-cel", "portolan-gocompat", "portolan-types"]),
    ("portolan-codec", &["portolan-gocompat", "portolan-kinds", "portolan-types"]),
    ("portolan-merge", &["portolan-codec", "portolan-gocompat", "portolan-kinds", "portolan-types"]),
    (
        "portolan-validation",
        &["portolan-cel", "portolan-codec", "portolan-gocompat", "portolan-kinds", "portolan-types"],
    ),
    (
        "portolan-strategy",
        &[
            "portolan-cel",
            "portolan-codec",
            "portolan-gocompat",
            "portolan-kinds",
            "portolan-merge",
            "portolan-types",
            "portolan-validation",
        ],
    ),
    ("portolan-store", &["portolan-types"]),
    ("portolan-placement", &["portolan-cel", "portolan-types"]),
    ("portolan-syncer", &["portolan-types"]),
    ("portolan-tunnel", &["portolan-types"]),
    (
        "portolan-controllers",
        &[
            "portolan-kinds",
            "portolan-merge",
            "portolan-store",
            "portolan-strategy",
            "portolan-types",
            "portolan-validation",
        ],
    ),
    (
        "portolan-apiserver",
        &[
            "portolan-cel",
            "portolan-codec",
            "portolan-gocompat",
            "portolan-kinds",
            "portolan-merge",
            "portolan-store",
            "portolan-strategy",
            "portolan-types",
            "portolan-validation",
        ],
    ),
    // The syncer only for the simulation of both, in its tests.
    ("portolan-scheduler", &["portolan-placement", "portolan-store", "portolan-syncer", "portolan-types"]),
    (
        "portolan-simulator",
        &[
            "portolan-apiserver",
            "portolan-controllers",
            "portolan-kinds",
            "portolan-store",
            "portolan-strategy",
            "portolan-types",
        ],
    ),
    (
        "portolan-control-plane",
        &[
            "portolan-apiserver",
            "portolan-controllers",
            "portolan-kinds",
            "portolan-scheduler",
            "portolan-simulator",
            "portolan-store",
            "portolan-strategy",
            "portolan-syncer",
            "portolan-tunnel",
            "portolan-types",
        ],
    ),
    ("portolan-console", &[]),
    ("portolan", &["*"]),
    ("harness", &[]),
    ("torture", &["harness"]),
    // The planner is measured without a server, as other planners are.
    ("bench", &["harness", "portolan-placement", "portolan-types"]),
    ("oracle", &["harness"]),
    ("suites", &["harness", "oracle", "torture"]),
    ("xtask", &["bench", "harness", "oracle", "suites", "torture"]),
];

/// Crates that may use a library which shapes the code around it.
const CONFINED: [(&str, &[&str]); 6] = [
    ("sled", &["portolan-store"]),
    ("redb", &["portolan-store"]),
    ("axum", &["portolan-apiserver"]),
    ("tonic", &["portolan-tunnel", "portolan-store"]),
    ("kube", &["portolan-syncer", "portolan-control-plane", "portolan"]),
    ("k8s-openapi", &["portolan-syncer", "portolan-control-plane"]),
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
        // A crate depends on itself to enable features for its tests.
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
