//! Lines about the current workspace, in kcp's words.

use serde_json::{Value, json};

use crate::cli::plugin::session::WorkspaceUrl;

/// Returns the type of a Workspace, as `root:universal`.
pub(super) fn type_of(workspace: &Value) -> Option<String> {
    let of = &workspace["spec"]["type"];
    let name = of["name"].as_str()?;
    Some(match of["path"].as_str() {
        Some(path) if !path.is_empty() => format!("{path}:{name}"),
        _ => name.to_owned(),
    })
}

/// Workspace that the kubeconfig points to.
#[derive(Clone, Debug)]
pub(super) struct CurrentWorkspace {
    pub(super) url: WorkspaceUrl,
    /// Type, if it was read.
    pub(super) kind: Option<String>,
}

impl CurrentWorkspace {
    /// Formats the line about it; with `short`, only the path.
    pub(super) fn line(&self, short: bool) -> String {
        let Some(path) = &self.url.workspace else {
            let base = &self.url.base;
            return if short { base.clone() } else { format!("Current workspace is the URL \"{base}\".") };
        };
        match &self.kind {
            _ if short => path.to_string(),
            Some(kind) => format!("Current workspace is \"{path}\" (type {kind})."),
            None => format!("Current workspace is \"{path}\"."),
        }
    }

    /// Returns it for scripts; fields that are not known are null.
    pub(super) fn value(&self) -> Value {
        let url = self.url.workspace.as_ref().map_or_else(|| self.url.base.clone(), |path| self.url.of(path));
        json!({"path": self.url.workspace, "type": self.kind, "url": url})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kcps() {
        for (url, kind, short, expected) in [
            (
                "https://a/clusters/root:b",
                Some("root:universal"),
                false,
                "Current workspace is \"root:b\" (type root:universal).",
            ),
            ("https://a/clusters/root:b", None, false, "Current workspace is \"root:b\"."),
            ("https://a/clusters/root:b", Some("x"), true, "root:b"),
            ("https://a", None, false, "Current workspace is the URL \"https://a\"."),
            ("https://a", None, true, "https://a"),
        ] {
            let workspace = CurrentWorkspace { url: WorkspaceUrl::parse(url).unwrap(), kind: kind.map(str::to_owned) };
            assert_eq!(workspace.line(short), expected);
            assert_eq!(workspace.value()["url"], url);
        }
        assert_eq!(type_of(&json!({"spec": {"type": {"name": "u", "path": "root"}}})).as_deref(), Some("root:u"));
        assert_eq!(type_of(&json!({"spec": {"type": {"name": "u"}}})).as_deref(), Some("u"));
        assert_eq!(type_of(&json!({"spec": {}})), None);
    }
}
