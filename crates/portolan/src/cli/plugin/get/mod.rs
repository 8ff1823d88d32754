//! `kubectl portolan get --all-clusters`: objects of physical clusters themselves, in one list that the server merges.

mod merge;

use std::pin::pin;

use anyhow::{anyhow, bail};
use clap::Args;
use futures::TryStreamExt as _;
use http::Method;
use portolan_types::{
    LogicalClusterPath, object,
    placement::{GROUP, VERSION},
};
use serde_json::Value;

use self::merge::PaneTable;
use super::{
    clusters::HOME,
    context::{POLL, PluginContext},
    flags::OutputFlags,
    formats,
    placements::encoded,
    resources::{ObjectArg, ResourceCatalog, ResourceType},
    session::{ApiRequest, ApiSession, JSON, RequestError, TABLE},
    text_table::TextTable,
};

/// Objects of one page of a list that is too large for one answer.
const PAGE: usize = 500;
/// HTTP status for a list that is too large for one answer.
const TOO_LARGE: u16 = 413;

/// Get objects of the physical clusters themselves, with a column for the cluster.
///
/// The names and namespaces are those of the physical clusters. It takes the right to list the type in the workspace,
/// the right to the proxy of the physical clusters (`physicalclusters/proxy`), and the rights of the user there.
/// Physical clusters that do not answer are named in warnings.
#[derive(Args)]
pub(crate) struct GetArgs {
    /// Type, and name: TYPE, TYPE NAME…, TYPE/NAME…
    #[arg(value_name = "TYPE [NAME]", required = true)]
    objects: Vec<String>,
    /// Ask all physical clusters within reach of the workspace.
    #[arg(long, conflicts_with = "cluster")]
    all_clusters: bool,
    /// Ask these physical clusters; may be repeated.
    #[arg(long, visible_alias = "clusters", value_name = "NAME", value_delimiter = ',')]
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
    /// After the objects, print those that change.
    #[arg(short = 'w', long)]
    watch: bool,
    #[command(flatten)]
    format: OutputFlags,
}

/// Objects of one type on several physical clusters.
#[derive(Default)]
struct FoundObjects {
    /// Pages of lists, or of tables.
    pages: Vec<Value>,
    /// Names that no physical cluster has.
    missing: Vec<String>,
}

impl GetArgs {
    /// Runs the command, and returns its exit code: 1 if no physical cluster has an object that was named.
    ///
    /// # Errors
    /// Wrong arguments; a type that no physical cluster has; no answer of any of them.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<u8> {
        let wanted = ObjectArg::parse(&self.objects)?;
        let kinds = self.checked(&wanted)?;
        ctx.connect().await?;
        let (mut objects, mut missing, mut is_first) = (Vec::new(), Vec::new(), true);
        for kind in kinds {
            let of = self.resource(ctx.session(), kind).await?;
            let names = wanted.iter().filter(|arg| arg.kind == kind).map(|arg| arg.name.as_deref());
            let names: Vec<Option<&str>> = names.collect();
            let found = self.find(ctx.session(), &of, &names).await?;
            ctx.print_warnings();
            missing.extend(found.missing);
            if self.format.object_format().is_some() {
                objects.extend(merge::objects(&of, found.pages));
            } else if !found.pages.is_empty() || names.contains(&None) {
                let separator = if is_first { "" } else { "\n" };
                self.print_tables(ctx, separator, &of, &found.pages).await?;
                is_first = false;
            }
        }
        if self.format.object_format().is_some() && (missing.is_empty() || !objects.is_empty()) {
            formats::print(&mut ctx.terminal, &self.format, &formats::list_of(objects, false), TextTable::default)?;
        }
        missing.iter().for_each(|refused| ctx.terminal.note(refused));
        Ok(u8::from(!missing.is_empty()))
    }

    /// Checks that the arguments fit together, and returns the wanted types, each once.
    fn checked<'w>(&self, wanted: &'w [ObjectArg]) -> anyhow::Result<Vec<&'w str>> {
        if !self.all_clusters && self.cluster.is_empty() {
            bail!("add --all-clusters, or --cluster NAME; kubectl get has the objects of the workspace");
        }
        if wanted.iter().any(|arg| arg.name.is_some()) && (self.selector.is_some() || self.field_selector.is_some()) {
            bail!("name cannot be provided when a selector is specified");
        }
        let mut kinds: Vec<&str> = Vec::new();
        for arg in wanted {
            if !kinds.contains(&arg.kind.as_str()) {
                kinds.push(&arg.kind);
            }
        }
        if self.watch && (wanted.len() > 1 || self.format.object_format().is_some()) {
            bail!("--watch is for one type or object, and for tables");
        }
        Ok(kinds)
    }

    /// Finds a type in the workspace; one that the workspace lacks, on the physical clusters.
    ///
    /// # Errors
    /// A refusal; kubectl's message for a type that none has.
    async fn resource(&self, session: &ApiSession, kind: &str) -> anyhow::Result<ResourceType> {
        let catalog = ResourceCatalog::discover(session).await?;
        let unknown = match catalog.find(kind) {
            Ok(found) => return Ok(found.clone()),
            Err(error) => error,
        };
        let list = session.get(&format!("/apis/{GROUP}/{VERSION}/physicalclusters")).await?;
        let known = list["items"].as_array().map_or(&[][..], Vec::as_slice);
        let is_asked = |own: &&Value| self.all_clusters || self.cluster.iter().any(|name| name == object::name(own));
        for cluster in known.iter().filter(is_asked) {
            let home: Option<LogicalClusterPath> = object::annotation(cluster, HOME).and_then(|path| path.parse().ok());
            let proxy = format!("/apis/{GROUP}/{VERSION}/physicalclusters/{}/proxy", object::name(cluster));
            let catalog = ResourceCatalog::discover_with(async |path, accept| {
                let path = format!("{proxy}{path}");
                session.send(ApiRequest { accept, ..ApiRequest::new(Method::GET, &path).to(home.as_ref()) }).await
            });
            // One that does not answer is named by the list.
            if let Some(found) = catalog.await.ok().and_then(|catalog| catalog.find(kind).ok().cloned()) {
                return Ok(found);
            }
        }
        Err(unknown)
    }

    /// Lists the objects of a type, or those with the names.
    async fn find(
        &self,
        session: &ApiSession,
        of: &ResourceType,
        names: &[Option<&str>],
    ) -> Result<FoundObjects, RequestError> {
        let mut found = FoundObjects::default();
        for name in names {
            let pages = self.list(session, &self.path(session, of, *name)).await?;
            match name {
                Some(name) if pages.iter().all(is_empty) => {
                    let resource = [&of.resource, &of.group].map(String::as_str).join(".");
                    let resource = resource.trim_end_matches('.');
                    found.missing.push(format!("Error from server (NotFound): {resource} \"{name}\" not found"));
                }
                _ => found.pages.extend(pages),
            }
        }
        Ok(found)
    }

    /// Reads a list: whole, or in pages if it is too large.
    async fn list(&self, session: &ApiSession, path: &str) -> Result<Vec<Value>, RequestError> {
        let accept = if self.format.object_format().is_some() { JSON } else { TABLE };
        let read = async |path: &str| session.send(ApiRequest { accept, ..ApiRequest::new(Method::GET, path) }).await;
        match read(path).await {
            Err(error) if error.code() == Some(TOO_LARGE) => {}
            whole => return whole.map(|list| vec![list]),
        }
        let (mut pages, mut next) = (Vec::new(), String::new());
        loop {
            let page = read(&format!("{path}&limit={PAGE}{next}")).await?;
            let token = object::meta_text(&page, "continue").to_owned();
            pages.push(page);
            if token.is_empty() {
                return Ok(pages);
            }
            next = format!("&continue={}", encoded(&token));
        }
    }

    fn path(&self, session: &ApiSession, of: &ResourceType, name: Option<&str>) -> String {
        let namespace = (!self.all_namespaces).then_some(session.namespace.as_str());
        let clusters = if self.all_clusters { "all".to_owned() } else { self.cluster.join(",") };
        let named = name.map(|name| format!("metadata.name={name}"));
        let selectors = [
            ("labelSelector", self.selector.as_ref()),
            ("fieldSelector", named.as_ref().or(self.field_selector.as_ref())),
        ];
        let selectors = selectors.into_iter().filter_map(|(key, value)| Some(format!("&{key}={}", encoded(value?))));
        format!("{}?clusters={}{}", of.path_in(namespace, None), encoded(&clusters), selectors.collect::<String>())
    }

    /// Prints the pages of a list as one table, and then the changes if they are wanted.
    async fn print_tables(
        &self,
        ctx: &mut PluginContext,
        separator: &str,
        of: &ResourceType,
        pages: &[Value],
    ) -> anyhow::Result<()> {
        let mut shown = ShownTable::new(self, of);
        let rows = shown.rows(pages);
        if !rows.is_empty() {
            ctx.terminal.print(&format!("{separator}{}", shown.text(&rows)))?;
        } else if !self.watch {
            let is_everywhere = self.all_namespaces || !of.is_namespaced;
            let place =
                if is_everywhere { String::new() } else { format!(" in {} namespace", ctx.session().namespace) };
            ctx.terminal.note(&format!("No resources found{place}."));
        }
        match pages.last().filter(|_| self.watch) {
            Some(last) => self.follow(ctx, of, object::meta_text(last, "resourceVersion"), shown).await,
            None => Ok(()),
        }
    }

    /// Prints the objects that change after a version, without an end.
    async fn follow(
        &self,
        ctx: &mut PluginContext,
        of: &ResourceType,
        version: &str,
        mut shown: ShownTable,
    ) -> anyhow::Result<()> {
        let mut version = version.to_owned();
        let names = ObjectArg::parse(&self.objects)?;
        let path = self.path(ctx.session(), of, names.first().and_then(|arg| arg.name.as_deref()));
        loop {
            let path = format!("{path}&watch=true&resourceVersion={}", encoded(&version));
            let mut events = pin!(ctx.session().watch(&path, TABLE).await?);
            while let Some(event) = events.try_next().await.map_err(|error| anyhow!("the watch ends: {error}"))? {
                let Some(changed) = merge::changed(event)? else { continue };
                version = merge::version_of(&changed).unwrap_or(version);
                let rows = shown.rows(&[changed]);
                ctx.terminal.print(&shown.text(&rows))?;
            }
            // The server ends a watch now and then, and when a physical cluster comes.
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Table as it was printed so far.
struct ShownTable {
    table: PaneTable,
    is_wide: bool,
    has_headers: bool,
    widths: Vec<usize>,
}

impl ShownTable {
    fn new(args: &GetArgs, of: &ResourceType) -> Self {
        let table = PaneTable::new(args.all_namespaces && of.is_namespaced);
        let (is_wide, has_headers) = (args.format.is_wide(), !args.format.no_headers);
        Self { table, is_wide, has_headers, widths: Vec::new() }
    }

    /// Returns the rows of pages.
    fn rows(&mut self, pages: &[Value]) -> TextTable {
        pages.iter().for_each(|page| self.table.add(page));
        TextTable::from_server(&self.table.take(), self.is_wide)
    }

    /// Formats rows; the first ones with headers.
    fn text(&mut self, rows: &TextTable) -> String {
        let has_headers = std::mem::replace(&mut self.has_headers, false);
        rows.text_within(has_headers, &mut self.widths)
    }
}

fn is_empty(page: &Value) -> bool {
    [&page["items"], &page["rows"]].into_iter().all(|list| list.as_array().is_none_or(Vec::is_empty))
}
