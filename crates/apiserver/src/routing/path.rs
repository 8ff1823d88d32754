//! URL paths, parsed once into segments. Ambiguous paths are refused.

use portolan_types::{LogicalClusterId, LogicalClusterPath, Status, apis::ExportAddress};

use crate::views::{self, StepAddress};

/// Longest request target, in bytes.
pub(crate) const MAX_TARGET: usize = 8 * 1024;

/// Logical cluster that the URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestedCluster {
    /// No logical cluster in the URL: the one of the token applies, otherwise root.
    Unspecified,
    /// Path of a logical cluster.
    Path(LogicalClusterPath),
    /// Id of a logical cluster.
    Id(LogicalClusterId),
    /// `*`: all logical clusters.
    All,
    /// Text that is neither a path nor an id: no logical cluster has it.
    Invalid(String),
}

impl RequestedCluster {
    /// Returns the path as requested, if the URL has a valid one.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Path(path) => Some(path),
            Self::All => Some("*"),
            Self::Unspecified | Self::Id(_) | Self::Invalid(_) => None,
        }
    }
}

/// Parsed URL path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UrlPath {
    pub(crate) cluster: RequestedCluster,
    /// Export whose view the request goes through.
    pub(crate) view: Option<ExportAddress>,
    /// True if the view is flattened: names in the request tell the logical cluster.
    pub(crate) is_flattened: bool,
    /// Step whose pending logical clusters the view shows.
    pub(crate) step: Option<Box<StepAddress>>,
    /// Decoded segments after the logical cluster.
    pub(crate) segments: Vec<String>,
}

impl UrlPath {
    /// Parses the path of a URL.
    ///
    /// # Errors
    /// 400 for ambiguous paths: empty segments, encoded slashes, control characters; up to the first segment after the
    /// logical cluster also dot segments and double encoding. After it these are ordinary names, which no object has.
    pub(crate) fn parse(path: &str) -> Result<Self, Status> {
        let inner = path.strip_prefix('/').ok_or_else(|| bad("a path starts with a slash"))?;
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        let mut segments = match inner {
            "" if path.len() > 1 => return Err(bad("a path has no empty segments")),
            "" => Vec::new(),
            inner => inner.split('/').map(decode).collect::<Result<Vec<_>, _>>()?,
        };
        if segments.first().is_some_and(|first| first == "services") {
            if let Some(export) = views::flattened_export_of(&segments) {
                segments.iter().take(views::FLATTENED_SEGMENTS + 1).try_for_each(|segment| check_literal(segment))?;
                let rest = segments.split_off(views::FLATTENED_SEGMENTS);
                let cluster = RequestedCluster::Id(export.cluster);
                return Ok(Self { cluster, view: Some(export), is_flattened: true, step: None, segments: rest });
            }
            if let Some(step) = StepAddress::of(&segments) {
                segments.iter().take(views::STEP_SEGMENTS).try_for_each(|segment| check_literal(segment))?;
                let rest = segments.split_off(views::STEP_SEGMENTS);
                let cluster = cluster_by_text(&segments[views::STEP_SEGMENTS - 1]);
                return Ok(Self {
                    cluster,
                    view: None,
                    is_flattened: false,
                    step: Some(Box::new(step)),
                    segments: rest,
                });
            }
            segments.iter().take(views::SEGMENTS).try_for_each(|segment| check_literal(segment))?;
            let view = Some(views::export_of(&segments).ok_or_else(Status::no_such_path)?);
            let rest = segments.split_off(views::SEGMENTS);
            return Ok(Self {
                cluster: cluster_by_text(&segments[views::SEGMENTS - 1]),
                view,
                is_flattened: false,
                step: None,
                segments: rest,
            });
        }
        let is_below = segments.first().is_some_and(|first| first == "clusters");
        segments.iter().take(if is_below { 3 } else { 1 }).try_for_each(|segment| check_literal(segment))?;
        if !is_below {
            return Ok(Self {
                cluster: RequestedCluster::Unspecified,
                view: None,
                is_flattened: false,
                step: None,
                segments,
            });
        }
        if segments.len() < 2 {
            return Err(Status::no_such_path());
        }
        let rest = segments.split_off(2);
        Ok(Self { cluster: cluster_by_text(&segments[1]), view: None, is_flattened: false, step: None, segments: rest })
    }

    /// Returns the path within the logical cluster, as policies name it.
    pub(crate) fn rest(&self) -> String {
        format!("/{}", self.segments.join("/"))
    }
}

fn cluster_by_text(text: &str) -> RequestedCluster {
    if text == "*" {
        return RequestedCluster::All;
    }
    if text == "system" {
        // Never resolved: as a path it belongs to no logical cluster.
        return RequestedCluster::Path(text.parse().expect("it is a label"));
    }
    if let Some(id) = (text != "root").then(|| text.parse().ok()).flatten() {
        return RequestedCluster::Id(id);
    }
    text.parse().map_or_else(|_| RequestedCluster::Invalid(text.to_owned()), RequestedCluster::Path)
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

/// Refuses a segment that another parser could resolve to another path.
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
            ("/clusters/a%00/api", Some(400)),
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
            ("/clusters/a;b/", None),
            ("/clusters/A/api", None),
            ("/clusters/root./api", None),
            ("/../api", Some(400)),
            ("/%252e%252e/api", Some(400)),
            ("/clusters/root:a/../root:b/api", Some(400)),
            ("/clusters/root:a/%252e%252e/root:b/api", Some(400)),
            ("/clusters/root:a/api/v1/../../x", None),
            ("/api/v1/namespaces/a%252fb", None),
            ("/api/v1/namespaces/..%2fb", Some(400)),
        ] {
            assert_eq!(UrlPath::parse(path).err().map(|s| s.code()), code, "{path}");
        }
    }

    #[test]
    fn the_logical_cluster_is_cut_off() {
        let target = UrlPath::parse("/clusters/root:a/api/v1/").unwrap();
        assert_eq!(target.cluster, RequestedCluster::Path("root:a".parse().unwrap()));
        assert_eq!(target.rest(), "/api/v1");
        let dots = UrlPath::parse("/clusters/root:a/api/v1/../%2e/a%25b").unwrap();
        assert_eq!(dots.rest(), "/api/v1/.././a%b", "nothing is left out, or decoded twice");
        let id = LogicalClusterId::new(7);
        assert_eq!(UrlPath::parse(&format!("/clusters/{id}/api")).unwrap().cluster, RequestedCluster::Id(id));
        for text in ["Root:Shop", "root:Shop", "root.", "a;b", "root:"] {
            let parsed = UrlPath::parse(&format!("/clusters/{text}/api")).unwrap();
            assert_eq!(parsed.cluster, RequestedCluster::Invalid(text.into()), "no logical cluster has it");
        }
        assert_eq!(
            UrlPath::parse("/clusters/root").unwrap().cluster,
            RequestedCluster::Path(LogicalClusterPath::root())
        );
    }
}
