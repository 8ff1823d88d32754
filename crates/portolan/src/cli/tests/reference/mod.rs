//! Reference pages, generated from the code. `UPDATE_DOCS=1 cargo test -p portolan reference` writes them.

mod commands;
mod kinds;
mod metrics;

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::CommandFactory as _;

use crate::cli::{PortolanCli, plugin};

/// Line below the title of each page.
const NOTE: &str = "This page is generated from the code.\n";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference")
}

/// Compares a page with the committed one, or writes it.
fn check(name: &str, title: &str, text: &str) {
    let file = folder().join(name);
    let page = format!("# {title}\n\n{NOTE}\n{}\n", text.trim_end());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(folder()).unwrap();
        fs::write(&file, &page).unwrap();
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == page, "docs/reference/{name} is out of date: UPDATE_DOCS=1 cargo test -p portolan reference");
}

/// Escapes a text for a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}

#[test]
fn the_page_of_each_program_is_current() {
    for (name, command) in [("portolan", PortolanCli::command()), ("kubectl-portolan", plugin::command())] {
        let title = command.get_bin_name().unwrap_or(name).to_owned();
        check(&format!("{name}.md"), &title, &commands::page(command));
    }
}

#[test]
fn the_page_of_the_kinds_is_current() {
    check("api.md", "API of portolan.dev", &kinds::page());
}

#[test]
fn the_page_of_the_metrics_is_current() {
    check("metrics.md", "Metrics", &metrics::page());
}
