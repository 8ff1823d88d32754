//! `kubectl portolan get --all-clusters`: objects of physical clusters themselves, read through their proxies.

mod merge;

use std::collections::BTreeSet;

use anyhow::bail;
use clap::Args;
use futures::future::join_all;
use http::Method;
use portolan_types::{
    LogicalClusterPath, object,
    placement::{GROUP, VERSION},
};
use serde_json::Value;

use self::merge::{MemberAnswer, MemberObjects};
use super::{
    clusters::HOME,
    context::PluginContext,
    flags::OutputFlags,
    formats,
    placements::encoded,
    resources::{ObjectArg, ResourceCatalog, ResourceType},
    session::{ApiRequest, ApiSession, JSON, RequestError, TABLE},
    text_table::TextTable,
};

/// Get objects of the physical clusters themselves, with a column for the cluster.
///
/// The names and namespaces are those of the physical clusters. It takes the right to their proxy
/// (`physicalclusters/proxy`), and the rights of the user there.
#[derive(Args)]
pub(crate) struct GetArgs {
    /// Type, and name: TYPE, TYPE NAME…, TYPE/NAME…
    #[arg(value_name = "TYPE [NAME]", required = true)]
    objects: Vec<String>,
    /// Ask all physical clusters within reach of the workspace.
    #[arg(long, conflicts_with = "cluster")]
    all_clusters: bool,
    /// Ask these physical clusters; may be repeated.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    cluster: Vec<String>,
    /// Get the objects of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Label selector.
    #[arg(short = 'l', long)]
    selector: Option<String>,
    /// Field selector.
    #[arg(long)]
    field_selector: Option<String>,
    #[command(flatten)]
    format: OutputFlags,
}

/// Physical cluster to query.
struct Member {
    name: String,
    /// Workspace that has it; `None` for that of the session.
    home: Option<LogicalClusterPath>,
}

impl Member {
    fn of(cluster: &Value, session: &ApiSession) -> Self {
        let home: Option<LogicalClusterPath> = object::annotation(cluster, HOME).and_then(|path| path.parse().ok());
        let home = home.filter(|home| session.url().workspace.as_ref() != Some(home));
        Self { name: object::name(cluster).to_owned(), home }
    }

    fn proxy(&self) -> String {
        format!("/apis/{GROUP}/{VERSION}/physicalclusters/{}/proxy", self.name)
    }

    /// Reads a path of the physical cluster.
    async fn read(&self, session: &ApiSession, path: &str, accept: &str) -> Result<Value, RequestError> {
        let path = format!("{}{path}", self.proxy());
        session.send(ApiRequest { accept, ..ApiRequest::new(Method::GET, &path).to(self.home.as_ref()) }).await
    }
}

impl GetArgs {
    /// Runs the command, and returns its exit code: 1 if a physical cluster did not answer, or none has an object.
    ///
    /// # Errors
    /// Wrong arguments; a type or an object that no physical cluster has.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<u8> {
        let wanted = ObjectArg::parse(&self.objects)?;
        if !self.all_clusters && self.cluster.is_empty() {
            bail!("add --all-clusters, or --cluster NAME; kubectl get has the objects of the workspace");
        }
        if wanted.iter().any(|arg| arg.name.is_some()) && (self.selector.is_some() || self.field_selector.is_some()) {
            bail!("name cannot be provided when a selector is specified");
        }
        ctx.connect().await?;
        let members = self.members(ctx.session()).await?;
        let kinds: Vec<String> = wanted.iter().map(|arg| arg.kind.clone()).fold(Vec::new(), |mut kinds, kind| {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
            kinds
        });
        let (mut code, mut objects, mut missing, mut is_first) = (0, Vec::new(), Vec::new(), true);
        for kind in kinds {
            let names: Vec<Option<&str>> =
                wanted.iter().filter(|arg| arg.kind == kind).map(|arg| arg.name.as_deref()).collect();
            let asked = members.iter().map(|member| self.ask(ctx.session(), member, &kind, &names));
            let answers = merge::accepted(&kind, join_all(asked).await)?;
            for failed in &answers.failures {
                ctx.terminal.note(&format!("Warning: {failed}"));
                code = 1;
            }
            missing.extend(answers.missing);
            if self.format.object_format().is_some() {
                objects.extend(merge::objects(answers.found));
            } else if !answers.found.is_empty() || names.contains(&None) {
                let separator = if is_first { "" } else { "\n" };
                self.print_table(ctx, separator, &merge::table(&answers.found, self.all_namespaces))?;
                is_first = false;
            }
        }
        ctx.print_warnings();
        if self.format.object_format().is_some() && (missing.is_empty() || !objects.is_empty()) {
            formats::print(&mut ctx.terminal, &self.format, &formats::list_of(objects, false), TextTable::default)?;
        }
        for refused in missing {
            ctx.terminal.note(&refused.to_string());
            code = 1;
        }
        Ok(code)
    }

    /// Returns the physical clusters to ask.
    async fn members(&self, session: &ApiSession) -> anyhow::Result<Vec<Member>> {
        let list = session.get(&format!("/apis/{GROUP}/{VERSION}/physicalclusters")).await?;
        let known = list["items"].as_array().map_or(&[][..], Vec::as_slice);
        let wanted: BTreeSet<&str> = self.cluster.iter().map(String::as_str).collect();
        if let Some(missing) = wanted.iter().find(|name| !known.iter().any(|own| object::name(own) == **name)) {
            bail!("physical cluster \"{missing}\" not found");
        }
        let is_asked = |cluster: &&Value| self.all_clusters || wanted.contains(object::name(cluster));
        let members: Vec<Member> = known.iter().filter(is_asked).map(|own| Member::of(own, session)).collect();
        if members.is_empty() {
            bail!("no physical clusters are within reach of this workspace");
        }
        Ok(members)
    }

    /// Asks one physical cluster for the objects of a type.
    async fn ask(&self, session: &ApiSession, member: &Member, kind: &str, names: &[Option<&str>]) -> MemberAnswer {
        let found = self.read_objects(session, member, kind, names).await;
        MemberAnswer { member: member.name.clone(), found }
    }

    async fn read_objects(
        &self,
        session: &ApiSession,
        member: &Member,
        kind: &str,
        names: &[Option<&str>],
    ) -> Result<Option<MemberObjects>, RequestError> {
        let catalog = ResourceCatalog::discover_with(async |path, accept| member.read(session, path, accept).await);
        let catalog = catalog.await?;
        let Ok(resource) = catalog.find(kind) else { return Ok(None) };
        let accept = if self.format.object_format().is_some() { JSON } else { TABLE };
        let mut objects = MemberObjects::default();
        for name in names {
            match (member.read(session, &self.path(session, resource, *name), accept).await, name) {
                (Ok(answer), _) => objects.found.push(answer),
                // Another physical cluster may have it.
                (Err(error), Some(name)) if error.is_not_found() => objects.absent.push(((*name).to_owned(), error)),
                (Err(error), _) => return Err(error),
            }
        }
        Ok(Some(objects))
    }

    fn path(&self, session: &ApiSession, resource: &ResourceType, name: Option<&str>) -> String {
        let namespace = (!self.all_namespaces).then_some(session.namespace.as_str());
        let selectors = [("labelSelector", &self.selector), ("fieldSelector", &self.field_selector)];
        let selectors = selectors.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let query: Vec<String> = selectors.map(|(key, value)| format!("{key}={}", encoded(value))).collect();
        let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
        format!("{}{query}", resource.path_in(namespace, name))
    }

    fn print_table(&self, ctx: &mut PluginContext, separator: &str, table: &Value) -> anyhow::Result<()> {
        let shown = TextTable::from_server(table, self.format.is_wide());
        if shown.is_empty() {
            let place =
                if self.all_namespaces { String::new() } else { format!(" in {} namespace", ctx.session().namespace) };
            ctx.terminal.note(&format!("No resources found{place}."));
            return Ok(());
        }
        ctx.terminal.print(&format!("{separator}{}", shown.text(!self.format.no_headers)))
    }
}
