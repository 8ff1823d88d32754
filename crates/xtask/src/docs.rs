//! `cargo xtask docs`: the site of `docs/`, made by mdBook.
//!
//! mdBook is needed by no build and no test. The command installs it beside the other tools, once per version.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use harness::markdown;
use harness::tools::repository;

/// Version of mdBook, as it is on crates.io.
const MDBOOK: &str = "0.5.4";
/// Files of the repository that pages link to, on the web.
const SOURCES: &str = "https://github.com/portolan-dev/portolan/blob/main";

/// Options of `cargo xtask docs`.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Folder of the site.
    #[arg(long, default_value = "target/book")]
    out: PathBuf,
    /// Only prepare the pages; do not install or run mdBook.
    #[arg(long)]
    prepare: bool,
}

/// Makes the site.
pub(super) fn run(options: &Options) -> Result<()> {
    let out = std::path::absolute(&options.out)?;
    let staging = out.with_extension("src");
    prepare(&staging)?;
    if options.prepare {
        println!("{}", staging.display());
        return Ok(());
    }
    let program = installed()?;
    let status = Command::new(program).args(["build", "--dest-dir"]).arg(&out).arg(&staging).status();
    ensure!(status.context("mdBook does not run")?.success(), "mdBook failed");
    println!("{}", out.join("index.html").display());
    Ok(())
}

/// Installs mdBook into the folder of the tools, unless it exists.
fn installed() -> Result<PathBuf> {
    let root = repository().join("target/mdbook").join(MDBOOK);
    let program = root.join("bin/mdbook");
    if !program.exists() {
        let args = ["install", "mdbook", "--locked", "--no-default-features", "--features", "search"];
        let mut cargo = Command::new("cargo");
        cargo.args(args).args(["--version", MDBOOK, "--root"]).arg(&root);
        ensure!(cargo.status().context("cargo does not run")?.success(), "mdBook cannot be installed");
    }
    Ok(program)
}

/// Copies the pages; links to files outside `docs` become links to the repository on the web.
fn prepare(staging: &Path) -> Result<()> {
    if staging.exists() {
        fs::remove_dir_all(staging).with_context(|| format!("cannot empty {}", staging.display()))?;
    }
    copy(Path::new("docs"), staging)
}

fn copy(folder: &Path, staging: &Path) -> Result<()> {
    for entry in fs::read_dir(repository().join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&path, staging)?;
            continue;
        }
        let to = staging.join(path.strip_prefix("docs")?);
        fs::create_dir_all(to.parent().context("a page is in a folder")?)?;
        if path.extension().is_some_and(|ending| ending == "md") {
            fs::write(&to, for_site(&path, &markdown::read(&path)?))?;
        } else {
            fs::copy(repository().join(&path), &to)?;
        }
    }
    Ok(())
}

/// Rewrites the links of a page that leave `docs`.
fn for_site(page: &Path, text: &str) -> String {
    let mut rewritten = text.to_owned();
    for link in markdown::links(text).into_iter().rev() {
        if let Some(path) = outside(page, &link.target) {
            rewritten.replace_range(link.range, &format!("{SOURCES}/{path}"));
        }
    }
    rewritten
}

/// Returns the path in the repository of a target outside `docs`.
fn outside(page: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with(['#', '/']) {
        return None;
    }
    let mut path = PathBuf::new();
    for part in page.with_file_name("").join(target).components() {
        if part == Component::ParentDir {
            path.pop();
        } else {
            path.push(part);
        }
    }
    (!path.starts_with("docs")).then(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_docs_lead_to_the_repository() {
        let page =
            "[a](b.md#c) [d](../proto/tunnel.proto) [e](https://example.com/) [f](#g) [h](decisions/0001-engine.md)";
        let expected = page.replace("../proto", &format!("{SOURCES}/proto"));
        assert_eq!(for_site(Path::new("docs/agents.md"), page), expected);
        assert_eq!(outside(Path::new("docs/guides/x.md"), "../../README.md").as_deref(), Some("README.md"));
    }
}
