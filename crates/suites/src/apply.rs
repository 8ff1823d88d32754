//! Server-side apply beside the real field manager, which is built on the published structured merge diff: histories of
//! writes by several managers, made up from seeds, to objects of the built-in kinds. Every run first replays the
//! histories that once ended differently, then the same seeds. A search uses other seeds, as many as requested.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use harness::report::CheckReport;
use harness::{cargo::cargo, go, process};

/// Objects of the kinds, as seen from the repository and from `e2e/`.
const BASES: [&str; 2] = ["crates/strategy/testdata/bases.jsonl", "../crates/strategy/testdata/bases.jsonl"];
/// Histories that were found to differ, as seen from `e2e/`.
const KEPT: &str = "codegen/kindtable/kept.jsonl";
/// The seeds of every run. Each makes a history for each of the kinds, of eight writes and more.
const ALWAYS: Seeds = Seeds { first: 1, count: 20 };
/// Seeds per round of a search: their histories are held in memory.
const AT_ONCE: u64 = 40;

/// The seeds from which histories are made up.
#[derive(Clone, Copy)]
struct Seeds {
    first: u64,
    count: u64,
}

/// Choice of histories.
#[derive(clap::Args)]
pub(super) struct HistorySearch {
    /// Suite apply: search with this many new seeds, each a history of about nine writes for each of a hundred objects.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Suite apply: the first seed of the search. Without it the time says which.
    #[arg(long, value_name = "SEED", requires = "seeds")]
    seed: Option<u64>,
}

pub(super) fn run(report: &mut CheckReport, search: &HistorySearch, work: &Path) {
    let program = work.join("kindtable");
    if !report.check("apply: the real field manager is built", || go::build("codegen/kindtable", &program)) {
        return;
    }
    match search.seeds {
        None => {
            let always = || compare(&program, work, ALWAYS, false);
            report.check("apply: objects, owners and refusals are upstream's", always);
        }
        Some(count) => {
            let first = search.seed.unwrap_or_else(seed_of_now);
            for done in (0..count).step_by(AT_ONCE as usize) {
                let seeds = Seeds { first: first + done, count: AT_ONCE.min(count - done) };
                report.check("apply: objects, owners and refusals are upstream's, searched", || {
                    compare(&program, work, seeds, true)
                });
            }
        }
    }
}

/// First seed of a search: far from the seeds of every run, and from those of searches that started in another second.
fn seed_of_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(ALWAYS.count + 1, |now| now.as_secs() * 1000)
}

fn compare(program: &Path, work: &Path, seeds: Seeds, is_search: bool) -> Result<()> {
    let Seeds { first, count } = seeds;
    println!("      seeds {first} to {}", first + count - 1);
    let (seed, histories) = (first.to_string(), count.to_string());
    let mut args = vec!["-bases", BASES[1], "-histories", &histories, "-seed", &seed];
    if !is_search {
        args.extend(["-kept", KEPT]);
    }
    let file = work.join("histories.jsonl");
    fs::write(&file, go::printed(program, &args)?)?;
    let found = work.join("found.jsonl");
    let mut ours = cargo();
    ours.args(["run", "--quiet", "-p", "portolan-strategy", "--example", "histories"]);
    let told = process::output(ours.args(["--", BASES[0], go::text(&file)?, go::text(&found)?]), go::LIMIT);
    let told = told.with_context(|| format!("what differs, if anything, is in {}", found.display()))?;
    println!("      {}", told.lines().last().unwrap_or_default());
    Ok(())
}
