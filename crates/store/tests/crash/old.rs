//! Data directory of redb as written by a version without page checksums.

use std::{fs, io::Read as _, path::Path};

use flate2::read::GzDecoder;
use portolan_store::{RangeRequest, RangeScope, open};
use portolan_types::Seams;

use crate::{disk::DiskImage, run::whole, workload::config};

const DIRECTORY: &[u8] = include_bytes!("../fixtures/directory-redb-3-4.4.txt.gz");
/// First bytes of the old file, and of one with checksums.
const REDB: &[u8] = b"redb";
const CHECKED: &[u8] = b"portolan pages";

/// Writes it under `data`.
pub(crate) fn unpack(disk: &mut DiskImage) {
    let mut text = String::new();
    GzDecoder::new(DIRECTORY).read_to_string(&mut text).unwrap();
    disk.add_folder("data");
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for line in text.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["file", name, len] => files.push((format!("data/{name}"), vec![0; len.parse().unwrap()])),
            [at, bytes] => {
                let at: usize = at.parse().unwrap();
                let (_, content) = files.last_mut().unwrap();
                content[at..at + bytes.len() / 2].copy_from_slice(&unhex(bytes));
            }
            _ => panic!("{line}"),
        }
    }
    files.into_iter().for_each(|(name, bytes)| disk.add_file(&name, bytes));
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

pub(crate) fn has_checksums(root: &Path) -> bool {
    let bytes = fs::read(root.join("data/store.redb")).unwrap();
    assert!(bytes.starts_with(REDB) || bytes.starts_with(CHECKED), "it is one or the other");
    bytes.starts_with(CHECKED)
}

/// Checks that all its content is there.
///
/// # Errors
/// Describes the missing content.
pub(crate) async fn check(root: &Path) -> Result<(), String> {
    let store = open(config("Redb", root), Seams::system()).map_err(|error| error.to_string())?;
    let all = store.range(RangeRequest::all(RangeScope::All)).await.map_err(|error| error.to_string())?.objects;
    let names: Vec<&str> = all.iter().map(|object| &*object.key.name).collect();
    if (names.as_slice(), store.current().get()) != (["b1", "p1", "p2", "b4"].as_slice(), 11) {
        return Err(format!("it has {names:?} at {}", store.current()));
    }
    store.close().await;
    whole(config("Redb", root)).await
}
