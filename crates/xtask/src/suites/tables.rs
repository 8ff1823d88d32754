//! The tables and golden files that are read from Kubernetes' own Go packages: made again, they have the same bytes as
//! those that are committed. What nobody can write again could be changed by hand until it says what a test wants.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::harness::{go, tools::repository};
use crate::report::Report;

/// Where the committed files are, as seen from the repository.
const MACHINERY: &str = "crates/machinery";
const CEL: &str = "crates/cel/src";
/// Objects that are changed in every place, as seen from `e2e/`.
const BASES: &str = "../crates/machinery/testdata/bases.jsonl";
const DEFINITIONS: &str = "../crates/machinery/testdata/definitions.jsonl";

/// One call of a generator, and the files that it makes.
struct Table {
    says: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    /// The flag that names the file to write, or an empty one for what is printed; and the file that is committed.
    files: &'static [(&'static str, &'static str, &'static str)],
}

const TABLES: &[Table] = &[
    Table {
        says: "kinds, protobuf, discovery and OpenAPI",
        program: "kindtable",
        args: &[],
        files: &[
            ("-out", MACHINERY, "data/kinds.json"),
            ("-samples", MACHINERY, "testdata/protobuf.jsonl"),
            ("-discovery", MACHINERY, "testdata/discovery.json"),
            ("-openapi", MACHINERY, "testdata/openapi.jsonl"),
        ],
    },
    Table {
        says: "forms of internal types",
        program: "kindtable",
        args: &[],
        files: &[("-internal", MACHINERY, "data/internal.json")],
    },
    Table {
        says: "what the registries say of changed objects",
        program: "kindtable",
        args: &["-bases", BASES],
        files: &[("-verdicts", MACHINERY, "testdata/verdicts.txt")],
    },
    Table {
        says: "what is filled into changed objects",
        program: "kindtable",
        args: &["-bases", BASES],
        files: &[("-defaults", MACHINERY, "testdata/defaults.txt")],
    },
    Table {
        says: "rows of changed objects in tables",
        program: "kindtable",
        args: &["-bases", BASES],
        files: &[("-rows", MACHINERY, "testdata/rows.txt")],
    },
    Table {
        says: "OpenAPI of custom resources",
        program: "kindtable",
        args: &["-definitions", DEFINITIONS],
        files: &[("-custom", MACHINERY, "testdata/custom_openapi.jsonl")],
    },
    Table {
        says: "roles and bindings of the bootstrap policy",
        program: "rbactable",
        args: &[],
        files: &[("", MACHINERY, "data/rbac.json")],
    },
    Table { says: "functions of CEL", program: "celtable", args: &[], files: &[("", CEL, "functions.txt")] },
    Table {
        says: "answers of CEL to expressions",
        program: "celcases",
        args: &["-answers", "-expressions", "celcases/expressions.txt"],
        files: &[("", CEL, "rules/answers.jsonl")],
    },
    Table {
        says: "what YAML means",
        program: "yamlcases",
        args: &["yamlcases/documents.txt"],
        files: &[("", MACHINERY, "testdata/yaml.jsonl")],
    },
];

pub(super) fn run(report: &mut Report, work: &Path) {
    let built = report.check("tables: the generators are built, and pass their own tests", || {
        for program in ["kindtable", "rbactable", "celtable", "celcases", "yamlcases"] {
            go::build(program, &work.join(program))?;
        }
        go::test("kindtable")
    });
    if built {
        for table in TABLES {
            report.check(&format!("tables: {} are as committed", table.says), || is_current(table, work));
        }
    }
}

/// Makes the files of a table in `work`, and compares them with those of the repository.
fn is_current(table: &Table, work: &Path) -> Result<()> {
    let fresh = |committed: &str| work.join(committed.replace('/', "-"));
    let mut args: Vec<String> = table.args.iter().map(|&arg| arg.to_owned()).collect();
    for (flag, _, committed) in table.files.iter().filter(|(flag, ..)| !flag.is_empty()) {
        args.extend([(*flag).to_owned(), go::text(&fresh(committed))?.to_owned()]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let printed = go::printed(&work.join(table.program), &args)?;
    for (flag, folder, committed) in table.files {
        let made = if flag.is_empty() { printed.clone().into_bytes() } else { fs::read(fresh(committed))? };
        let file = Path::new(folder).join(committed);
        let kept = fs::read(repository().join(&file))?;
        let (kept, made) = (without_clock(&kept), without_clock(&made));
        let line = first_difference(&kept, &made);
        ensure!(kept == made, "{} is not what {} makes, from line {line} on", file.display(), table.program);
    }
    Ok(())
}

/// cel-go calls the type of `self` after the nanosecond in which it was made; the number says nothing.
fn without_clock(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let mut parts = text.split("selfType");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = |part: &str| part.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
    parts.map(rest).fold(first, |text, part| text + "selfType" + &part).into_bytes()
}

/// The number of the first line that is not the same.
fn first_difference(kept: &[u8], made: &[u8]) -> usize {
    let lines = |text: &'_ [u8]| text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    lines(kept).iter().zip(&lines(made)).take_while(|(kept, made)| kept == made).count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_is_told() {
        for (kept, made, expected) in [("a\nb\nc", "a\nx\nc", 2), ("a\n", "a\nb\n", 2), ("x", "y", 1)] {
            assert_eq!(first_difference(kept.as_bytes(), made.as_bytes()), expected, "{kept:?} {made:?}");
        }
    }

    #[test]
    fn what_a_clock_says_is_left_out() {
        for (text, expected) in
            [("a selfType12(3", "a selfType(3"), ("selfType1, selfType2", "selfType, selfType"), ("12", "12")]
        {
            assert_eq!(without_clock(text.as_bytes()), expected.as_bytes(), "{text}");
        }
    }

    #[test]
    fn every_generated_file_of_kindtable_is_compared() {
        let generator = std::fs::read_to_string(repository().join("e2e/kindtable/main.go")).unwrap();
        let to_file = |line: &&str| line.contains("flag.String(") && line.contains("\"write ");
        let flags = generator.lines().filter(to_file).filter_map(|line| line.split('"').nth(1));
        let flags: Vec<String> = flags.map(|flag| format!("-{flag}")).collect();
        assert!(flags.len() > 8, "{flags:?}");
        for flag in flags {
            let compared = TABLES.iter().any(|table| table.files.iter().any(|(own, ..)| *own == flag));
            assert!(compared, "nothing compares what {flag} writes");
        }
    }
}
