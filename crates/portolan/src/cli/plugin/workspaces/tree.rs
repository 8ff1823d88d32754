//! `kubectl ws tree`.

use std::collections::BTreeMap;

use clap::Args;
use http::Method;
use portolan_types::{LogicalClusterPath, object};
use serde_json::{Value, json};

use super::WORKSPACES;
use crate::cli::plugin::{
    context::PluginContext,
    formats,
    output_format::OutputFormat,
    session::{ApiRequest, ApiSession, RequestError},
};

/// Workspaces of one page of a list.
const PAGE: usize = 500;

/// Print the workspaces below the current one, as far as they may be listed.
#[derive(Args)]
pub(crate) struct WorkspaceTreeArgs {
    /// Print full paths.
    #[arg(short, long)]
    full: bool,
    /// Output format: json, yaml, name, wide, jsonpath=TEMPLATE, jsonpath-as-json=TEMPLATE, jsonpath-file=FILE,
    /// custom-columns=HEADER:PATH,… or custom-columns-file=FILE.
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    output: Option<OutputFormat>,
}

/// Workspace with those below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct WorkspaceNode {
    /// Phase, where it is not `Ready`.
    phase: String,
    children: BTreeMap<String, WorkspaceNode>,
}

impl WorkspaceTreeArgs {
    /// Returns the format of objects; `None` for drawings.
    pub(crate) fn object_format(&self) -> Option<OutputFormat> {
        self.output.clone().filter(OutputFormat::is_of_objects)
    }

    /// Runs the command.
    ///
    /// # Errors
    /// A refusal to list the workspaces of the current one.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        ctx.connect().await?;
        let top = ctx.session().workspace()?.clone();
        let mut root = WorkspaceNode { children: children(ctx.session(), &top).await?, ..WorkspaceNode::default() };
        descend(ctx.session(), &top, &mut root).await?;
        ctx.print_warnings();
        match self.output {
            None | Some(OutputFormat::Table | OutputFormat::Wide) => {
                let name = if self.full { top.as_str() } else { super::name_in_parent(&top) };
                let mut text = format!(".\n└── {name}\n");
                draw(&root, self.full.then_some(top.as_str()), "    ", &mut text);
                ctx.terminal.print(&text)
            }
            Some(OutputFormat::Name) => {
                let mut paths = Vec::new();
                collect_paths(&root, top.as_str(), &mut paths);
                paths.iter().try_for_each(|path| ctx.terminal.line(path))
            }
            Some(format) => formats::print_object(&mut ctx.terminal, &format, &value(&root, top.as_str())),
        }
    }
}

/// Lists the workspaces directly below one.
async fn children(
    session: &ApiSession,
    parent: &LogicalClusterPath,
) -> Result<BTreeMap<String, WorkspaceNode>, RequestError> {
    let mut all = BTreeMap::new();
    let mut page = format!("{WORKSPACES}?limit={PAGE}");
    loop {
        let list = session.send(ApiRequest::new(Method::GET, &page).to(Some(parent))).await?;
        for item in list["items"].as_array().into_iter().flatten() {
            let phase = item["status"]["phase"].as_str().filter(|phase| *phase != "Ready").unwrap_or_default();
            let phase = if object::is_deleting(item) { "Terminating" } else { phase };
            all.insert(
                object::name(item).to_owned(),
                WorkspaceNode { phase: phase.into(), ..WorkspaceNode::default() },
            );
        }
        match list["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
            // Tokens consist of characters that need no encoding.
            Some(token) => page = format!("{WORKSPACES}?limit={PAGE}&continue={token}"),
            None => return Ok(all),
        }
    }
}

/// Lists the workspaces further below. A workspace that was deleted, or whose children the user may not list, has none.
async fn descend(session: &ApiSession, top: &LogicalClusterPath, root: &mut WorkspaceNode) -> anyhow::Result<()> {
    let mut open: Vec<(LogicalClusterPath, &mut WorkspaceNode)> = Vec::new();
    let below = |path: &LogicalClusterPath, name: &str| path.child(name).ok();
    for (name, node) in &mut root.children {
        open.extend(below(top, name).map(|path| (path, node)));
    }
    while let Some((path, node)) = open.pop() {
        node.children = match children(session, &path).await {
            Err(error) if error.is_not_found() || error.is_forbidden() || error.code() == Some(401) => continue,
            other => other?,
        };
        for (name, child) in &mut node.children {
            open.extend(below(&path, name).map(|path| (path, child)));
        }
    }
    Ok(())
}

fn draw(node: &WorkspaceNode, path: Option<&str>, indent: &str, text: &mut String) {
    let last = node.children.len().saturating_sub(1);
    for (at, (name, child)) in node.children.iter().enumerate() {
        let (branch, beside) = if at == last { ("└── ", "    ") } else { ("├── ", "│   ") };
        let full = path.map(|path| format!("{path}:{name}"));
        let phase = if child.phase.is_empty() { String::new() } else { format!(" ({})", child.phase) };
        text.push_str(&format!("{indent}{branch}{}{phase}\n", full.as_deref().unwrap_or(name)));
        draw(child, full.as_deref(), &format!("{indent}{beside}"), text);
    }
}

fn collect_paths(node: &WorkspaceNode, path: &str, paths: &mut Vec<String>) {
    paths.push(path.to_owned());
    node.children.iter().for_each(|(name, child)| collect_paths(child, &format!("{path}:{name}"), paths));
}

fn value(node: &WorkspaceNode, path: &str) -> Value {
    let children: Vec<_> = node.children.iter().map(|(name, child)| value(child, &format!("{path}:{name}"))).collect();
    let phase = if node.phase.is_empty() { "Ready" } else { &node.phase };
    json!({"path": path, "phase": phase, "children": children})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_are_drawn_as_kcp_draws_them() {
        let leaf = |phase: &str| WorkspaceNode { phase: phase.into(), ..WorkspaceNode::default() };
        let a = WorkspaceNode { children: [("x".to_owned(), leaf("")), ("y".into(), leaf(""))].into(), ..leaf("") };
        let root =
            WorkspaceNode { children: [("a".to_owned(), a), ("b".into(), leaf("Initializing"))].into(), ..leaf("") };
        let drawn = |path| {
            let mut text = String::new();
            draw(&root, path, "", &mut text);
            text
        };
        assert_eq!(drawn(None), "├── a\n│   ├── x\n│   └── y\n└── b (Initializing)\n");
        assert_eq!(drawn(Some("root")), "├── root:a\n│   ├── root:a:x\n│   └── root:a:y\n└── root:b (Initializing)\n");
        let mut paths = Vec::new();
        collect_paths(&root, "root", &mut paths);
        assert_eq!(paths, ["root", "root:a", "root:a:x", "root:a:y", "root:b"]);
        assert_eq!(
            value(&root, "root")["children"][1],
            json!({"path": "root:b", "phase": "Initializing", "children": []})
        );
    }
}
