//! Names of workspaces on the command line, in the grammar of kcp's `kubectl ws`.

use portolan_types::LogicalClusterPath;

/// Destination of `kubectl ws`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkspaceTarget {
    /// Home workspace of the user: `~`, or no name.
    Home,
    /// Workspace of before: `-`.
    Previous,
    /// Current workspace: `.`.
    Current,
    /// Workspace of a path.
    Path(LogicalClusterPath),
}

impl WorkspaceTarget {
    /// Parses a name, relative to the current workspace: `shop`, `shop:team`, `..`, `..:other`; or absolute: `:`,
    /// `:root:shop`, `root:shop`. A shell replaces `~` by the home directory, which stands for it.
    ///
    /// # Errors
    /// Fails for an invalid path, above the top, or relative to no workspace.
    pub(crate) fn parse(
        text: &str,
        current: Option<&LogicalClusterPath>,
        home: Option<&std::path::Path>,
    ) -> Result<Self, String> {
        match text {
            "" | "~" => return Ok(Self::Home),
            "-" => return Ok(Self::Previous),
            "." => return Ok(Self::Current),
            ":" => return Ok(Self::Path(LogicalClusterPath::root())),
            _ if home.is_some_and(|home| home.as_os_str() == text) => return Ok(Self::Home),
            _ => {}
        }
        let invalid = || format!("invalid workspace name format: {text}");
        if let Some(absolute) = text.strip_prefix(':') {
            return absolute.parse().map(Self::Path).map_err(|_| invalid());
        }
        if text == "root" || text.starts_with("root:") {
            return text.parse().map(Self::Path).map_err(|_| invalid());
        }
        let current =
            current.ok_or("the server of the current context is no workspace; name an absolute path, such as :root")?;
        let mut at = current.clone();
        for part in text.split(':') {
            at = match part {
                "." => at,
                ".." => at.parent().ok_or_else(|| format!("{at} has no parent workspace"))?,
                name => at.child(name).map_err(|_| invalid())?,
            };
        }
        Ok(Self::Path(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_kcp_reads_them() {
        let path = |text: &str| Ok(WorkspaceTarget::Path(text.parse().unwrap()));
        let current: LogicalClusterPath = "root:acme:shop".parse().unwrap();
        for (text, expected) in [
            ("", Ok(WorkspaceTarget::Home)),
            ("~", Ok(WorkspaceTarget::Home)),
            ("/home/ann", Ok(WorkspaceTarget::Home)),
            ("-", Ok(WorkspaceTarget::Previous)),
            (".", Ok(WorkspaceTarget::Current)),
            (":", path("root")),
            (":root", path("root")),
            ("root", path("root")),
            (":root:a", path("root:a")),
            ("root:a:b", path("root:a:b")),
            (":2v9qx7h1k0c3d", path("2v9qx7h1k0c3d")),
            ("team", path("root:acme:shop:team")),
            ("team:a", path("root:acme:shop:team:a")),
            ("..", path("root:acme")),
            ("..:..", path("root")),
            ("..:other", path("root:acme:other")),
            (".:team", path("root:acme:shop:team")),
            ("..:..:..", Err("root has no parent workspace")),
            ("Shop", Err("invalid workspace name format: Shop")),
            ("::", Err("invalid workspace name format: ::")),
            (":root:", Err("invalid workspace name format: :root:")),
            ("a/b", Err("invalid workspace name format: a/b")),
            ("../..", Err("invalid workspace name format: ../..")),
        ] {
            let parsed = WorkspaceTarget::parse(text, Some(&current), Some("/home/ann".as_ref()));
            assert_eq!(parsed, expected.map_err(str::to_owned), "{text:?}");
        }
        assert!(WorkspaceTarget::parse("team", None, None).unwrap_err().contains("absolute path"));
        assert!(WorkspaceTarget::parse("root:a", None, None).is_ok());
    }
}
