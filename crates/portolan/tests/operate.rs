//! Tests of operators' commands on foreign, read-only and damaged stores, and of Ctrl-C.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    io::Read as _,
    net::TcpListener,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        process::CommandExt as _,
    },
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use portolan_store::{Engine, Expect, StoreConfig, Transaction, inspect, open};
use portolan_types::{GroupResource, LogicalClusterId, MonotonicInstant, ObjectKey, Record, Seams};
use serde_json::json;

/// User that does not own the store, when the tests run as root.
const UNPRIVILEGED_ID: u32 = 65_534;
/// Time for a command on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn make_store(data: &Path, engine: Engine) {
    let store = open(StoreConfig::new(engine, Some(data.join("store"))), Seams::system()).unwrap();
    for name in ["a", "b"] {
        let key =
            ObjectKey::cluster_scoped(LogicalClusterId::ROOT, GroupResource::new("", "maps"), name.parse().unwrap());
        let record = Record::of(&json!({"metadata": {"name": name}}));
        store.commit(Transaction::one(key, Expect::Absent, Some(record))).await.unwrap();
    }
    store.close().await;
}

fn portolan(args: &[&str], dirs: &[&Path]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.args(args).args(dirs).stdin(Stdio::null());
    command
}

/// Runs a command as a user with limited rights: root may write in any mode.
fn as_another(mut command: Command, folder: &Path) -> Command {
    if fs::metadata(folder).unwrap().uid() == 0 {
        command.uid(UNPRIVILEGED_ID).gid(UNPRIVILEGED_ID);
    }
    command
}

fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Sets the modes of a directory with all its contents.
fn set_modes(folder: &Path, folders: u32, files: u32) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            set_modes(&path, folders, files)
        } else {
            fs::set_permissions(&path, fs::Permissions::from_mode(files)).unwrap()
        }
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(folders)).unwrap();
}

#[tokio::test]
async fn a_store_that_can_only_be_read_is_read_as_it_lies_there() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for engine in [Engine::Redb, Engine::Sled] {
        let data = dir.path().join(engine.to_string());
        make_store(&data, engine).await;
        set_modes(&data, 0o555, 0o444);
        let verified = as_another(portolan(&["verify", "--data-dir"], &[&data]), dir.path()).output().unwrap();
        let saved = as_another(portolan(&["snapshot", "save", "--data-dir"], &[&data, Path::new("-")]), dir.path())
            .output()
            .unwrap();
        let told = output_text(&verified);
        if engine == Engine::Redb {
            assert!(verified.status.success() && told.contains("objects            2\n"), "{told}");
            let snapshot = inspect(&*saved.stdout).unwrap_or_else(|error| panic!("{error}: {}", output_text(&saved)));
            assert_eq!(snapshot.objects, 2);
        } else {
            assert_eq!(verified.status.code(), Some(2), "{told}");
            assert_eq!(saved.status.code(), Some(1));
            for told in [told, output_text(&saved)] {
                assert!(told.contains("copy the whole directory to where it can be written"), "{told}");
            }
        }
        set_modes(&data, 0o755, 0o644);
    }
}

#[tokio::test]
async fn a_foreign_store_is_reported_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let data = dir.path().join("data");
    make_store(&data, Engine::Redb).await;
    fs::set_permissions(data.join("store"), fs::Permissions::from_mode(0o000)).unwrap();
    for (args, code) in [(&["verify", "--data-dir"][..], 2), (&["snapshot", "save", "--data-dir"], 1)] {
        let file = if code == 1 { vec![data.as_path(), Path::new("-")] } else { vec![data.as_path()] };
        let refused = as_another(portolan(args, &file), dir.path()).output().unwrap();
        let told = output_text(&refused);
        assert_eq!(refused.status.code(), Some(code), "{told}");
        assert!(told.contains("run this as the user of the server") && told.contains("Permission denied"), "{told}");
    }
    fs::set_permissions(data.join("store"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[tokio::test]
async fn verification_ends_with_0_1_or_2() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let code = || portolan(&["verify", "--data-dir"], &[&data]).output().unwrap().status.code();
    assert_eq!(code(), Some(2), "there is nothing to look at");
    make_store(&data, Engine::Redb).await;
    assert_eq!(code(), Some(0));
    fs::write(data.join("store/store.mark"), "no mark").unwrap();
    assert_eq!(code(), Some(1));
}

#[tokio::test]
async fn an_interrupted_snapshot_reports_what_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("backup"));
    make_store(&data, Engine::Redb).await;
    assert!(portolan(&["snapshot", "save", "--data-dir"], &[&data, &file]).status().unwrap().success());
    let whole = fs::read(&file).unwrap();
    // This server accepts connections and never responds, so a snapshot of it makes no progress.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{{name: a, cluster: {{server: 'http://{}'}}}}]\n\
         users: [{{name: a, user: {{}}}}]\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n",
        silent.local_addr().unwrap()
    );
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("admin.kubeconfig"), config).unwrap();
    for (kept, words) in [(whole.len() - 1, "bytes are kept in"), (0, "nothing is left of the snapshot")] {
        fs::write(dir.path().join("other.part"), &whole[..kept]).unwrap();
        let other = dir.path().join("other");
        let mut save = portolan(&["snapshot", "save", "--data-dir"], &[&elsewhere, &other]);
        let mut save = save.stderr(Stdio::piped()).spawn().unwrap();
        // The accepted connection shows that it has sent its request.
        let _asking = silent.accept().unwrap();
        let interrupt = || Command::new("kill").args(["-INT", &save.id().to_string()]).status().unwrap();
        assert!(interrupt().success());
        let end = MonotonicInstant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = save.try_wait().unwrap() {
                break status;
            }
            assert!(MonotonicInstant::now() < end, "it goes on");
            thread::sleep(Duration::from_millis(20));
        };
        let mut told = String::new();
        save.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(status.code(), Some(130), "{told}");
        assert!(told.contains("interrupted") && told.contains(words), "{told}");
        assert_eq!(dir.path().join("other.part").exists(), kept > 0, "{told}");
    }
}

/// Reads the operator's guide.
fn guide() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md");
    fs::read_to_string(path).unwrap()
}

#[tokio::test]
async fn the_line_for_cron_saves_a_snapshot_night_after_night() {
    let dir = tempfile::tempdir().unwrap();
    let (data, backups) = (dir.path().join("data"), dir.path().join("backups"));
    make_store(&data, Engine::Redb).await;
    fs::create_dir(&backups).unwrap();
    let guide = guide();
    let line = guide.lines().find_map(|line| line.strip_prefix("30 2 * * * ")).expect("there is one");
    // This is the form in which cron passes it to a shell.
    let line = line
        .replace("\\%", "%")
        .replace("/usr/local/bin/portolan", env!("CARGO_BIN_EXE_portolan"))
        .replace("/var/lib/portolan", &data.display().to_string())
        .replace("/var/backups/portolan", &backups.display().to_string());
    for night in ["the first", "the next, in place of the first"] {
        let ran = Command::new("sh").args(["-c", &line]).output().unwrap();
        assert!(ran.status.success(), "{night}: {}", output_text(&ran));
        let made: Vec<_> = fs::read_dir(&backups).unwrap().map(|entry| entry.unwrap().path()).collect();
        let [made] = &made[..] else { panic!("{night}: {made:?}") };
        assert!(made.extension().is_some_and(|ending| ending == "snapshot"), "{made:?}");
        assert_eq!(inspect(fs::File::open(made).unwrap()).unwrap().objects, 2, "{night}");
    }
}

#[test]
fn units_run_existing_commands() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/systemd");
    let mut commands = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let unit = fs::read_to_string(entry.unwrap().path()).unwrap();
        for line in unit.lines().filter_map(|line| line.strip_prefix("ExecStart=")) {
            let (_, args) = line.split_once("portolan ").expect("it runs portolan");
            // Quoted words are one argument, as for a shell.
            let args = args.split('"').next().unwrap_or_default().split_whitespace();
            // Variables are flags of the administrator's own.
            let args = args.filter(|arg| !arg.starts_with('$'));
            // Help is printed once all earlier arguments are valid.
            let help = Command::new(env!("CARGO_BIN_EXE_portolan")).args(args.clone()).arg("--help").output().unwrap();
            assert!(help.status.success(), "{line}: {}", output_text(&help));
            let shown = output_text(&help);
            for flag in args.filter(|arg| arg.starts_with("--")) {
                assert!(shown.contains(flag), "{flag} of {line}");
            }
            commands += 1;
        }
    }
    assert_eq!(commands, 2);
}

/// Reads all sources.
fn sources(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn alerts_are_about_metrics_that_there_are() {
    let mut source = String::new();
    for part in ["apiserver", "store", "control-plane", "portolan", "controllers"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(part).join("src"), &mut source);
    }
    let guide = guide();
    let expressions: Vec<_> = guide.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert!(expressions.len() > 5, "{expressions:?}");
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    for expression in expressions {
        for name in expression.split(|letter| !is_part(letter)) {
            let is_ours = ["portolan_", "apiserver_", "kubernetes_"].iter().any(|start| name.starts_with(start));
            let family = name.trim_end_matches("_bucket");
            assert!(!is_ours || source.contains(&format!("\"{family}\"")), "{name} in {expression}");
        }
    }
}

#[test]
fn a_start_that_is_refused_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // An empty directory is made private; this one is in use.
    fs::write(dir.path().join("notes"), "").unwrap();
    let flags = ["server", "--bind-address=127.0.0.1:0", "--data-dir"];
    let refused = portolan(&flags, &[dir.path()]).output().unwrap();
    let told = output_text(&refused);
    assert!(!refused.status.success() && told.contains("is open to other users (mode 755)"), "{told}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}
