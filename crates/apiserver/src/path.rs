//! From the bytes of a URL to path segments, once. What could be read in two ways is refused.

use portolan_types::{LogicalClusterId, LogicalClusterPath, Status};

/// Longest request target that is looked at, in bytes.
pub(crate) const MAX_TARGET: usize = 8 * 1024;

/// Which logical cluster the URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// None: the token's, else root.
    Nothing,
    /// By path.
    Path(LogicalClusterPath),
    /// By id.
    Id(LogicalClusterId),
    /// `*`.
    Every,
}

/// A URL path, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) cluster: Named,
    /// Decoded segments behind the logical cluster.
    pub(crate) segments: Vec<String>,
}

impl Target {
    /// Parses the path part of a URL.
    ///
    /// # Errors
    /// 400 for everything ambiguous: empty segments, encoded slashes, control characters, and up to the first segment behind the
    /// logical cluster dots and what is encoded twice. Behind it these are names like others, which nothing has.
    pub(crate) fn parse(path: &str) -> Result<Self, Status> {
        let inner = path.strip_prefix('/').ok_or_else(|| bad("a path starts with a slash"))?;
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        let mut segments = match inner {
            "" if path.len() > 1 => return Err(bad("a path has no empty segments")),
            "" => Vec::new(),
            inner => inner.split('/').map(decode).collect::<Result<Vec<_>, _>>()?,
        };
        let is_below = segments.first().is_some_and(|first| first == "clusters");
        segments.iter().take(if is_below { 3 } else { 1 }).try_for_each(|segment| check_literal(segment))?;
        if !is_below {
            return Ok(Self { cluster: Named::Nothing, segments });
        }
        if segments.len() < 2 {
            return Err(Status::no_such_path());
        }
        let rest = segments.split_off(2);
        Ok(Self { cluster: named(&segments[1])?, segments: rest })
    }

    /// The path behind the logical cluster, as policies name it.
    pub(crate) fn rest(&self) -> String {
        format!("/{}", self.segments.join("/"))
    }
}

fn named(text: &str) -> Result<Named, Status> {
    if text == "*" {
        return Ok(Named::Every);
    }
    if text == "system" {
        // Never resolved; as a path it is simply one that nobody has.
        return Ok(Named::Path(text.parse().expect("it is a label")));
    }
    if let Some(id) = (text != "root").then(|| text.parse().ok()).flatten() {
        return Ok(Named::Id(id));
    }
    text.parse().map(Named::Path).map_err(|_| bad("not a path or id of a logical cluster"))
}

fn decode(segment: &str) -> Result<String, Status> {
    let text =
        percent_encoding::percent_decode_str(segment).decode_utf8().map_err(|_| bad("a path is encoded in UTF-8"))?;
    let odd = |c: char| c.is_control() || c == '/' || c == '\\';
    match &*text {
        "" => Err(bad("a path has no empty segments")),
        text if text.chars().any(odd) => Err(bad("a path segment has no slashes or control characters")),
        _ => Ok(text.into_owned()),
    }
}

/// Another reader would take such a segment for a way to somewhere else.
fn check_literal(segment: &str) -> Result<(), Status> {
    match segment {
        "." | ".." => Err(bad("a path does not begin with dot segments")),
        text if text.contains('%') => Err(bad("a path does not begin with percent signs")),
        _ => Ok(()),
    }
}

fn bad(why: &str) -> Status {
    Status::bad_request(format!("the request path is invalid: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_paths_are_refused() {
        for (path, code) in [
            ("/clusters/../x", Some(400)),
            ("/clusters/%2e%2e/x", Some(400)),
            ("/clusters/..%2fx", Some(400)),
            ("/clusters/%252e", Some(400)),
            ("//clusters/a//api", Some(400)),
            ("/clusters/a;b/", Some(400)),
            ("/clusters/a%00/api", Some(400)),
            ("/clusters/A/api", Some(400)),
            ("/clusters/root./api", Some(400)),
            ("/clusters/root:a\\b/api", Some(400)),
            ("/clusters", Some(404)),
            ("/api/v1/namespaces/a%2fb/pods", Some(400)),
            ("/api//v1", Some(400)),
            ("//", Some(400)),
            ("api", Some(400)),
            ("/", None),
            ("/api/", None),
            ("/clusters/root:a/api/v1", None),
            ("/clusters/root%3Aa/api/v1", None),
            ("/clusters/*/api/v1/pods", None),
            ("/../api", Some(400)),
            ("/%252e%252e/api", Some(400)),
            ("/clusters/root:a/../root:b/api", Some(400)),
            ("/clusters/root:a/%252e%252e/root:b/api", Some(400)),
            ("/clusters/root:a/api/v1/../../x", None),
            ("/api/v1/namespaces/a%252fb", None),
            ("/api/v1/namespaces/..%2fb", Some(400)),
        ] {
            assert_eq!(Target::parse(path).err().map(|s| s.code()), code, "{path}");
        }
    }

    #[test]
    fn the_logical_cluster_is_cut_off() {
        let target = Target::parse("/clusters/root:a/api/v1/").unwrap();
        assert_eq!(target.cluster, Named::Path("root:a".parse().unwrap()));
        assert_eq!(target.rest(), "/api/v1");
        let dots = Target::parse("/clusters/root:a/api/v1/../%2e/a%25b").unwrap();
        assert_eq!(dots.rest(), "/api/v1/.././a%b", "nothing is left out, or decoded twice");
        let id = LogicalClusterId::new(7);
        assert_eq!(Target::parse(&format!("/clusters/{id}/api")).unwrap().cluster, Named::Id(id));
        assert_eq!(Target::parse("/clusters/root").unwrap().cluster, Named::Path(LogicalClusterPath::root()));
    }
}
