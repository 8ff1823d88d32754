//! Compresses the pages at build time, and writes the table of them.

use std::{env, fmt::Write as _, fs, io::Write as _, path::Path};

use flate2::{Compression, write::GzEncoder};
use sha2::{Digest as _, Sha256};

fn main() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("pages");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=pages");
    let mut files = Vec::new();
    collect(&pages, "", &mut files);
    files.sort();
    let mut table = String::from("&[\n");
    for (number, path) in files.iter().enumerate() {
        let bytes = fs::read(pages.join(path)).expect("the file was listed");
        let etag: String = Sha256::digest(&bytes).iter().take(10).map(|byte| format!("{byte:02x}")).collect();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&bytes).expect("memory takes writes");
        let compressed = Path::new(&out).join(format!("{number}.gz"));
        fs::write(&compressed, encoder.finish().expect("memory takes writes")).expect("OUT_DIR can be written");
        writeln!(
            table,
            "ConsolePage {{ path: {path:?}, media_type: {:?}, etag: {:?}, gzip: include_bytes!({compressed:?}) }},",
            media_type(path),
            format!("\"{etag}\""),
        )
        .expect("memory takes writes");
    }
    table.push(']');
    fs::write(Path::new(&out).join("pages.rs"), table).expect("OUT_DIR can be written");
}

/// Lists the files of a folder that a browser loads, as paths with slashes.
fn collect(folder: &Path, prefix: &str, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("the folder exists").flatten() {
        let name = entry.file_name().into_string().expect("names are ASCII");
        let path = format!("{prefix}{name}");
        if entry.path().is_dir() {
            collect(&entry.path(), &format!("{path}/"), files);
        } else if !media_type(&path).is_empty() {
            files.push(path);
        }
    }
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "",
    }
}
