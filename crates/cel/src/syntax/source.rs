//! Source text of an expression, and its errors in cel-go's form.

use super::Id;

/// Text of an expression with the start of each line, in code points.
#[derive(Clone, Debug)]
pub(crate) struct SourceText {
    text: Vec<char>,
    line_starts: Vec<usize>,
}

impl SourceText {
    pub(crate) fn new(text: &str) -> Self {
        let text: Vec<char> = text.chars().collect();
        let breaks = text.iter().enumerate().filter(|(_, character)| **character == '\n');
        let line_starts = std::iter::once(0).chain(breaks.map(|(index, _)| index + 1)).collect();
        Self { text, line_starts }
    }

    pub(crate) fn characters(&self) -> &[char] {
        &self.text
    }

    /// Returns the line, counted from 1, and the column, counted from 0, of an offset.
    fn location(&self, offset: usize) -> (usize, usize) {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        (line, offset - self.line_starts[line - 1])
    }

    fn line(&self, line: usize) -> &[char] {
        let end = self.line_starts.get(line).map_or(self.text.len(), |next| next - 1);
        &self.text[self.line_starts[line - 1]..end]
    }

    /// Formats the problem with its position and its line.
    fn display(&self, offset: Option<usize>, message: &str) -> String {
        let Some(offset) = offset else { return format!("ERROR: <input>:-1:0: {message}") };
        let (line, column) = self.location(offset);
        if self.text.is_empty() {
            return format!("ERROR: <input>:{line}:0: {message}");
        }
        let mut text = format!("ERROR: <input>:{line}:{}: {message}", column + 1);
        let snippet: String =
            self.line(line).iter().map(|character| if *character == '\t' { ' ' } else { *character }).collect();
        if snippet.len() > 16384 {
            return text;
        }
        text += &format!("\n | {snippet}\n | ");
        let mut characters = snippet.chars();
        for character in characters.by_ref().take(column) {
            text.push(if character.len_utf8() > 1 { '\u{ff0e}' } else { '.' });
        }
        text.push(if characters.next().is_some_and(|character| character.len_utf8() > 1) { '\u{ff3e}' } else { '^' });
        text
    }
}

/// Problems of one expression.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    found: Vec<(Option<usize>, String)>,
    count: usize,
}

/// Number of problems after which cel-go stops reporting.
const MAX_PROBLEMS: usize = 100;

impl Problems {
    /// Records a problem at an offset, or without a position.
    pub(crate) fn add(&mut self, offset: Option<usize>, message: String) {
        self.count += 1;
        if self.count <= MAX_PROBLEMS {
            self.found.push((offset, message));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns all problems in the order of the source.
    pub(crate) fn display(mut self, source: &SourceText) -> String {
        self.found.sort_by_key(|(offset, _)| *offset);
        let mut lines: Vec<String> =
            self.found.iter().map(|(offset, message)| source.display(*offset, message)).collect();
        if self.count > MAX_PROBLEMS {
            lines.push(format!("{} more errors were truncated", self.count - MAX_PROBLEMS));
        }
        lines.join("\n")
    }
}

/// Start of each node in the source.
#[derive(Debug, Default)]
pub(crate) struct Offsets(Vec<usize>);

impl Offsets {
    /// Returns a new id for a node that begins at `offset`.
    pub(crate) fn add(&mut self, offset: usize) -> Id {
        self.0.push(offset);
        self.0.len() - 1
    }

    pub(crate) fn of(&self, id: Id) -> usize {
        self.0.get(id).copied().unwrap_or_default()
    }
}
