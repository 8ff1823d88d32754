//! Tables of columns that the user names, as `kubectl -o custom-columns` prints them.

use portolan_gocompat::{
    jsonpath::{JsonPathQuery, check},
    print::go_print,
};
use serde_json::Value;

use super::text_table::TextTable;

/// Table of the user's own columns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CustomColumns {
    columns: Vec<Column>,
    has_headers: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Column {
    header: String,
    path: JsonPathQuery,
}

/// End of the errors of kubectl about a file of columns.
const LINES: &str = "Expected format is one line of space separated headers, one line of space separated column specs.";

impl CustomColumns {
    /// Reads `HEADER:PATH,…`.
    ///
    /// # Errors
    /// The error of kubectl: a column without a path, or one that is none.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let split = |part: &str| match part.split_once(':') {
            Some((header, path)) => Column::parse(header, path),
            None => Err(format!("unexpected custom-columns spec: {part}, expected <header>:<json-path-expr>")),
        };
        Ok(Self { columns: text.split(',').map(split).collect::<Result<_, _>>()?, has_headers: true })
    }

    /// Reads a line of headers and a line of paths.
    ///
    /// # Errors
    /// As for [`CustomColumns::parse`]; a missing line, or lines of different length.
    pub(crate) fn parse_lines(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let headers = lines.next().ok_or_else(|| format!("invalid template, missing header line. {LINES}"))?;
        let paths = lines.next().ok_or_else(|| format!("invalid template, missing spec line. {LINES}"))?;
        if headers.len() != paths.len() {
            let (headers, paths) = (headers.len(), paths.len());
            return Err(format!("number of headers ({headers}) and field specifications ({paths}) don't match"));
        }
        let columns = headers.into_iter().zip(paths).map(|(header, path)| Column::parse(header, path));
        Ok(Self { columns: columns.collect::<Result<_, _>>()?, has_headers: true })
    }

    /// Returns the same columns without headers.
    pub(crate) fn without_headers(self) -> Self {
        Self { has_headers: false, ..self }
    }

    /// Formats an object, or the items of a list.
    pub(crate) fn text(&self, object: &Value) -> String {
        let mut table = TextTable::new(self.columns.iter().map(|column| column.header.as_str()));
        let items = object["items"].as_array().map_or(std::slice::from_ref(object), Vec::as_slice);
        for item in items {
            table.exact_row(self.columns.iter().map(|column| column.cell(item)));
        }
        table.text(self.has_headers)
    }
}

impl Column {
    fn parse(header: &str, path: &str) -> Result<Self, String> {
        let inner = path.strip_prefix('{').map_or(Some(path), |open| open.strip_suffix('}'));
        let inner = inner.map(|inner| inner.strip_prefix('.').unwrap_or(inner)).unwrap_or_default();
        if inner.is_empty() || inner.contains(['{', '}']) {
            let expected = "'name1.name2' or '.name1.name2' or '{name1.name2}' or '{.name1.name2}'";
            return Err(format!("unexpected path string, expected a {expected}"));
        }
        let path = format!(".{inner}");
        check(&path)?;
        let parsed = JsonPathQuery::parse(&path).ok_or_else(|| format!("the path {path} cannot be evaluated"))?;
        Ok(Self { header: header.to_owned(), path: parsed })
    }

    fn cell(&self, item: &Value) -> String {
        let values: Vec<String> = self.path.find_all(item).into_iter().map(go_print).collect();
        if values.is_empty() { "<none>".to_owned() } else { values.join(",") }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_per_item_has_a_cell_per_column() {
        let list = json!({"kind": "List", "items": [
            {"metadata": {"name": "eu-1", "labels": {"region": "eu"}}, "spec": {"taints": [{"key": "a"}, {"key": "b"}]}},
            {"metadata": {"name": "us"}, "status": {"version": "", "n": null}},
        ]});
        let columns = CustomColumns::parse(
            "NAME:.metadata.name,LABELS:metadata.labels,TAINTS:{.spec.taints[*].key},N:{status.n}",
        );
        let expected = "NAME   LABELS           TAINTS   N
eu-1   map[region:eu]   a,b      <none>
us     <none>           <none>   <nil>
";
        let columns = columns.unwrap();
        assert_eq!(columns.text(&list), expected);
        let one = columns.without_headers().text(&list["items"][1]);
        assert_eq!(one, "us   <none>   <none>   <nil>\n");
        assert_eq!(CustomColumns::parse("V:.status.version").unwrap().text(&list), "V\n<none>\n\n");
    }

    #[test]
    fn wrong_columns_are_refused() {
        let path = "unexpected path string, expected a 'name1.name2' or '.name1.name2' or '{name1.name2}' or \
                    '{.name1.name2}'";
        for (text, expected) in [
            ("A", "unexpected custom-columns spec: A, expected <header>:<json-path-expr>"),
            ("A:.a,", "unexpected custom-columns spec: , expected <header>:<json-path-expr>"),
            ("A:", path),
            ("A:{.a", path),
            ("A:{.a}{.b}", path),
            ("A:.a[", "unterminated array"),
        ] {
            assert_eq!(CustomColumns::parse(text).unwrap_err(), expected, "{text}");
        }
        let lines = |text: &str| CustomColumns::parse_lines(text).unwrap_err();
        assert_eq!(lines(""), format!("invalid template, missing header line. {LINES}"));
        assert_eq!(lines("A"), format!("invalid template, missing spec line. {LINES}"));
        assert_eq!(lines("A B\n.a\n"), "number of headers (2) and field specifications (1) don't match");
    }
}
