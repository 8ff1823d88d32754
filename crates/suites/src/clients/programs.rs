//! Programs that print a line `check {…}` after each check and its errors, and finally a line `end`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde_json::Value;

use super::ClientStage;
use harness::process::{self, ProcessOutput};
use harness::report::CheckReport;

const LIMIT: Duration = Duration::from_secs(420);
/// Lines that are shown of a failed check's output.
const SHOWN_LINES: usize = 40;

/// Line that a program prints after its last check.
const END: &str = "end";

/// The verdict of one check.
#[derive(Debug, PartialEq)]
struct CheckVerdict<'a> {
    says: String,
    seconds: f64,
    passed: bool,
    /// Output since the previous verdict.
    printed: Vec<&'a str>,
}

/// Runs a program in the logical cluster of the stage, and reports its checks as ours.
pub(super) fn run(report: &mut CheckReport, group: &str, mut command: Command, stage: &ClientStage<'_>) {
    command.env("KUBECONFIG", stage.kubectl.kubeconfig_file()).env("HOME", stage.dir);
    let ended = match process::run(&mut command, "", LIMIT) {
        Ok(ended) => ended,
        Err(error) => {
            report.record(&format!("{group}: the program runs"), LIMIT.as_secs_f64(), Err(error));
            return;
        }
    };
    let (verdicts, rest) = read(&ended.stdout);
    let failed = verdicts.iter().any(|verdict| !verdict.passed);
    for verdict in &verdicts {
        let outcome = if verdict.passed { Ok(()) } else { Err(anyhow!(last_lines(&verdict.printed))) };
        report.record(&format!("{group}: {}", verdict.says), verdict.seconds, outcome);
    }
    report.check(&format!("{group}: the program runs to its end"), || whole(&ended, verdicts.len(), failed, &rest));
}

/// A program that stops early, or whose exit code contradicts its checks, has an additional error.
fn whole(ended: &ProcessOutput, checks: usize, failed: bool, rest: &[&str]) -> Result<()> {
    ensure!(
        checks > 0 && rest.contains(&END) && ended.status.success() != failed,
        "{}\n{}\n{}",
        ended.status,
        last_lines(rest),
        ended.stderr
    );
    Ok(())
}

/// Returns the verdicts, and the output after the last one.
fn read(printed: &str) -> (Vec<CheckVerdict<'_>>, Vec<&str>) {
    let (mut verdicts, mut since) = (Vec::new(), Vec::new());
    for line in printed.lines() {
        match line.strip_prefix("check ").and_then(|text| serde_json::from_str::<Value>(text).ok()) {
            Some(check) => verdicts.push(CheckVerdict {
                says: check["says"].as_str().unwrap_or_default().to_owned(),
                seconds: check["seconds"].as_f64().unwrap_or_default(),
                passed: check["passed"].as_bool().unwrap_or_default(),
                printed: std::mem::take(&mut since),
            }),
            None if line.starts_with("===") || line.trim().is_empty() => {}
            None => since.push(line),
        }
    }
    (verdicts, since)
}

fn last_lines(lines: &[&str]) -> String {
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_includes_the_output_before_it() {
        let printed = "=== RUN   TestX/it_works\ncheck {\"says\": \"it works\", \"seconds\": 0.5, \"passed\": true}\n\
                       === RUN   TestX/it_fails\n    x_test.go:1: no\n\
                       check {\"says\": \"it fails\", \"seconds\": 1, \"passed\": false}\n--- FAIL: TestX\nFAIL\n";
        let (verdicts, rest) = read(printed);
        let verdict =
            |says: &str, seconds, passed, printed| CheckVerdict { says: says.to_owned(), seconds, passed, printed };
        assert_eq!(
            verdicts,
            [verdict("it works", 0.5, true, vec![]), verdict("it fails", 1.0, false, vec!["    x_test.go:1: no"])]
        );
        assert_eq!(rest, ["--- FAIL: TestX", "FAIL"]);
    }
}
