//! Tables as kubectl prints them: upper-case headers, columns three spaces apart.

use serde_json::Value;

use crate::cli::output::visible;

/// Spaces between columns.
const GAP: usize = 3;

/// Rows under headers.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextTable {
    headers: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// Makes a table without rows.
    pub(crate) fn new<T: Into<String>>(headers: impl IntoIterator<Item = T>) -> Self {
        Self { headers: headers.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Makes a table of a `meta.k8s.io/v1 Table`; with `wide`, of all its columns.
    pub(crate) fn from_server(table: &Value, wide: bool) -> Self {
        let columns = table["columnDefinitions"].as_array().map_or(&[][..], Vec::as_slice);
        let shown: Vec<usize> =
            (0..columns.len()).filter(|at| wide || columns[*at]["priority"].as_i64().unwrap_or(0) == 0).collect();
        let header = |at: &usize| one_line(&columns[*at]["name"].as_str().unwrap_or_default().to_uppercase());
        let mut made = Self::new(shown.iter().map(header));
        for row in table["rows"].as_array().into_iter().flatten() {
            made.rows.push(shown.iter().map(|at| cell(&row["cells"][*at])).collect());
        }
        made
    }

    /// Adds a row. An empty cell is printed as kubectl prints a missing value.
    pub(crate) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let or_none = |cell: String| if cell.is_empty() { "<none>".to_owned() } else { one_line(&cell) };
        self.rows.push(cells.into_iter().map(|cell| or_none(cell.into())).collect());
    }

    /// Adds a row whose empty cells stay empty.
    pub(crate) fn exact_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| one_line(&cell)).collect());
    }

    /// Returns true if there is no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Formats the table.
    pub(crate) fn text(&self, headers: bool) -> String {
        self.text_within(headers, &mut Vec::new())
    }

    /// Formats the table in columns that are at least as wide as `widths`, which are then those of this table.
    pub(crate) fn text_within(&self, headers: bool, widths: &mut Vec<usize>) -> String {
        let lines = || headers.then_some(&self.headers).into_iter().chain(&self.rows);
        widths.resize(self.headers.len().max(widths.len()), 0);
        for line in lines() {
            widths.iter_mut().zip(line).for_each(|(width, cell)| *width = cell.chars().count().max(*width));
        }
        let mut text = String::new();
        for line in lines() {
            let mut formatted = String::new();
            for (cell, width) in line.iter().zip(widths.iter()) {
                let padding = width + GAP - cell.chars().count();
                formatted.push_str(cell);
                formatted.extend(std::iter::repeat_n(' ', padding));
            }
            text.push_str(formatted.trim_end());
            text.push('\n');
        }
        text
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "<none>".to_owned(),
        Value::String(text) => one_line(text),
        other => one_line(&other.to_string()),
    }
}

/// Returns the first line of a cell, with kubectl's mark if more follow. Its width is that of the printed text.
fn one_line(text: &str) -> String {
    match text.find(['\n', '\r', '\u{c}']) {
        Some(end) => format!("{}...", visible(&text[..end])),
        None => visible(text).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = TextTable::new(["NAME", "CLUSTER"]);
        table.row(["web", "eu-1"]);
        table.row(["a-longer-name", ""]);
        assert_eq!(table.text(true), "NAME            CLUSTER\nweb             eu-1\na-longer-name   <none>\n");
        assert_eq!(table.text(false), "web             eu-1\na-longer-name   <none>\n");
        assert_eq!(TextTable::new(["A"]).text(true), "A\n");
        let (mut below, mut widths) = (TextTable::new(["NAME", "CLUSTER"]), Vec::new());
        below.row(["b", "us-1"]);
        assert_eq!(table.text_within(true, &mut widths), table.text(true));
        assert_eq!(below.text_within(false, &mut widths), "b               us-1\n");
    }

    #[test]
    fn cells_neither_control_the_terminal_nor_break_their_row() {
        let server = json!({"columnDefinitions": [{"name": "Name"}, {"name": "Status"}],
            "rows": [{"cells": ["a\u{1b}[8m", "up\nb   fake"]}]});
        assert_eq!(TextTable::from_server(&server, false).text(true), "NAME     STATUS\na^[[8m   up...\n");
        let mut own = TextTable::new(["NAME", "MESSAGE"]);
        own.row(["a", "\u{9b}2J\nfake   row"]);
        assert_eq!(own.text(false), "a   \\u009b2J...\n");
    }

    #[test]
    fn only_a_wide_table_has_the_columns_of_low_priority() {
        let server = json!({"columnDefinitions": [{"name": "Name", "priority": 0}, {"name": "Reason", "priority": 1},
            {"name": "Count", "priority": 0}], "rows": [{"cells": ["a", "bad\nworse", 3]}, {"cells": ["b", null, null]}]});
        assert_eq!(TextTable::from_server(&server, false).text(true), "NAME   COUNT\na      3\nb      <none>\n");
        let wide = TextTable::from_server(&server, true).text(true);
        assert_eq!(wide, "NAME   REASON   COUNT\na      bad...   3\nb      <none>   <none>\n");
    }
}
