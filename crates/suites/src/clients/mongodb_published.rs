//! The MongoDB operator's own published end-to-end tests, unmodified, as its developers run them locally: with an
//! operator outside of the cluster, for all namespaces, without the parts that query a MongoDB.
//! `e2e/operators/mongodb-operator.yaml` lists the cases that run, and the reasons for the others.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Deserialize;

use super::ClientStage;
use super::agents::Agents;
use super::go_tests::{GoTests, LeftOut, pattern};
use super::harbour::PATIENCE;
use harness::process::Process;
use harness::report::CheckReport;
use harness::tools::repository;

/// Time limit of one test program, with a margin for Go's report of an unfinished one.
const LIMIT: Duration = Duration::from_secs(600);
const REPORTED: Duration = Duration::from_secs(30);
const LOOKED: Duration = Duration::from_millis(200);

/// Selection of cases, as in the data file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MongodbCases {
    /// Programs that run one after another; lanes run side by side.
    lanes: Vec<Vec<PublishedProgram>>,
    left_out: Vec<LeftOut>,
}

/// A test program, which runs in its own namespace.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedProgram {
    package: String,
    /// Value of Go's `-run`; all tests without it.
    run: Option<String>,
    /// So many pass, tests without tests in them.
    cases: usize,
}

/// Result of a program.
struct ProgramResult {
    says: String,
    seconds: f64,
    outcome: Result<()>,
}

/// Runs all of them, and `beside` meanwhile.
pub(super) fn run(
    report: &mut CheckReport,
    stage: &ClientStage<'_>,
    agents: &Agents,
    beside: impl FnOnce(&mut CheckReport),
) {
    let mut selection = None;
    report.check("mongodb-operator: its own end-to-end tests can be run", || {
        selection = Some(MongodbCases::read()?);
        Ok(())
    });
    let Some(selection) = &selection else { return };
    let ended: Vec<ProgramResult> = thread::scope(|scope| {
        let lanes = selection.lanes.iter().enumerate();
        let begun: Vec<_> = lanes.map(|(at, lane)| scope.spawn(move || selection.run(stage, at, lane))).collect();
        beside(report);
        begun.into_iter().flat_map(|lane| lane.join().unwrap_or_else(|_| vec![panicked()])).collect()
    });
    for ProgramResult { says, seconds, outcome } in ended {
        let outcome = outcome.with_context(|| format!("agents: {:?}", agents.complaint()));
        report.record(&says, seconds, outcome);
    }
    report.check("mongodb-operator: what its own tests have made goes", || selection.clean(stage));
}

fn panicked() -> ProgramResult {
    ProgramResult {
        says: "mongodb-operator's own tests".to_owned(),
        seconds: 0.0,
        outcome: Err(anyhow!("it panicked")),
    }
}

impl MongodbCases {
    fn read() -> Result<Self> {
        let text = fs::read_to_string(repository().join("e2e/operators/mongodb-operator.yaml"))?;
        let selection: Self = serde_saphyr::from_str(&text).context("the selection of cases")?;
        selection.left_out.iter().try_for_each(LeftOut::check)?;
        Ok(selection)
    }

    fn run(&self, stage: &ClientStage<'_>, lane: usize, programs: &[PublishedProgram]) -> Vec<ProgramResult> {
        let run = |program: &PublishedProgram| {
            let start = Instant::now();
            let outcome = self.run_program(stage, program, &program.namespace(lane));
            let says = format!("mongodb-operator's own tests: {}, {} cases", program.name(), program.cases);
            ProgramResult { says, seconds: start.elapsed().as_secs_f64(), outcome }
        };
        programs.iter().map(run).collect()
    }

    fn run_program(&self, stage: &ClientStage<'_>, program: &PublishedProgram, namespace: &str) -> Result<()> {
        let tests = Process::spawn(namespace, Path::new("env"), self.command(stage, program, namespace)?, stage.dir)?;
        let start = Instant::now();
        while tests.ended()?.is_none() {
            ensure!(start.elapsed() < LIMIT + REPORTED, "they did not end:\n{}", tests.log_tail());
            thread::sleep(LOOKED);
        }
        let told = || format!("all is in {}", stage.dir.display());
        GoTests::read(&tests.log()?).outcome(program.cases).with_context(told)
    }

    /// Returns the arguments of `env`. The operator runs beside the tests, so values that Helm gets for images and a
    /// namespace apply only to an operator in a pod.
    fn command(&self, stage: &ClientStage<'_>, program: &PublishedProgram, namespace: &str) -> Result<Vec<String>> {
        let helm = stage.clients.helm();
        let helm = helm.parent().context("Helm is in no folder")?.display();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut skipped: Vec<&String> = self.left_out.iter().flat_map(|group| &group.cases).collect();
        // Go uses the first pattern that matches, also in part: whole tests come before their subtests.
        skipped.sort_by_key(|case| case.matches('/').count());
        let skipped: Vec<String> = skipped.into_iter().map(|case| pattern(case)).collect();
        let mut words = vec![
            format!("PATH={helm}:{path}"),
            format!("KUBECONFIG={}", stage.kubectl.kubeconfig_file().display()),
            format!("HOME={}", stage.dir.display()),
            format!("HELM_CHART_PATH={}", stage.clients.mongodb_operator("chart").display()),
            format!("TEST_NAMESPACE={namespace}"),
            "MDB_LOCAL_OPERATOR=true".to_owned(),
            "CLUSTER_WIDE=true".to_owned(),
            "PERFORM_CLEANUP=true".to_owned(),
            stage.clients.mongodb_operator(&format!("{}.test", program.package)).display().to_string(),
            "-test.v".to_owned(),
            "-test.short".to_owned(),
            "-test.count=1".to_owned(),
            format!("-test.timeout={}s", LIMIT.as_secs()),
            format!("-test.skip={}", skipped.join("|")),
        ];
        words.extend(program.run.iter().map(|run| format!("-test.run={run}")));
        Ok(words)
    }

    /// Lets the namespaces of the tests go: each deletes its replica sets, and leaves the operator's chart.
    fn clean(&self, stage: &ClientStage<'_>) -> Result<()> {
        let lanes = self.lanes.iter().enumerate();
        let namespaces: Vec<String> =
            lanes.flat_map(|(at, lane)| lane.iter().map(move |program| program.namespace(at))).collect();
        let kubectl = stage.kubectl.within(PATIENCE * 3);
        kubectl.run(&format!("delete namespace {} --timeout=170s", namespaces.join(" "))).map(drop)
    }
}

impl PublishedProgram {
    fn namespace(&self, lane: usize) -> String {
        format!("{}-{lane}", self.package.replace('_', "-"))
    }

    fn name(&self) -> String {
        self.run.as_ref().map_or_else(|| self.package.clone(), |run| format!("{} ({run})", self.package))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use harness::operators::MONGODB_TESTS;

    #[test]
    fn the_selection_names_what_is_compiled_and_each_left_out_case_once() {
        let selection = MongodbCases::read().unwrap();
        let programs = || selection.lanes.iter().flatten();
        let mut packages: Vec<&str> = programs().map(|program| &*program.package).collect();
        packages.sort_unstable();
        packages.dedup();
        assert_eq!(packages, MONGODB_TESTS);
        let mut left_out = BTreeMap::new();
        for name in selection.left_out.iter().flat_map(|group| group.cases.iter().chain(&group.packages)) {
            *left_out.entry(&**name).or_insert(0) += 1;
        }
        assert!(left_out.values().all(|times| *times == 1), "{left_out:?}");
        assert!(packages.iter().all(|package| !left_out.contains_key(package)));
        let lanes = selection.lanes.iter().enumerate();
        let namespaces = lanes.flat_map(|(at, lane)| lane.iter().map(move |program| program.namespace(at)));
        assert!(namespaces.into_iter().all(|name| name.len() <= 63), "a namespace has a longer name");
    }
}
