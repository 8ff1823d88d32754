//! `kubectl portolan where`.

use anyhow::bail;
use clap::Args;
use http::Method;
use portolan_types::{object, placement::PlacementCopyStatus};
use serde_json::Value;

use super::{placed_condition, placement_of};
use crate::cli::plugin::{
    context::PluginContext,
    flags::OutputFlags,
    formats,
    resources::{ObjectArg, ResourceCatalog, ResourceType},
    session::ApiRequest,
    text_table::TextTable,
};

/// Print the physical clusters of objects, with the state of each copy.
#[derive(Args)]
pub(crate) struct WhereArgs {
    /// Objects: TYPE/NAME …, TYPE NAME …, or TYPE for all of a type.
    #[arg(value_name = "TYPE/NAME", required = true)]
    objects: Vec<String>,
    /// Label selector of the objects.
    #[arg(short = 'l', long)]
    selector: Option<String>,
    /// Objects of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    #[command(flatten)]
    format: OutputFlags,
}

/// Object with its Placement.
struct LocatedObject {
    title: String,
    namespace: String,
    placement: Value,
}

impl WhereArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// A refusal; an object that does not exist.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        let args = ObjectArg::parse(&self.objects)?;
        ctx.connect().await?;
        let catalog = ResourceCatalog::discover(ctx.session()).await?;
        let mut located = Vec::new();
        for arg in &args {
            let of = catalog.find(&arg.kind)?;
            match &arg.name {
                Some(_) if self.selector.is_some() || self.all_namespaces => {
                    bail!("a resource cannot be retrieved by name across all namespaces, or with a selector");
                }
                Some(name) => {
                    let read = ctx.session().get(&of.path(&ctx.session().namespace, Some(name))).await?;
                    located.push(located_object(ctx, of, &read).await?);
                }
                None => located.extend(self.list(ctx, of).await?),
            }
        }
        ctx.print_warnings();
        let is_single = args.len() == 1 && args[0].name.is_some();
        let placements = located.iter().map(|found| found.placement.clone()).collect();
        let list = formats::list_of(placements, is_single);
        let table = table(&located, self.all_namespaces, self.format.is_wide());
        formats::print(&mut ctx.terminal, &self.format, &list, || table)?;
        if located.is_empty() {
            ctx.terminal.note(&format!("No resources found in {} namespace.", ctx.session().namespace));
        }
        for found in located.iter().filter(|found| placed_condition(&found.placement, "status") == "False") {
            let message = placed_condition(&found.placement, "message");
            ctx.terminal.note(&format!("{}: {message}\n  see:  kubectl portolan why {}", found.title, found.title));
        }
        Ok(())
    }

    async fn list(&self, ctx: &PluginContext, of: &ResourceType) -> anyhow::Result<Vec<LocatedObject>> {
        let path = of.path(&ctx.session().namespace, None);
        let all = format!("/namespaces/{}", ctx.session().namespace);
        let path = if self.all_namespaces { path.replacen(&all, "", 1) } else { path };
        let selector = self.selector.as_ref().map(|text| format!("?labelSelector={}", encoded(text)));
        let path = format!("{path}{}", selector.unwrap_or_default());
        let list = ctx.session().send(ApiRequest::new(Method::GET, &path)).await?;
        let mut located = Vec::new();
        for item in list["items"].as_array().into_iter().flatten() {
            located.push(located_object(ctx, of, item).await?);
        }
        Ok(located)
    }
}

async fn located_object(ctx: &PluginContext, of: &ResourceType, read: &Value) -> anyhow::Result<LocatedObject> {
    Ok(LocatedObject {
        title: format!("{}/{}", of.kind.to_lowercase(), object::name(read)),
        namespace: object::namespace(read).to_owned(),
        placement: placement_of(ctx.session(), of, read).await?,
    })
}

/// Encodes a query value.
pub(crate) fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn table(located: &[LocatedObject], with_namespace: bool, wide: bool) -> TextTable {
    let mut headers = vec!["OBJECT", "CLUSTER", "STATE", "READY"];
    if with_namespace {
        headers.insert(0, "NAMESPACE");
    }
    if wide {
        headers.extend(["POLICY", "MESSAGE"]);
    }
    let mut table = TextTable::new(headers);
    for found in located {
        let policy = policy(&found.placement);
        let row = |cluster: &str, state: &str, ready: &str, message: &str| {
            let mut cells = if with_namespace { vec![found.namespace.clone()] } else { Vec::new() };
            cells.extend([&found.title, cluster, state, ready].map(str::to_owned));
            if wide {
                cells.extend([policy.clone(), message.to_owned()]);
            }
            cells
        };
        let copies: Vec<PlacementCopyStatus> =
            serde_json::from_value(found.placement["status"]["clusters"].clone()).unwrap_or_default();
        for copy in &copies {
            table.row(row(&copy.name, &state(copy), &ready(copy), &copy.message));
        }
        if copies.is_empty() {
            let reason = placed_condition(&found.placement, "reason");
            let reason = if reason.is_empty() { "NotPlaced" } else { reason };
            let message = placed_condition(&found.placement, "message");
            let is_cluster_scoped = found.namespace.is_empty() && message.is_empty();
            let message =
                if is_cluster_scoped { "cluster-scoped objects are not placed by themselves" } else { message };
            table.row(row("", reason, "", message));
        }
    }
    table
}

/// Returns one word for a copy.
pub(super) fn state(copy: &PlacementCopyStatus) -> String {
    let wanted = copy.desired.or(copy.replicas);
    match (copy.phase.as_str(), copy.reason.as_str(), wanted) {
        ("Active", "", Some(wanted)) if copy.ready < wanted => "Progressing".to_owned(),
        ("Active", "", _) => "Running".to_owned(),
        ("Active", reason, _) => reason.to_owned(),
        (phase, ..) => phase.to_owned(),
    }
}

/// Formats ready replicas of all; empty for a kind without replicas.
pub(super) fn ready(copy: &PlacementCopyStatus) -> String {
    copy.desired.or(copy.replicas).map(|wanted| format!("{}/{wanted}", copy.ready)).unwrap_or_default()
}

fn policy(placement: &Value) -> String {
    let policy = &placement["status"]["policy"];
    let text = |key: &str| policy[key].as_str().unwrap_or_default();
    match (text("workspace"), text("namespace"), text("name")) {
        (_, _, "") => "<default>".to_owned(),
        (workspace, "", name) => format!("{workspace}:{name}"),
        (workspace, namespace, name) => format!("{workspace}:{namespace}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_per_copy_says_how_it_stands() {
        let web = json!({"status": {"policy": {"workspace": "root:shop", "namespace": "default", "name": "spread"}, "clusters": [
            {"name": "eu-1", "phase": "Active", "ready": 3, "desired": 3, "replicas": 3},
            {"name": "eu-2", "phase": "Active", "ready": 1, "replicas": 2},
            {"name": "us-1", "phase": "Leaving", "ready": 1, "desired": 1},
            {"name": "us-2", "phase": "Active", "ready": 0, "reason": "Conflict", "message": "it is not ours"}]}});
        let lost = json!({"status": {"conditions": [{"type": "Placed", "status": "False", "reason": "NoClusterFits", "message": "0/2 fit"}]}});
        let located = |title: &str, placement: Value| LocatedObject {
            title: title.into(),
            namespace: "default".into(),
            placement,
        };
        let all = [located("deployment/web", web), located("deployment/lost", lost)];
        let expected = "OBJECT            CLUSTER   STATE           READY
deployment/web    eu-1      Running         3/3
deployment/web    eu-2      Progressing     1/2
deployment/web    us-1      Leaving         1/1
deployment/web    us-2      Conflict        <none>
deployment/lost   <none>    NoClusterFits   <none>
";
        assert_eq!(table(&all, false, false).text(true), expected);
        let wide = table(&all, true, true).text(false);
        assert!(
            wide.starts_with(
                "default   deployment/web    eu-1     Running         3/3      root:shop:default/spread   <none>\n"
            ),
            "{wide}"
        );
        assert!(wide.contains("<none>   <default>                  0/2 fit\n"), "{wide}");
    }

    #[test]
    fn selectors_are_encoded_for_queries() {
        assert_eq!(encoded("app in (a,b),x!=y z"), "app%20in%20%28a%2Cb%29%2Cx%21%3Dy%20z");
    }
}
