//! Output formats of kubectl, as `--output` names them.

use std::{ffi::OsStr, fs};

use clap::{
    Arg, Command,
    builder::{PossibleValue, TypedValueParser, ValueParserFactory},
    error::ErrorKind,
};
use portolan_gocompat::jsonpath::JsonPathTemplate;

use super::custom_columns::CustomColumns;

/// Output format, as for kubectl.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OutputFormat {
    /// Indented JSON.
    Json,
    /// YAML.
    Yaml,
    /// `resource/name` lines.
    Name,
    /// Table; the default.
    Table,
    /// Table with all columns.
    Wide,
    /// Text of a template.
    JsonPath(JsonPathTemplate),
    /// JSON lists of the values that a template names.
    JsonPathAsJson(JsonPathTemplate),
    /// Table of the user's own columns.
    CustomColumns(CustomColumns),
}

/// Formats without a value.
const PLAIN: [(&str, OutputFormat); 5] = [
    ("json", OutputFormat::Json),
    ("yaml", OutputFormat::Yaml),
    ("name", OutputFormat::Name),
    ("table", OutputFormat::Table),
    ("wide", OutputFormat::Wide),
];
/// Formats with a template behind `=`.
const TEMPLATES: [&str; 3] = ["jsonpath", "jsonpath-as-json", "jsonpath-file"];
/// Formats with columns behind `=`.
const COLUMNS: [&str; 2] = ["custom-columns", "custom-columns-file"];

impl OutputFormat {
    /// Reads a format, and the file that it names.
    ///
    /// # Errors
    /// The error of kubectl: an unknown format, a template that is missing or wrong, or a file that cannot be read.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        if let (None, Some((_, plain))) = (value, PLAIN.into_iter().find(|(plain, _)| *plain == text)) {
            return Ok(plain);
        }
        let value = value.unwrap_or_default();
        match name {
            _ if TEMPLATES.contains(&name) && value.is_empty() => {
                Err("template format specified but no template given".to_owned())
            }
            _ if COLUMNS.contains(&name) && value.is_empty() => {
                Err("custom-columns format specified but no custom columns given".to_owned())
            }
            "jsonpath" => template(value).map(Self::JsonPath),
            "jsonpath-as-json" => template(value).map(Self::JsonPathAsJson),
            "jsonpath-file" => template(&read("error reading --template", value)?).map(Self::JsonPath),
            "custom-columns" => CustomColumns::parse(value).map(Self::CustomColumns),
            "custom-columns-file" => {
                CustomColumns::parse_lines(&read("error reading template", value)?).map(Self::CustomColumns)
            }
            _ => Err(unknown(text)),
        }
    }

    /// Returns true for formats of objects; false for tables of the server's or the plugin's columns.
    pub(crate) fn is_of_objects(&self) -> bool {
        !matches!(self, Self::Table | Self::Wide)
    }
}

fn template(text: &str) -> Result<JsonPathTemplate, String> {
    JsonPathTemplate::parse(text).map_err(|error| format!("error parsing jsonpath {text}, {error}"))
}

fn read(failed: &str, file: &str) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("{failed} {file}, open {file}: {error}"))
}

/// Returns kubectl's error for a format that it does not have.
fn unknown(text: &str) -> String {
    let mut allowed: Vec<&str> = PLAIN.iter().map(|(name, _)| *name).chain(TEMPLATES).chain(COLUMNS).collect();
    allowed.sort_unstable();
    format!(
        "unable to match a printer suitable for the output format \"{text}\", allowed formats are: {}",
        allowed.join(",")
    )
}

/// Parser of `--output`, with the formats that a shell can complete.
#[derive(Clone)]
pub(crate) struct FormatParser;

impl TypedValueParser for FormatParser {
    type Value = OutputFormat;

    fn parse_ref(&self, _: &Command, _: Option<&Arg>, value: &OsStr) -> Result<OutputFormat, clap::Error> {
        let error = |message| clap::Error::raw(ErrorKind::ValueValidation, format!("{message}\n"));
        OutputFormat::parse(&value.to_string_lossy()).map_err(error)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let plain = PLAIN.into_iter().map(|(name, _)| PossibleValue::new(name));
        let with_value =
            ["jsonpath=", "jsonpath-as-json=", "jsonpath-file=", "custom-columns=", "custom-columns-file="];
        Some(Box::new(plain.chain(with_value.into_iter().map(PossibleValue::new))))
    }
}

impl ValueParserFactory for OutputFormat {
    type Parser = FormatParser;

    fn value_parser() -> FormatParser {
        FormatParser
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_formats_are_refused_in_kubectls_words() {
        for (text, expected) in [
            ("jsonpath", "template format specified but no template given"),
            ("jsonpath-file=", "template format specified but no template given"),
            ("jsonpath={.a", "error parsing jsonpath {.a, unclosed action"),
            ("jsonpath={end}", "error parsing jsonpath {end}, not in range, nothing to end"),
            ("custom-columns", "custom-columns format specified but no custom columns given"),
            ("custom-columns=A", "unexpected custom-columns spec: A, expected <header>:<json-path-expr>"),
        ] {
            assert_eq!(OutputFormat::parse(text).unwrap_err(), expected, "{text}");
        }
        let allowed = "allowed formats are: custom-columns,custom-columns-file,json,jsonpath,jsonpath-as-json,\
                       jsonpath-file,name,table,wide,yaml";
        for text in ["foo", "json=x", "go-template={{.kind}}", ""] {
            let expected = format!("unable to match a printer suitable for the output format \"{text}\", {allowed}");
            assert_eq!(OutputFormat::parse(text).unwrap_err(), expected);
        }
        let missing = OutputFormat::parse("jsonpath-file=/nope").unwrap_err();
        assert!(missing.starts_with("error reading --template /nope, open /nope: No such file"), "{missing}");
    }

    #[test]
    fn templates_are_read_from_files() {
        let folder = tempfile::tempdir().unwrap();
        let (path, columns) = (folder.path().join("path"), folder.path().join("columns"));
        fs::write(&path, "{.kind}\n").unwrap();
        fs::write(&columns, "NAME  KIND\nmetadata.name {.kind}\n").unwrap();
        let read = |format: &str| OutputFormat::parse(format).unwrap();
        assert_eq!(read(&format!("jsonpath-file={}", path.display())), read("jsonpath={.kind}\n"));
        let file = read(&format!("custom-columns-file={}", columns.display()));
        assert_eq!(file, read("custom-columns=NAME:.metadata.name,KIND:.kind"));
    }
}
