//! The embedded pages are small, whole, and load nothing from elsewhere.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::{collections::BTreeSet, fs, io::Read as _, path::Path};

use portolan_console::{ConsolePage, PAGES};
use sha2::{Digest as _, Sha256};

/// Most compressed bytes of all files together.
const BUDGET: usize = 60 * 1024;

fn text(page: &ConsolePage) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(page.gzip).read_to_string(&mut text).unwrap();
    text
}

#[test]
fn all_files_together_are_smaller_than_the_budget_of_the_first_page() {
    let sum: usize = PAGES.iter().map(|page| page.gzip.len()).sum();
    assert!(sum <= BUDGET, "{sum} bytes");
}

#[test]
fn the_files_are_there_and_know_their_types() {
    let paths: BTreeSet<&str> = PAGES.iter().map(|page| page.path).collect();
    for path in ["index.html", "app.css", "icon.svg", "app.js", "vendor/preact.js"] {
        assert!(paths.contains(path), "{path}");
    }
    for page in PAGES {
        assert!(page.etag.starts_with('"') && page.etag.ends_with('"') && page.etag.len() == 22, "{}", page.path);
        assert!(!page.media_type.is_empty() && !page.gzip.is_empty(), "{}", page.path);
    }
}

#[test]
fn nothing_is_inline_and_nothing_comes_from_another_server() {
    for page in PAGES {
        let text = text(page);
        let foreign = text.match_indices("://").filter(|(at, _)| {
            let rest = &text[at + 3..];
            // Namespaces of SVG and MathML are names, not addresses.
            !["www.w3.org/", "${", "\"", "'", "`"].iter().any(|known| rest.starts_with(known))
        });
        assert_eq!(foreign.count(), 0, "{} names another server", page.path);
        if page.path == "index.html" {
            for part in ["<style", " style=", "onclick", "onload", "javascript:"] {
                assert!(!text.contains(part), "{part} is inline");
            }
            assert_eq!(text.matches("<script").count(), text.matches("<script type=\"module\" src=\"/ui/").count());
        }
    }
}

#[test]
fn every_imported_module_is_embedded_and_preloaded() {
    let paths: BTreeSet<&str> = PAGES.iter().map(|page| page.path).collect();
    let index = text(PAGES.iter().find(|page| page.path == "index.html").unwrap());
    for page in PAGES.iter().filter(|page| page.path.ends_with(".js")) {
        assert!(index.contains(&format!("\"/ui/{}\"", page.path)), "{} is not preloaded", page.path);
        let text = text(page);
        for part in text.split("from\"./").chain(text.split("from \"./")).skip(1) {
            let Some((name, _)) = part.split_once('"').filter(|(name, _)| name.ends_with(".js")) else { continue };
            let folder = page.path.rsplit_once('/').map(|(folder, _)| format!("{folder}/")).unwrap_or_default();
            let imported = format!("{folder}{name}");
            assert!(paths.contains(imported.as_str()), "{} imports {imported}", page.path);
        }
    }
}

#[test]
fn vendored_modules_are_those_of_the_checksum_table_and_have_their_licenses() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("pages/vendor");
    let table = fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    let mut listed = BTreeSet::new();
    for line in table.lines() {
        let (sum, name) = line.split_once("  ").unwrap();
        let found: String =
            Sha256::digest(fs::read(folder.join(name)).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, sum, "{name}");
        let license = format!("LICENSE.{}", name.trim_end_matches(".js").replace("hooks", "preact"));
        assert!(fs::read_to_string(folder.join(license)).unwrap().contains("opyright"), "{name}");
        listed.insert(name.to_owned());
    }
    let present = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let present: BTreeSet<String> = present.filter(|name| name.ends_with(".js")).collect();
    assert_eq!(listed, present);
}
