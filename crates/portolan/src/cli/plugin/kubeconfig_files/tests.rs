//! Tests of loading and changing kubeconfig files.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::json;

use super::*;

const FIRST: &str = "apiVersion: v1\nkind: Config\npreferences: {colors: true}\ncurrent-context: one\nclusters:\n- name: a\n  \
                     cluster: {server: https://a/clusters/root, certificate-authority: ca.crt, x-own: kept}\ncontexts:\n- name: \
                     one\n  context: {cluster: a, user: u, namespace: shop}\nusers:\n- name: u\n  user: {token: secret}\nextra: 1\n";
const SECOND: &str = "clusters:\n- name: b\n  cluster: {server: https://b}\ncontexts:\n- name: two\n  context: {cluster: b}\n- name: \
                      one\n  context: {cluster: b}\n";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("first"), FIRST).unwrap();
    fs::write(folder.path().join("second"), SECOND).unwrap();
    folder
}

fn load(folder: &Path, names: &str) -> KubeconfigFiles {
    let paths: Vec<PathBuf> = names.split(',').map(|name| folder.join(name)).collect();
    let list = std::env::join_paths(paths).unwrap();
    let environment = UserEnvironment { kubeconfig: Some(list), home: Some(folder.to_owned()) };
    KubeconfigFiles::load(None, &environment).unwrap()
}

fn set(section: KubeconfigSection, name: &str, content: Value) -> KubeconfigEdit {
    KubeconfigEdit::Set { section, name: name.into(), content }
}

#[test]
fn the_first_file_that_names_something_counts() {
    let folder = folder();
    let files = load(folder.path(), "missing,first,second");
    assert_eq!(files.current_context().as_deref(), Some("one"));
    assert_eq!(files.names(KubeconfigSection::Contexts), ["one", "two", "one"]);
    assert_eq!(files.entry(KubeconfigSection::Contexts, "one").unwrap()["cluster"], "a");
    let authority = files.entry(KubeconfigSection::Clusters, "a").unwrap()["certificate-authority"].clone();
    assert_eq!(authority, json!(folder.path().join("ca.crt")), "relative to its file");
    assert_eq!(files.entry(KubeconfigSection::Clusters, "c"), None);
    assert_eq!(files.merged().unwrap().contexts.len(), 2);
    let swapped = load(folder.path(), "second,first");
    assert_eq!(swapped.entry(KubeconfigSection::Contexts, "one").unwrap()["cluster"], "b");
}

#[test]
fn files_are_found_as_kubectl_finds_them() {
    let folder = folder();
    let home = UserEnvironment { kubeconfig: None, home: Some(folder.path().to_owned()) };
    let none = KubeconfigFiles::load(None, &home).unwrap();
    assert!(none.merged().unwrap_err().to_string().contains(".kube/config"), "{none:?}");
    fs::create_dir(folder.path().join(".kube")).unwrap();
    fs::copy(folder.path().join("first"), folder.path().join(".kube/config")).unwrap();
    assert_eq!(KubeconfigFiles::load(None, &home).unwrap().current_context().as_deref(), Some("one"));
    let second = folder.path().join("second");
    let explicit = KubeconfigFiles::load(Some(&second), &home).unwrap();
    assert_eq!(explicit.current_context(), None);
    assert!(explicit.context_name(&KubectlFlags::default()).is_err());
    let two = KubectlFlags { context: Some("two".into()), ..KubectlFlags::default() };
    assert_eq!(explicit.context_name(&two).unwrap(), "two");
    let three = KubectlFlags { context: Some("three".into()), ..KubectlFlags::default() };
    assert_eq!(explicit.context_name(&three).unwrap_err().to_string(), "context \"three\" does not exist");
    let missing = KubeconfigFiles::load(Some(&folder.path().join("missing")), &home).unwrap_err();
    assert!(missing.to_string().contains("missing cannot be read"), "{missing}");
    fs::write(&second, "- a list\n").unwrap();
    let damaged = KubeconfigFiles::load(Some(&second), &home).unwrap_err();
    assert!(damaged.to_string().contains("second is no kubeconfig"), "{damaged}");
}

#[test]
fn changes_go_to_the_file_of_the_entry_and_keep_everything_else() {
    let folder = folder();
    let files = load(folder.path(), "first,second");
    fs::set_permissions(folder.path().join("second"), fs::Permissions::from_mode(0o640)).unwrap();
    let edits = [
        set(KubeconfigSection::Contexts, "two", json!({"cluster": "a"})),
        set(KubeconfigSection::Clusters, "new", json!({"server": "https://c"})),
        KubeconfigEdit::CurrentContext("two".into()),
    ];
    files.modify(&edits).unwrap();
    let read = |name: &str| edit::read(&folder.path().join(name)).unwrap();
    let mut first: Value = serde_saphyr::from_str(FIRST).unwrap();
    first["current-context"] = "two".into();
    first["clusters"].as_array_mut().unwrap().push(json!({"name": "new", "cluster": {"server": "https://c"}}));
    assert_eq!(read("first"), first, "unknown fields and secrets stay");
    let mut second: Value = serde_saphyr::from_str(SECOND).unwrap();
    second["contexts"][0]["context"] = json!({"cluster": "a"});
    assert_eq!(read("second"), second);
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("second"), 0o640, "the mode stays");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no lock and no half file is left");
}

#[test]
fn a_locked_file_stays_as_it_is_and_a_link_stays_a_link() {
    let folder = folder();
    let first = folder.path().join("first");
    let edits = [KubeconfigEdit::CurrentContext("two".into())];
    fs::write(folder.path().join("first.lock"), "").unwrap();
    let refused = load(folder.path(), "first").modify(&edits).unwrap_err().to_string();
    assert!(refused.contains("is being changed by another program"), "{refused}");
    assert_eq!(fs::read_to_string(&first).unwrap(), FIRST);
    fs::remove_file(folder.path().join("first.lock")).unwrap();
    std::os::unix::fs::symlink("first", folder.path().join("link")).unwrap();
    load(folder.path(), "link").modify(&edits).unwrap();
    assert!(fs::symlink_metadata(folder.path().join("link")).unwrap().is_symlink());
    assert_eq!(edit::read(&first).unwrap()["current-context"], "two");
}

#[test]
fn a_missing_file_is_created_private() {
    let folder = tempfile::tempdir().unwrap();
    let home = UserEnvironment { kubeconfig: None, home: Some(folder.path().to_owned()) };
    let files = KubeconfigFiles::load(None, &home).unwrap();
    files.modify(&[set(KubeconfigSection::Contexts, "a", json!({"cluster": "c"}))]).unwrap();
    let path = folder.path().join(".kube/config");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(edit::read(&path).unwrap()["contexts"][0]["context"]["cluster"], "c");
}
