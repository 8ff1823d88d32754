//! Sources of the workspace, read line by line.

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// Source file of one of the crates.
pub(crate) struct Source {
    /// Path under `crates/`, with `/` between the folders.
    pub(crate) name: String,
    lines: Vec<String>,
}

/// Declaration of a type outside of tests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TypeName {
    pub(crate) crate_name: String,
    pub(crate) name: String,
    pub(crate) file: String,
    /// True for `pub` with and without a restriction.
    pub(crate) is_visible: bool,
}

static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    files.iter().map(|file| read(&root, file)).collect()
});

/// Returns all `.rs` files under `crates/`, in the order of their names.
pub(crate) fn all() -> &'static [Source] {
    &SOURCES
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder is there").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn read(root: &Path, file: &Path) -> Source {
    let name = file.strip_prefix(root).expect("it was found there").to_string_lossy().replace('\\', "/");
    let text = std::fs::read_to_string(file).expect("sources are text");
    Source { name, lines: text.lines().map(str::to_owned).collect() }
}

impl Source {
    /// Returns the name of the crate's folder.
    pub(crate) fn crate_name(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Returns true for files that only tests, benches and examples use.
    pub(crate) fn is_test(&self) -> bool {
        let parts = || self.name.split('/');
        parts().any(|part| matches!(part, "tests" | "benches" | "examples")) || self.name.ends_with("tests.rs")
    }

    /// Returns the lines of code: without comments, and without what follows a `#[cfg(test)]` module that ends the
    /// file.
    pub(crate) fn code(&self) -> impl Iterator<Item = &str> {
        let tests = self
            .lines
            .windows(2)
            .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{'));
        let end = tests.unwrap_or(self.lines.len());
        self.lines[..end].iter().map(String::as_str).filter(|line| !line.trim_start().starts_with("//"))
    }

    /// Returns all lines.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// Returns line number and text of each comment that has a line of its own.
    pub(crate) fn comments(&self) -> impl Iterator<Item = (usize, &str)> {
        let numbered = self.lines.iter().enumerate().map(|(index, line)| (index + 1, line.as_str()));
        numbered.filter(|(_, line)| line.trim_start().starts_with("//"))
    }

    /// Returns line number and text of the first line of each doc comment.
    pub(crate) fn doc_openings(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut was_doc = false;
        self.lines.iter().enumerate().filter_map(move |(index, line)| {
            let trimmed = line.trim_start();
            let doc = trimmed.strip_prefix("///").or_else(|| trimmed.strip_prefix("//!"));
            let opening = doc.filter(|_| !was_doc).map(|doc| (index + 1, doc.trim()));
            was_doc = doc.is_some();
            opening
        })
    }

    /// Returns the types that the file declares outside of tests.
    pub(crate) fn types(&self) -> Vec<TypeName> {
        if self.is_test() {
            return Vec::new();
        }
        self.code().filter_map(|line| self.type_name(line)).collect()
    }

    fn type_name(&self, line: &str) -> Option<TypeName> {
        let mut words = line
            .split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '(' | ')' | ':')))
            .filter(|word| !word.is_empty());
        let mut word = words.next()?;
        let is_visible = word == "pub" || word.starts_with("pub(");
        while word == "pub" || word.starts_with("pub(") || (word.ends_with(')') && is_visible) {
            word = words.next()?;
        }
        if !matches!(word, "struct" | "enum" | "trait" | "union") {
            return None;
        }
        let name: String = words.next()?.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let starts_well = name.starts_with(|c: char| c.is_uppercase());
        let found = || TypeName { crate_name: self.crate_name().to_owned(), name, file: self.name.clone(), is_visible };
        starts_well.then(found)
    }
}
