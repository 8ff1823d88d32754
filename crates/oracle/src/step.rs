//! Corpus as data: scripts of requests, with placeholders for values of earlier answers.

use std::time::Duration;

use serde_json::Value;

use super::mutation::ObjectMutation;

/// Requests that run in order, in a namespace of their own.
#[derive(Debug)]
pub(super) struct OracleScript {
    /// Name as in `--only`: `apps/deployment`.
    pub(super) name: String,
    pub(super) steps: Vec<Step>,
    /// Runs before or after the others, because it reads shared state.
    pub(super) phase: ScriptPhase,
}

/// Phase of a script. Scripts of one phase run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ScriptPhase {
    /// Before any write: the initial content of the servers, discovery, OpenAPI.
    Fresh,
    Usual,
    /// Scripts that change how other requests are answered: custom resources, API services, admission.
    Last,
}

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Name of the request, unique in the script.
    pub(super) name: String,
    pub(super) method: String,
    /// Path and query; `${…}` is substituted per server.
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: RequestBody,
    /// Name under which the answer is stored for `${name:/pointer}`.
    pub(super) keep: Option<String>,
    /// Delay before the request: kube-apiserver's admission reads caches that lag behind.
    pub(super) pause: Duration,
}

/// Body of a request.
#[derive(Clone, Debug)]
pub(super) enum RequestBody {
    None,
    Json(Value),
    Yaml(Value),
    Text(String),
    Bytes(Vec<u8>),
    /// Protobuf that kube-apiserver itself returns for a dry-run create of this object.
    Protobuf(Value),
    /// Object at the path in this server's last answer, changed.
    Stored(ObjectMutation),
}

/// Media types with a short name in the corpus.
pub(super) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
pub(super) const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
pub(super) const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

impl Step {
    /// Creates a request without a body.
    pub(super) fn new(name: &str, method: &str, path: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            method: method.to_owned(),
            path: path.into(),
            headers: Vec::new(),
            body: RequestBody::None,
            keep: None,
            pause: Duration::ZERO,
        }
    }

    pub(super) fn get(name: &str, path: impl Into<String>) -> Self {
        Self::new(name, "GET", path)
    }

    /// Creates a POST of JSON.
    pub(super) fn post(name: &str, path: impl Into<String>, body: Value) -> Self {
        Self::new(name, "POST", path).json(body)
    }

    /// Creates a PATCH of this media type.
    pub(super) fn patch(name: &str, path: impl Into<String>, media: &str, body: Value) -> Self {
        let mut step = Self::new(name, "PATCH", path).json(body);
        step.headers.retain(|(name, _)| name != "content-type");
        step.header("content-type", media)
    }

    /// Creates a PUT of the stored object, changed.
    pub(super) fn put(name: &str, path: impl Into<String>, mutation: ObjectMutation) -> Self {
        let step = Self::new(name, "PUT", path).header("content-type", "application/json");
        Self { body: RequestBody::Stored(mutation), ..step }
    }

    pub(super) fn json(self, body: Value) -> Self {
        let step = self.header("content-type", "application/json");
        Self { body: RequestBody::Json(body), ..step }
    }

    pub(super) fn yaml(self, body: Value) -> Self {
        let step = self.header("content-type", "application/yaml");
        Self { body: RequestBody::Yaml(body), ..step }
    }

    pub(super) fn protobuf(self, body: Value) -> Self {
        let step = self.header("content-type", PROTOBUF);
        Self { body: RequestBody::Protobuf(body), ..step }
    }

    pub(super) fn text(self, media: &str, body: &str) -> Self {
        let step = self.header("content-type", media);
        Self { body: RequestBody::Text(body.to_owned()), ..step }
    }

    pub(super) fn accept(self, media: &str) -> Self {
        self.header("accept", media)
    }

    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns true when the answer is a stream of events.
    pub(super) fn is_watch(&self) -> bool {
        self.method == "GET" && ["watch=true", "watch=1"].iter().any(|word| self.path.contains(word))
    }

    /// Returns true when the request stores nothing.
    pub(super) fn is_dry(&self) -> bool {
        self.path.contains("dryRun=")
    }
}

/// Returns the path of the object of a request, without subresource and query; `None` for collections.
pub(super) fn object_path(path: &str) -> Option<String> {
    let bare = path.split('?').next().unwrap_or(path);
    let segments: Vec<&str> = bare.trim_matches('/').split('/').collect();
    let root = match *segments.first()? {
        "api" => 2,
        "apis" => 3,
        _ => return None,
    };
    let rest = segments.get(root..)?;
    let depth = match rest {
        ["namespaces", _, "status" | "finalize"] => 2,
        ["namespaces", _, _, ..] => 4,
        _ => 2,
    };
    (rest.len() >= depth).then(|| format!("/{}", segments[..root + depth].join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_one_path() {
        for (path, expected) in [
            ("/api/v1/namespaces/a/pods/x/status?dryRun=All", Some("/api/v1/namespaces/a/pods/x")),
            ("/api/v1/namespaces/a/pods?limit=1", None),
            ("/api/v1/namespaces/a", Some("/api/v1/namespaces/a")),
            ("/api/v1/namespaces/a/finalize", Some("/api/v1/namespaces/a")),
            (
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/x",
                Some("/apis/rbac.authorization.k8s.io/v1/clusterroles/x"),
            ),
            ("/apis/apps/v1/namespaces/a/deployments/d/scale", Some("/apis/apps/v1/namespaces/a/deployments/d")),
            ("/version", None),
        ] {
            assert_eq!(object_path(path).as_deref(), expected, "{path}");
        }
    }
}
