//! Markdown pages of the repository: their code blocks, links and headings.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::tools::repository;

/// Fence of a code block.
const FENCE: &str = "```";

/// Fenced code block.
#[derive(Debug, PartialEq, Eq)]
pub struct CodeBlock {
    /// Number of the line of the opening fence, from 1.
    pub line: usize,
    /// First word behind the fence; empty if there is none.
    pub language: String,
    /// Words behind the language.
    pub attributes: String,
    /// Lines between the fences, without the indentation of the fence.
    pub text: String,
}

/// Inline link or image.
#[derive(Debug, PartialEq, Eq)]
pub struct MarkdownLink {
    /// Number of the line, from 1.
    pub line: usize,
    /// Target, as written in the page.
    pub target: String,
    /// Bytes of the target in the page.
    pub range: Range<usize>,
}

/// Line of a page with its position.
struct PageLine<'a> {
    number: usize,
    start: usize,
    text: &'a str,
    is_code: bool,
}

/// Returns the lines of a page. Fences count as code.
fn lines(page: &str) -> Vec<PageLine<'_>> {
    let (mut found, mut start, mut inside) = (Vec::new(), 0, false);
    for (index, raw) in page.split_inclusive('\n').enumerate() {
        let text = raw.trim_end_matches('\n');
        let is_fence = text.trim_start().starts_with(FENCE);
        found.push(PageLine { number: index + 1, start, text, is_code: inside || is_fence });
        inside ^= is_fence;
        start += raw.len();
    }
    found
}

/// Returns the fenced code blocks of a page, in order.
pub fn code_blocks(page: &str) -> Vec<CodeBlock> {
    let mut blocks: Vec<CodeBlock> = Vec::new();
    let mut open: Option<usize> = None;
    for line in lines(page).iter().filter(|line| line.is_code) {
        let indent = line.text.len() - line.text.trim_start().len();
        match (open, line.text.trim_start().strip_prefix(FENCE)) {
            (None, Some(info)) => {
                let (language, attributes) = info.trim().split_once(' ').unwrap_or((info.trim(), ""));
                let (language, attributes) = (language.to_owned(), attributes.trim().to_owned());
                blocks.push(CodeBlock { line: line.number, language, attributes, text: String::new() });
                open = Some(indent);
            }
            (Some(_), Some(_)) => open = None,
            (Some(outer), None) => {
                if let Some(block) = blocks.last_mut() {
                    block.text.push_str(line.text.get(outer.min(indent)..).unwrap_or(""));
                    block.text.push('\n');
                }
            }
            (None, None) => {}
        }
    }
    blocks
}

/// Returns the inline links and images of a page outside code, in order.
pub fn links(page: &str) -> Vec<MarkdownLink> {
    let mut found = Vec::new();
    for line in lines(page).iter().filter(|line| !line.is_code) {
        let visible = without_code_spans(line.text);
        let mut from = 0;
        while let Some(open) = visible[from..].find("](") {
            let begin = from + open + 2;
            let Some(length) = visible[begin..].find(')') else { break };
            let range = line.start + begin..line.start + begin + length;
            let target = line.text[begin..begin + length].to_owned();
            found.push(MarkdownLink { line: line.number, target, range });
            from = begin + length;
        }
    }
    found
}

/// Replaces inline code by as many neutral bytes.
fn without_code_spans(line: &str) -> String {
    let mut inside = false;
    let masked = line.bytes().map(|byte| {
        inside ^= byte == b'`';
        if inside || !byte.is_ascii() { b'.' } else { byte }
    });
    masked.map(char::from).collect()
}

/// Returns the anchors of the headings of a page, as GitHub and mdBook make them.
pub fn anchors(page: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in lines(page).iter().filter(|line| !line.is_code && line.text.starts_with('#')) {
        let slug = slug(line.text.trim_start_matches('#').trim());
        let same = found.iter().filter(|other| **other == slug).count();
        found.push(if same == 0 { slug } else { format!("{slug}-{same}") });
    }
    found
}

fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the paths of the pages that users and contributors read, relative to the repository.
///
/// # Errors
/// Fails if a folder cannot be read.
pub fn pages() -> Result<Vec<PathBuf>> {
    let single = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "e2e/README.md"];
    let mut found: Vec<PathBuf> = single.iter().map(PathBuf::from).collect();
    collect(Path::new("docs"), &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(repository().join(folder)).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns the text of a page of [`pages`].
///
/// # Errors
/// Fails if it cannot be read.
pub fn read(page: &Path) -> Result<String> {
    fs::read_to_string(repository().join(page)).with_context(|| format!("cannot read {}", page.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A heading: of two\n\nSee [one](a.md#b) and ![two](p.svg), not `[x](y)`.\n\n## Again\n\
                        - item:\n  ```console exits 1\n  $ false\n  # no heading [z](q)\n  ```\n## Again\n```\nplain\n```\n";

    #[test]
    fn blocks_have_their_language_attributes_and_text() {
        let blocks = code_blocks(PAGE);
        let console = CodeBlock {
            line: 7,
            language: "console".into(),
            attributes: "exits 1".into(),
            text: "$ false\n# no heading [z](q)\n".into(),
        };
        let plain = CodeBlock { line: 12, language: String::new(), attributes: String::new(), text: "plain\n".into() };
        assert_eq!(blocks, [console, plain]);
    }

    #[test]
    fn links_are_found_outside_code() {
        let found = links(PAGE);
        let targets: Vec<&str> = found.iter().map(|link| &PAGE[link.range.clone()]).collect();
        assert_eq!(targets, ["a.md#b", "p.svg"]);
        assert!(found.iter().all(|link| link.line == 3));
    }

    #[test]
    fn anchors_are_those_of_github() {
        assert_eq!(anchors(PAGE), ["a-heading-of-two", "again", "again-1"]);
    }
}
