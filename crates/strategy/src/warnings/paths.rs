//! Files of one volume that would lie in each other's place.

use serde_json::Value;

use super::{MOST_COMPARED, Warnings, items, text};

/// Path within a volume with its source, which is empty in a volume of one source.
#[derive(Clone, PartialEq)]
struct Source {
    path: String,
    source: String,
}

impl Source {
    fn quoted_with_source(&self) -> String {
        if self.source.is_empty() { format!("{:?}", self.path) } else { format!("{:?} ({})", self.path, self.source) }
    }

    fn meets(&self, other: &Self) -> bool {
        let is_in = |path: &str, around: &str| {
            path.strip_prefix(around).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let (own, its) = (self.path.as_str(), other.path.as_str());
        !own.is_empty() && !its.is_empty() && (is_in(own, its) || is_in(its, own))
    }
}

/// Warns of paths of a volume that overlap, and of projections of nothing.
pub(super) fn overlaps(volume: &Value, warnings: &mut Warnings) {
    let name = text(volume, "/name");
    let plain = [
        ("configMap", format!("ConfigMap {:?}", text(volume, "/configMap/name"))),
        ("secret", format!("Secret {:?}", text(volume, "/secret/secretName"))),
        ("downwardAPI", "DownwardAPI".to_owned()),
    ];
    for (kind, what) in plain {
        let mut taken = Vec::new();
        let paths = items(volume, &format!("/{kind}/items")).map(|item| source(item, ""));
        paths.for_each(|path| add(name, &what, path, &mut taken, warnings));
    }
    let mut taken = Vec::new();
    for projection in items(volume, "/projected/sources") {
        if projection.as_object().is_some_and(serde_json::Map::is_empty) {
            warnings.add(format!("volume {name:?} (Projected) has no sources provided"));
        }
        sources(projection).into_iter().for_each(|path| add(name, "Projected", path, &mut taken, warnings));
    }
}

fn source(item: &Value, source: &str) -> Source {
    at(text(item, "/path"), source)
}

fn at(path: &str, source: &str) -> Source {
    Source { path: path.trim_end_matches('/').to_owned(), source: source.to_owned() }
}

fn add(name: &str, what: &str, path: Source, taken: &mut Vec<Source>, warnings: &mut Warnings) {
    for other in taken.iter().take(MOST_COMPARED).filter(|other| path.meets(other)) {
        let both = format!("{} with {}", path.quoted_with_source(), other.quoted_with_source());
        warnings.add(format!("volume {name:?} ({what}): overlapping paths: {both}"));
    }
    taken.push(path);
}

/// Returns the paths of one source of a projection.
fn sources(projection: &Value) -> Vec<Source> {
    let all =
        |kind: &str, what: String| items(projection, &format!("/{kind}/items")).map(|i| source(i, &what)).collect();
    let has = |kind: &str| projection.get(kind).is_some();
    if has("configMap") {
        return all("configMap", format!("ConfigMap {:?}", text(projection, "/configMap/name")));
    }
    if has("secret") {
        return all("secret", format!("Secret {:?}", text(projection, "/secret/name")));
    }
    if has("downwardAPI") {
        return all("downwardAPI", "DownwardAPI".to_owned());
    }
    if let Some(token) = projection.get("serviceAccountToken") {
        return vec![source(token, "ServiceAccountToken")];
    }
    if let Some(bundle) = projection.get("clusterTrustBundle") {
        let name = [text(bundle, "/name"), text(bundle, "/signerName")].into_iter().find(|name| !name.is_empty());
        return vec![source(bundle, &format!("ClusterTrustBundle {:?}", name.unwrap_or_default()))];
    }
    if let Some(certificate) = projection.get("podCertificate") {
        let paths = [
            ("certificateChainPath", "PodCertificate chain"),
            ("keyPath", "PodCertificate key"),
            ("credentialBundlePath", "PodCertificate credential bundle"),
        ];
        let given = paths.into_iter().map(|(name, what)| (text(certificate, &format!("/{name}")), what));
        return given.filter(|(path, _)| !path.is_empty()).map(|(path, what)| at(path, what)).collect();
    }
    Vec::new()
}
