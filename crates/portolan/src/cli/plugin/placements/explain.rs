//! `kubectl portolan why`: verdict of every filter about every physical cluster.

use anyhow::bail;
use clap::Args;
use portolan_types::placement::{GROUP, VERSION};
use serde_json::{Value, json};

use super::single_object;
use crate::cli::plugin::{
    context::PluginContext, flags::OutputFlags, formats, nearest_name::nearest, text_table::TextTable,
};

/// Explain why an object runs where it runs, or nowhere.
#[derive(Args)]
pub(crate) struct WhyArgs {
    /// Object: TYPE/NAME or TYPE NAME.
    #[arg(value_name = "TYPE/NAME", required = true)]
    object: Vec<String>,
    /// Explain one physical cluster, filter by filter.
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    #[command(flatten)]
    format: OutputFlags,
}

impl WhyArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// A refusal; an object or physical cluster that does not exist.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        ctx.connect().await?;
        let (of, name) = single_object(ctx, &self.object).await?;
        let namespace = ctx.session().namespace.clone();
        let review = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "PlacementExplanation",
            "metadata": {"name": "why", "namespace": namespace},
            "spec": {"object": {"apiVersion": of.api_version(), "kind": of.kind, "name": name}},
        });
        let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/placementexplanations");
        let answer = ctx.session().create(None, &path, &review).await?;
        ctx.print_warnings();
        if let Some(format) = self.format.object_format() {
            return formats::print_object(&mut ctx.terminal, &format, &answer);
        }
        let title = format!("{}/{name}", of.kind.to_lowercase());
        let text = match &self.cluster {
            None => matrix_text(&title, &answer["status"]),
            Some(cluster) => cluster_text(&title, &answer["status"], cluster)?,
        };
        ctx.terminal.print(&text)
    }
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

/// Formats the whole explanation.
fn matrix_text(title: &str, status: &Value) -> String {
    let mut out = format!("{title}: {}\n", text(status, "summary"));
    for note in list(status, "notes").iter().filter_map(Value::as_str) {
        out.push_str(&format!("  note: {note}\n"));
    }
    let policies = list(status, "policies");
    if !policies.is_empty() {
        let mut table = TextTable::new(["POLICY", "VERDICT"]);
        policies.iter().for_each(|policy| table.row([text(policy, "policy"), text(policy, "verdict")]));
        out.push_str(&format!("\n{}", table.text(true)));
    }
    let clusters = list(status, "clusters");
    if clusters.is_empty() {
        return out;
    }
    out.push_str(&format!("\n{}", matrix(clusters).text(true)));
    let mut lines: Vec<String> = clusters.iter().filter_map(reason_line).collect();
    lines.extend(nearest_line(&status["nearest"]));
    if !lines.is_empty() {
        out.push_str(&format!("\n{}\n", lines.join("\n")));
    }
    out
}

/// Makes a row per physical cluster with a column per filter.
fn matrix(clusters: &[Value]) -> TextTable {
    let filters: Vec<&str> =
        clusters.first().map_or(&[][..], |first| list(first, "verdicts")).iter().map(|v| text(v, "filter")).collect();
    let headers = ["CLUSTER", "RESULT", "SCORE"].into_iter().map(str::to_owned);
    let mut table = TextTable::new(headers.chain(filters.iter().map(|filter| filter.to_uppercase())));
    for cluster in clusters {
        let mut cells = vec![text(cluster, "name").to_owned(), result(cluster), cluster["score"].to_string()];
        for filter in &filters {
            let verdict = list(cluster, "verdicts").iter().find(|verdict| text(verdict, "filter") == *filter);
            cells.push(match verdict.map(|verdict| verdict["passed"] == true) {
                Some(true) => "ok".to_owned(),
                Some(false) => "NO".to_owned(),
                None => "-".to_owned(),
            });
        }
        table.row(cells);
    }
    table
}

/// Returns `chosen`, `chosen (3)`, or the reason of the rejection.
fn result(cluster: &Value) -> String {
    match (cluster["chosen"] == true, cluster["replicas"].as_i64(), text(cluster, "reason")) {
        (true, Some(replicas), _) => format!("chosen ({replicas})"),
        (true, None, _) => "chosen".to_owned(),
        (false, _, "") => "not considered".to_owned(),
        (false, _, reason) => reason.to_owned(),
    }
}

/// Returns the line about a physical cluster that was not chosen.
fn reason_line(cluster: &Value) -> Option<String> {
    let refused = list(cluster, "verdicts").iter().filter(|verdict| verdict["passed"] == false);
    let mut messages: Vec<&str> =
        refused.map(|verdict| text(verdict, "message")).filter(|text| !text.is_empty()).collect();
    if messages.is_empty() {
        messages.extend(Some(text(cluster, "message")).filter(|text| !text.is_empty()));
    }
    if cluster["chosen"] == true || messages.is_empty() {
        return None;
    }
    Some(format!("{}: {}", text(cluster, "name"), messages.join("; ")))
}

/// Returns the line about the smallest change after which another physical cluster would be chosen.
fn nearest_line(change: &Value) -> Option<String> {
    let (cluster, change) = (text(change, "physicalCluster"), text(change, "change"));
    (!change.is_empty()).then(|| format!("to change the answer to {cluster}: {change}"))
}

/// Formats one physical cluster: a line per filter.
///
/// # Errors
/// Fails if the explanation has no such physical cluster.
fn cluster_text(title: &str, status: &Value, name: &str) -> anyhow::Result<String> {
    let clusters = list(status, "clusters");
    let Some(cluster) = clusters.iter().find(|cluster| text(cluster, "name") == name) else {
        let guess = nearest(name, clusters.iter().map(|cluster| text(cluster, "name")));
        let guess = guess.map(|guess| format!("; did you mean \"{guess}\"?")).unwrap_or_default();
        bail!("physical cluster \"{name}\" is not within reach of {title}{guess}");
    };
    let mut out = format!("{title} on {name}: {} (score {})\n\n", result(cluster), cluster["score"]);
    let mut table = TextTable::new(["FILTER", "VERDICT", "REASON", "MESSAGE"]);
    for verdict in list(cluster, "verdicts") {
        let passed = if verdict["passed"] == true { "ok" } else { "NO" };
        table.row([text(verdict, "filter"), passed, text(verdict, "reason"), text(verdict, "message")]);
    }
    out.push_str(&table.text(true));
    let scores = list(cluster, "scores");
    if !scores.is_empty() {
        let mut table = TextTable::new(["SCORE", "VALUE"]);
        scores.iter().for_each(|score| table.row([text(score, "name").to_owned(), score["value"].to_string()]));
        out.push_str(&format!("\n{}", table.text(true)));
    }
    let change = Some(&status["nearest"]).filter(|change| text(change, "physicalCluster") == name);
    let lines: Vec<String> = reason_line(cluster).into_iter().chain(change.and_then(nearest_line)).collect();
    if !lines.is_empty() {
        out.push_str(&format!("\n{}\n", lines.join("\n")));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Value {
        let verdict = |filter: &str, refusal: Option<(&str, &str)>| match refusal {
            None => json!({"filter": filter, "passed": true}),
            Some((reason, message)) => json!({"filter": filter, "passed": false, "reason": reason, "message": message}),
        };
        json!({
            "summary": "placed on east",
            "notes": ["its pods are not admitted"],
            "policies": [{"policy": "policy spread of root:shop", "level": 0, "verdict": "decides"}],
            "nearest": {"physicalCluster": "west", "filter": "cordon", "change": "uncordon it"},
            "clusters": [
                {"name": "east", "chosen": true, "replicas": 3, "score": 80,
                    "verdicts": [verdict("cordon", None), verdict("taints", None)]},
                {"name": "west", "chosen": false, "score": 100, "reason": "Cordoned", "message": "it is cordoned",
                    "scores": [{"name": "home", "value": 1}],
                    "verdicts": [verdict("cordon", Some(("Cordoned", "it is cordoned"))), verdict("taints", None)]},
                {"name": "north", "chosen": false, "score": 9, "reason": "NotNeeded", "message": "it is not needed",
                    "verdicts": [verdict("cordon", None), verdict("taints", None)]}],
        })
    }

    #[test]
    fn the_matrix_has_a_row_per_cluster_and_a_column_per_filter() {
        let expected = "deployment/web: placed on east
  note: its pods are not admitted

POLICY                       VERDICT
policy spread of root:shop   decides

CLUSTER   RESULT       SCORE   CORDON   TAINTS
east      chosen (3)   80      ok       ok
west      Cordoned     100     NO       ok
north     NotNeeded    9       ok       ok

west: it is cordoned
north: it is not needed
to change the answer to west: uncordon it
";
        assert_eq!(matrix_text("deployment/web", &status()), expected);
        let nowhere = json!({"summary": "it is not placed by itself", "policies": [], "clusters": [], "notes": []});
        assert_eq!(matrix_text("event/a", &nowhere), "event/a: it is not placed by itself\n");
    }

    #[test]
    fn one_cluster_is_explained_filter_by_filter() {
        let expected = "deployment/web on west: Cordoned (score 100)

FILTER   VERDICT   REASON     MESSAGE
cordon   NO        Cordoned   it is cordoned
taints   ok        <none>     <none>

SCORE   VALUE
home    1

west: it is cordoned
to change the answer to west: uncordon it
";
        assert_eq!(cluster_text("deployment/web", &status(), "west").unwrap(), expected);
        let missing = cluster_text("deployment/web", &status(), "wset").unwrap_err().to_string();
        assert_eq!(missing, "physical cluster \"wset\" is not within reach of deployment/web; did you mean \"west\"?");
    }
}
