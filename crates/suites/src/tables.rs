//! Tables and golden files that are read from Kubernetes' own Go packages: regenerated, they equal the committed ones.
//! A table without its program could be edited until a test passes.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use harness::report::CheckReport;
use harness::{go, tools::repository};

/// Folders of the committed files in the repository.
const KINDS: &str = "crates/kinds";
const CODEC: &str = "crates/codec";
const VALIDATION: &str = "crates/validation";
const STRATEGY: &str = "crates/strategy";
const CEL: &str = "crates/cel/src";
/// Objects that are changed in every place, as seen from `e2e/`.
const BASES: &str = "../crates/strategy/testdata/bases.jsonl";
const DEFINITIONS: &str = "../crates/kinds/testdata/definitions.jsonl";

/// One call of a generator, and the files that it makes.
struct GeneratedTable {
    says: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    /// Flag with the name of the output file, or empty for the standard output; and the committed file.
    files: &'static [(&'static str, &'static str, &'static str)],
}

const TABLES: &[GeneratedTable] = &[
    GeneratedTable {
        says: "kinds, protobuf, discovery and OpenAPI",
        program: "kindtable",
        args: &[],
        files: &[
            ("-out", KINDS, "data/kinds.json"),
            ("-samples", CODEC, "testdata/protobuf.jsonl"),
            ("-discovery", KINDS, "testdata/discovery.json"),
            ("-openapi", KINDS, "testdata/openapi.jsonl"),
        ],
    },
    GeneratedTable {
        says: "forms of internal types",
        program: "kindtable",
        args: &[],
        files: &[("-internal", VALIDATION, "data/internal.json")],
    },
    GeneratedTable {
        says: "what the registries say of changed objects",
        program: "kindtable",
        args: &["-bases", BASES],
        files: &[("-verdicts", STRATEGY, "testdata/verdicts.txt")],
    },
    GeneratedTable {
        says: "what is filled into changed objects",
        program: "kindtable",
        args: &["-bases", BASES],
        files: &[("-defaults", STRATEGY, "testdata/defaults.txt")],
    },
    GeneratedTable {
        says: "rows of changed objects in tables",
        program: "kindtable",
        args: &["-bases", BASES],
        files: &[("-rows", STRATEGY, "testdata/rows.txt")],
    },
    GeneratedTable {
        says: "OpenAPI of custom resources",
        program: "kindtable",
        args: &["-definitions", DEFINITIONS],
        files: &[("-custom", KINDS, "testdata/custom_openapi.jsonl")],
    },
    GeneratedTable {
        says: "roles and bindings of the bootstrap policy",
        program: "rbactable",
        args: &[],
        files: &[("", STRATEGY, "data/rbac.json")],
    },
    GeneratedTable { says: "functions of CEL", program: "celtable", args: &[], files: &[("", CEL, "functions.txt")] },
    GeneratedTable {
        says: "answers of CEL to expressions",
        program: "celcases",
        args: &["-answers", "-expressions", "codegen/celcases/expressions.txt"],
        files: &[("", CEL, "rules/answers.jsonl")],
    },
    GeneratedTable {
        says: "what YAML means",
        program: "yamlcases",
        args: &["codegen/yamlcases/documents.txt"],
        files: &[("", CODEC, "testdata/yaml.jsonl")],
    },
];

pub(super) fn run(report: &mut CheckReport, work: &Path) {
    let built = report.check("tables: the generators are built, and pass their own tests", || {
        for program in ["kindtable", "rbactable", "celtable", "celcases", "yamlcases"] {
            go::build(&format!("codegen/{program}"), &work.join(program))?;
        }
        go::test("codegen/kindtable")
    });
    if built {
        for table in TABLES {
            report.check(&format!("tables: {} are as committed", table.says), || is_current(table, work));
        }
    }
}

/// Generates the files of a table in `work`, and compares them with those of the repository.
fn is_current(table: &GeneratedTable, work: &Path) -> Result<()> {
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

/// cel-go names the type of `self` after its creation time in nanoseconds, so the number is ignored.
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
    fn the_first_differing_line_is_reported() {
        for (kept, made, expected) in [("a\nb\nc", "a\nx\nc", 2), ("a\n", "a\nb\n", 2), ("x", "y", 1)] {
            assert_eq!(first_difference(kept.as_bytes(), made.as_bytes()), expected, "{kept:?} {made:?}");
        }
    }

    #[test]
    fn timestamps_are_left_out() {
        for (text, expected) in
            [("a selfType12(3", "a selfType(3"), ("selfType1, selfType2", "selfType, selfType"), ("12", "12")]
        {
            assert_eq!(without_clock(text.as_bytes()), expected.as_bytes(), "{text}");
        }
    }

    #[test]
    fn every_generated_file_of_kindtable_is_compared() {
        let generator = std::fs::read_to_string(repository().join("e2e/codegen/kindtable/main.go")).unwrap();
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
