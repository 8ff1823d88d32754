//! Commands of a page, read from its code blocks and comments.

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};

use harness::markdown::{self, CodeBlock};

/// Server that the commands of a page run against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A running `portolan demo`; the kubeconfig is that of its workspace `root:shop`.
    Demo,
    /// A server with an empty store; the kubeconfig is the administrator's. Pages without a mark have it.
    Server,
    /// No server: the page starts what it needs.
    Shell,
    /// An empty server beside three real physical clusters, and load on what it serves: the suite `admins-day`.
    Clusters,
}

/// Outcome that a page promises of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// It ends with this exit code.
    Exits(i32),
    /// It continues to run, until the commands of the page have run.
    Runs,
    /// An event outside the shell instead of a command, such as the loss of a physical cluster.
    Happens,
}

/// Command with its output on the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageCommand {
    /// Number of the line of its block.
    pub(crate) line: usize,
    /// Text for a shell.
    pub(crate) script: String,
    /// Output that the page shows; empty if it shows none.
    pub(crate) output: String,
    /// Lines of the page with that output, from 0; empty, and behind the command, if it shows none.
    pub(crate) shown: Range<usize>,
    pub(crate) promise: Promise,
}

/// Code block that no test runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SkippedBlock {
    pub(crate) line: usize,
    pub(crate) reason: String,
}

/// Page with commands.
#[derive(Debug)]
pub(crate) struct CommandPage {
    pub(crate) stage: Stage,
    pub(crate) commands: Vec<PageCommand>,
    pub(crate) skipped: Vec<SkippedBlock>,
}

const STAGE_MARK: &str = "<!-- runs-on: ";
const SETUP_MARK: &str = "<!-- setup: ";
const EVENT_MARK: &str = "<!-- event: ";
const MARK_END: &str = "-->";
const SKIPPED: &str = "not-run:";

impl CommandPage {
    /// Reads a page. `None` if it has no commands.
    ///
    /// # Errors
    /// Fails if the page names an unknown stage, or a block has an unknown attribute.
    pub(crate) fn parse(page: &str) -> Result<Option<Self>> {
        let blocks: Vec<CodeBlock> = markdown::code_blocks(page).into_iter().filter(has_commands).collect();
        if blocks.is_empty() {
            return Ok(None);
        }
        let (mut commands, mut skipped) = (unseen(page), Vec::new());
        for block in &blocks {
            match block.attributes.split_once(SKIPPED) {
                Some((_, reason)) => skipped.push(SkippedBlock { line: block.line, reason: reason.trim().to_owned() }),
                None => commands.extend(read_block(block)?),
            }
        }
        // Stable sort: a setup stays at the position of its comment.
        commands.sort_by_key(|command| command.line);
        let stage = marked(page, STAGE_MARK).next().map(|(_, name)| name);
        let stage = match stage {
            Some("demo") => Stage::Demo,
            Some("server") | None => Stage::Server,
            Some("shell") => Stage::Shell,
            Some("clusters") => Stage::Clusters,
            Some(other) => bail!("say `{STAGE_MARK}demo|server|shell|clusters {MARK_END}`, not {other}"),
        };
        let event = commands.iter().find(|command| command.promise == Promise::Happens);
        if let Some(event) = event.filter(|_| stage != Stage::Clusters) {
            bail!("line {}: events happen only beside clusters", event.line);
        }
        Ok(Some(Self { stage, commands, skipped }))
    }
}

fn has_commands(block: &CodeBlock) -> bool {
    matches!(block.language.as_str(), "console" | "sh")
}

/// Returns the texts of comments of a kind, with their line numbers.
fn marked<'a>(page: &'a str, mark: &'static str) -> impl Iterator<Item = (usize, &'a str)> {
    page.lines().enumerate().filter_map(move |(index, line)| {
        let text = line.trim().strip_prefix(mark)?.strip_suffix(MARK_END)?;
        Some((index + 1, text.trim()))
    })
}

/// Returns the commands in comments, which create the page's preconditions, and the events in other comments.
fn unseen(page: &str) -> Vec<PageCommand> {
    [(SETUP_MARK, Promise::Exits(0)), (EVENT_MARK, Promise::Happens)]
        .into_iter()
        .flat_map(|(mark, promise)| {
            marked(page, mark).map(move |(line, script)| PageCommand {
                line,
                script: script.to_owned(),
                output: String::new(),
                shown: line..line,
                promise: promise.clone(),
            })
        })
        .collect()
}

/// Reads the commands of a block: lines behind `$ ` with their continuations, each followed by its output.
fn read_block(block: &CodeBlock) -> Result<Vec<PageCommand>> {
    let promise = match block.attributes.split_whitespace().collect::<Vec<_>>()[..] {
        [] => Promise::Exits(0),
        ["runs"] => Promise::Runs,
        ["exits", code] => Promise::Exits(code.parse().context("an exit code is a number")?),
        _ => bail!("line {}: unknown attribute {:?}", block.line, block.attributes),
    };
    let command = |script: String, end: usize| {
        let promise = if serves(&script) { Promise::Runs } else { promise.clone() };
        PageCommand { line: block.line, script, output: String::new(), shown: end..end, promise }
    };
    if block.language == "sh" {
        return Ok(vec![command(block.text.clone(), block.line + block.text.lines().count())]);
    }
    let mut found: Vec<PageCommand> = Vec::new();
    let mut lines = block.text.lines();
    // The line behind the fence has this number, counted from 0.
    let mut number = block.line;
    while let Some(line) = lines.next() {
        if let Some(first) = line.strip_prefix("$ ") {
            let script = with_continuations(first, &mut lines);
            number += script.lines().count();
            found.push(command(script, number));
        } else {
            let last = found.last_mut().with_context(|| format!("line {}: output without a command", block.line))?;
            last.output.push_str(line);
            last.output.push('\n');
            number += 1;
            last.shown.end = number;
        }
    }
    ensure!(!found.is_empty(), "line {}: a console block has lines that begin with `$ `", block.line);
    Ok(found)
}

/// Returns true for programs that run until they are stopped.
fn serves(script: &str) -> bool {
    ["portolan server ", "portolan demo", "portolan agent "].iter().any(|start| script.starts_with(start))
}

/// Appends the lines that belong to a command: behind a backslash, and to the end of a here-document.
fn with_continuations<'a>(first: &str, lines: &mut impl Iterator<Item = &'a str>) -> String {
    let mut script = first.to_owned();
    while script.ends_with('\\') {
        let Some(next) = lines.next() else { break };
        script.push('\n');
        script.push_str(next);
    }
    if let Some(end) = here_document(&script) {
        for next in lines.by_ref() {
            script.push('\n');
            script.push_str(next);
            if next == end {
                break;
            }
        }
    }
    script
}

fn here_document(script: &str) -> Option<String> {
    let (_, after) = script.split_once("<<")?;
    let word = after.trim_start_matches('-').split_whitespace().next()?;
    Some(word.trim_matches(['\'', '"']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_their_output_and_promise() {
        let page = "<!-- runs-on: demo -->\n<!-- setup: true -->\n```console\n$ cat <<E\na\nE\na\n$ echo \\\n  b\n```\n\
                    ```console exits 1\n$ false\n```\n```console not-run: needs root\n$ reboot\n```\n```yaml\na: b\n```\n";
        let read = CommandPage::parse(page).unwrap().unwrap();
        let said: Vec<_> = read.commands.iter().map(|c| (&*c.script, &*c.output, c.promise.clone())).collect();
        let expected = [
            ("true", "", Promise::Exits(0)),
            ("cat <<E\na\nE", "a\n", Promise::Exits(0)),
            ("echo \\\n  b", "", Promise::Exits(0)),
            ("false", "", Promise::Exits(1)),
        ];
        assert_eq!(said, expected);
        assert_eq!(read.skipped, [SkippedBlock { line: 14, reason: "needs root".into() }]);
        assert_eq!(read.stage, Stage::Demo);
    }

    #[test]
    fn pages_that_cannot_be_run_are_refused() {
        for (case, page) in [
            ("an unknown stage", "<!-- runs-on: moon -->\n```console\n$ true\n```\n"),
            ("an unknown attribute", "<!-- runs-on: demo -->\n```console sometimes\n$ true\n```\n"),
            ("an event without clusters", "<!-- event: lose east -->\n```console\n$ true\n```\n"),
            ("output without a command", "<!-- runs-on: demo -->\n```console\nhello\n```\n"),
        ] {
            assert!(CommandPage::parse(page).is_err(), "{case}");
        }
        assert!(CommandPage::parse("no commands\n").unwrap().is_none());
    }

    #[test]
    fn events_stand_between_the_commands() {
        let page =
            "<!-- runs-on: clusters -->\n```console\n$ one\n```\n<!-- event: lose east -->\n```console\n$ two\n```\n";
        let read = CommandPage::parse(page).unwrap().unwrap();
        let said: Vec<_> = read.commands.iter().map(|c| (&*c.script, &c.promise)).collect();
        let expected = [("one", &Promise::Exits(0)), ("lose east", &Promise::Happens), ("two", &Promise::Exits(0))];
        assert_eq!((read.stage, said), (Stage::Clusters, expected.to_vec()));
    }
}
