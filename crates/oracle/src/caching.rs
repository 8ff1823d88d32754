//! Requests of clients that cache discovery and OpenAPI documents and revalidate them: ETags, hashes, redirects and
//! cache lifetimes.

use super::step::{PROTOBUF, Step};

const AGGREGATED: &str = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const JSON: &str = "application/json";

/// Document with an ETag: a name, its path, and a media type.
struct CachedDocument<'a> {
    name: &'a str,
    path: &'a str,
    media: String,
}

/// All such documents.
pub(super) fn steps() -> Vec<Step> {
    let mut steps = Vec::new();
    for path in ["/api", "/apis"] {
        for media in [JSON, "application/yaml", PROTOBUF] {
            let name = format!("{path} in {}", media.rsplit(['/', '.']).next().unwrap_or(media));
            steps.extend(CachedDocument { name: &name, path, media: format!("{media};{AGGREGATED}") }.steps());
        }
        steps.push(head(conditional_get(&format!("{path} that has none"), path, JSON, "*")));
    }
    for (version, words) in [(2, "spec.v2"), (3, "spec.v3")] {
        let path = if version == 2 { "/openapi/v2" } else { "/openapi/v3/apis/apps/v1" };
        let protobuf = format!("application/com.github.proto-openapi.{words}.v1.0+protobuf");
        for (form, media) in [("JSON", JSON), ("protobuf", protobuf.as_str())] {
            let name = format!("version {version} in {form}");
            steps.extend(CachedDocument { name: &name, path, media: media.to_owned() }.steps());
        }
    }
    steps.extend(hashes());
    steps
}

impl CachedDocument<'_> {
    /// Key under which its answer is stored.
    fn key(&self) -> String {
        self.name.replace(['/', ' '], "-")
    }

    fn steps(&self) -> Vec<Step> {
        let tag = format!("${{{}#etag}}", self.key());
        let first = Step { keep: Some(self.key()), ..head(Step::get(self.name, self.path).accept(&self.media)) };
        let ask =
            |case: &str, tag: &str| conditional_get(&format!("{} {case}", self.name), self.path, &self.media, tag);
        vec![
            first,
            ask("known", &tag),
            ask("known, packed", &tag).header("accept-encoding", "gzip"),
            head(ask("known by a weak tag", &format!("W/{tag}"))),
            head(ask("known by one of two", &format!("\"x\", {tag}"))),
            head(ask("known by one of two, the other way", &format!("{tag}, \"x\""))),
            head(ask("known by a tag without quotes", "ABC")),
            head(ask("unknown", "\"ABC\"")),
            head(ask("known by anything", "*")),
            head(ask("known, asked for its head", &tag)),
        ]
    }
}

/// Compares without the body, which other scripts compare.
fn head(step: Step) -> Step {
    Step { method: "HEAD".to_owned(), ..step }
}

/// Conditional request for a document with the ETag that the client has.
fn conditional_get(name: &str, path: &str, media: &str, tag: &str) -> Step {
    Step::get(name, path).accept(media).header("if-none-match", tag)
}

/// Requests for documents by the hash in the index.
fn hashes() -> Vec<Step> {
    const OWN: &str = "${index:/paths/apis~1apps~1v1/serverRelativeURL}";
    let protobuf = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
    let plain = "/openapi/v3/apis/apps/v1";
    let get = |name: &str, rest: &str| Step::get(&format!("by hash: {name}"), format!("{plain}{rest}"));
    let own = |name: &str| Step::get(&format!("by hash: {name}"), OWN);
    vec![
        Step { keep: Some("index".to_owned()), ..Step::get("by hash: the index", "/openapi/v3") },
        Step { keep: Some("hashed".to_owned()), ..own("the document") },
        own("in protobuf").accept(protobuf),
        own("known").header("if-none-match", "${hashed#etag}"),
        own("known in protobuf").accept(protobuf).header("if-none-match", "${hashed#etag}"),
        own("unknown").header("if-none-match", "\"ABC\""),
        own("in an unknown type").accept("application/xml"),
        head(own("only its head")),
        Step::get("by hash: and something else", format!("{OWN}&timeout=5s")),
        get("none", "?hash="),
        get("a wrong one", "?hash=ABC"),
        get("a wrong one in protobuf", "?hash=ABC").accept(protobuf),
        get("a wrong one of a document that is known", "?hash=ABC").header("if-none-match", "${hashed#etag}"),
        get("a wrong one and something else", "?hash=ABC&timeout=5s"),
        get("in small letters", "?hash=abc"),
        head(get("a wrong one, only the head", "?hash=ABC")),
        Step::get("by hash: of a document that is not there", "/openapi/v3/apis/none.example.com/v1?hash=ABC"),
    ]
}
