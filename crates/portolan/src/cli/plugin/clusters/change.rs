//! Changes of physical clusters: labels and cordons.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use clap::Args;
use http::Method;
use portolan_types::{
    object,
    placement::{DrainPhase, GROUP},
};
use serde_json::{Value, json};

use super::{RegisteredCluster, follow::DrainOfCluster, path_of, title};
use crate::cli::plugin::{context::PluginContext, flags::OutputFlags, formats, session::ApiRequest};

/// Keep new objects off physical clusters; objects stay.
#[derive(Args)]
pub(super) struct CordonArgs {
    /// Names of physical clusters.
    #[arg(value_name = "CLUSTER", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    format: OutputFlags,
}

/// Place objects on physical clusters again, also after a drain that has completed.
#[derive(Args)]
pub(super) struct UncordonArgs {
    /// Names of physical clusters.
    #[arg(value_name = "CLUSTER", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    format: OutputFlags,
}

/// Change labels of a physical cluster, as `kubectl label` does.
#[derive(Args)]
pub(super) struct LabelArgs {
    /// Name of the physical cluster.
    #[arg(value_name = "CLUSTER")]
    name: String,
    /// Changes: KEY=VALUE sets a label, KEY- removes one.
    #[arg(value_name = "KEY=VALUE", required = true)]
    changes: Vec<String>,
    /// Change labels that are there.
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    format: OutputFlags,
}

/// Prints a changed physical cluster: a line, or the object in a format of objects.
fn print_change(ctx: &mut PluginContext, flags: &OutputFlags, line: &str, object: &Value) -> anyhow::Result<()> {
    match flags.object_format() {
        None => ctx.terminal.line(line),
        Some(format) => formats::print_object(&mut ctx.terminal, &format, object),
    }
}

impl CordonArgs {
    pub(super) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        for name in &self.names {
            cordon(ctx, name, true, &self.format).await?;
        }
        Ok(())
    }
}

impl UncordonArgs {
    pub(super) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        for name in &self.names {
            let cluster = cordon(ctx, name, false, &self.format).await?;
            // A completed drain keeps objects away for as long as it exists.
            let drains = DrainOfCluster::list(ctx.session(), &cluster, name).await.unwrap_or_default();
            drains.iter().filter_map(|drain| holding_text(drain, name)).for_each(|line| ctx.terminal.note(&line));
            for drain in drains.iter().filter(|drain| drain.status.phase == DrainPhase::Completed) {
                let drain_name = object::name(&drain.object);
                if drain.spec.physical_clusters.len() > 1 {
                    ctx.terminal.note(&format!(
                        "drain.{GROUP}/{drain_name} of {} still keeps objects away: delete it, or undo it with --undo",
                        drain.spec.physical_clusters.join(",")
                    ));
                    continue;
                }
                let path = DrainOfCluster::path(Some(drain_name));
                let request = ApiRequest::new(Method::DELETE, &path).to(cluster.home.as_ref());
                ctx.session().send(request).await?;
                ctx.terminal.note(&format!("drain.{GROUP} \"{drain_name}\" deleted"));
            }
        }
        Ok(())
    }
}

/// Returns the line about a drain that has started and not ended; `None` for any other.
fn holding_text(drain: &DrainOfCluster, name: &str) -> Option<String> {
    let phase = drain.status.phase;
    let text = || {
        let (title, word) = (drain.title(), phase.word());
        format!("{title} ({word}) still keeps objects off {name}\n  end it:  kubectl portolan drain {name} --abort")
    };
    phase.is_active().then(text)
}

async fn cordon(
    ctx: &mut PluginContext,
    name: &str,
    wanted: bool,
    flags: &OutputFlags,
) -> anyhow::Result<RegisteredCluster> {
    let cluster = RegisteredCluster::read(ctx.session(), name).await?;
    let word = if wanted { "cordoned" } else { "uncordoned" };
    if cluster.object["spec"]["unschedulable"].as_bool().unwrap_or(false) == wanted {
        print_change(ctx, flags, &format!("{} already {word}", title(name)), &cluster.object)?;
        return Ok(cluster);
    }
    let patch = json!({"spec": {"unschedulable": wanted}});
    let object = ctx.session().patch(cluster.home.as_ref(), &path_of(name), &patch).await?;
    ctx.print_warnings();
    print_change(ctx, flags, &format!("{} {word}", title(name)), &object)?;
    Ok(RegisteredCluster { object, ..cluster })
}

impl LabelArgs {
    pub(super) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        let cluster = RegisteredCluster::read(ctx.session(), &self.name).await?;
        let changes = parse_labels(&self.changes)?;
        if !self.overwrite {
            refuse_overwrites(&cluster.object, &changes)?;
        }
        let is_set = |(key, value): (&String, &Option<String>)| object::label(&cluster.object, key) == value.as_deref();
        if changes.iter().all(is_set) {
            let line = format!("{} not labeled", title(&self.name));
            return print_change(ctx, &self.format, &line, &cluster.object);
        }
        let patch = json!({"metadata": {"labels": changes}});
        let object = ctx.session().patch(cluster.home.as_ref(), &path_of(&self.name), &patch).await?;
        ctx.print_warnings();
        let word = if changes.values().all(Option::is_none) { "unlabeled" } else { "labeled" };
        print_change(ctx, &self.format, &format!("{} {word}", title(&self.name)), &object)
    }
}

/// Parses changes of labels: `None` removes one. The server checks keys and values.
fn parse_labels(changes: &[String]) -> anyhow::Result<BTreeMap<String, Option<String>>> {
    let mut parsed = BTreeMap::new();
    for change in changes {
        let (key, value) = match change.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (
                change.strip_suffix('-').with_context(|| {
                    format!("at least one label update is required: \"{change}\" is no KEY=VALUE and no KEY-")
                })?,
                None,
            ),
        };
        if key.is_empty() {
            bail!("invalid label spec: {change}");
        }
        if parsed.insert(key.to_owned(), value).is_some() {
            bail!("can not both modify and remove a label in the same command: {key}");
        }
    }
    Ok(parsed)
}

fn refuse_overwrites(cluster: &Value, changes: &BTreeMap<String, Option<String>>) -> anyhow::Result<()> {
    for (key, value) in changes {
        match (object::label(cluster, key), value) {
            (Some(there), Some(value)) if there != value => {
                bail!("'{key}' already has a value ({there}), and --overwrite is false");
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_that_runs_is_named_by_uncordon() {
        for (phase, is_named) in
            [("Planned", false), ("Running", true), ("Paused", true), ("Blocked", true), ("Completed", false)]
        {
            let object = json!({"metadata": {"name": "eu-1-x7k2p"}, "status": {"phase": phase}});
            let line = holding_text(&DrainOfCluster::of(object), "eu-1").unwrap_or_default();
            assert_eq!(line.starts_with("drain.portolan.dev/eu-1-x7k2p ("), is_named, "{phase}: {line}");
        }
    }

    #[test]
    fn labels_are_changed_as_kubectl_changes_them() {
        let parse = |line: &str| parse_labels(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let set = |pairs: &[(&str, Option<&str>)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect::<BTreeMap<_, _>>()
        };
        for (line, expected) in [
            ("region=eu", Some(set(&[("region", Some("eu"))]))),
            ("region=eu zone-", Some(set(&[("region", Some("eu")), ("zone", None)]))),
            ("empty=", Some(set(&[("empty", Some(""))]))),
            ("a=b=c", Some(set(&[("a", Some("b=c"))]))),
            ("region", None),
            ("=eu", None),
            ("-", None),
            ("a=b a-", None),
        ] {
            assert_eq!(parse(line).ok(), expected, "{line}");
        }
        let cluster = json!({"metadata": {"labels": {"region": "eu"}}});
        for (line, is_refused) in [("region=us", true), ("region=eu", false), ("region-", false), ("zone=a", false)] {
            assert_eq!(refuse_overwrites(&cluster, &parse(line).unwrap()).is_err(), is_refused, "{line}");
        }
    }
}
