//! Documents of paths outside of group versions: discovery, the server's version, public keys of tokens.

use std::collections::BTreeMap;

use portolan_types::{GroupVersion, GroupVersionKind};
use serde_json::{Map, Value, json};

use super::{
    Texts,
    document::{GroupKinds, add_schemas, whole},
    operations::{ANSWERS, PROTOBUF, content},
    paths,
};
use crate::KindTable;

const INFO: &str = "io.k8s.apimachinery.pkg.version.Info";
/// The fields of [`INFO`] that are always there, and those that are not.
const INFO_ALWAYS: [&str; 9] =
    ["major", "minor", "gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"];
const INFO_ELSE: [&str; 4] = ["emulationMajor", "emulationMinor", "minCompatibilityMajor", "minCompatibilityMinor"];

/// Answer at a path.
enum Answer {
    /// An object of the core's first version, in every form.
    Object(&'static str),
    /// The version of the server, as JSON.
    Version,
    /// A text of this media type.
    Text(&'static str),
}

/// Document of a single path with a single operation.
struct Around {
    /// The path without its slashes, which is the document's name in the index.
    name: String,
    tag: String,
    id: String,
    answer: Answer,
}

impl Around {
    fn new(name: &str, tag: &str, id: &str, answer: Answer) -> Self {
        Self { name: name.to_owned(), tag: tag.to_owned(), id: id.to_owned(), answer }
    }

    fn of_group(group: &str) -> Self {
        let tag = paths::camel_group(group);
        let id = format!("get{}APIGroup", paths::capital(&tag));
        Self { name: format!("apis/{group}"), tag, id, answer: Answer::Object("APIGroup") }
    }

    fn document(&self, texts: &dyn Texts) -> Value {
        let mut schemas = BTreeMap::new();
        let answers = match &self.answer {
            Answer::Object(kind) => {
                let name = add_object(&mut schemas, kind, texts);
                content(&[ANSWERS, PROTOBUF].concat(), &name)
            }
            Answer::Version => {
                schemas.insert(INFO.to_owned(), info(texts));
                content(&ANSWERS[..1], INFO)
            }
            Answer::Text(media) => Value::Object(Map::from_iter([text(media)])),
        };
        let get = json!({
            "tags": [self.tag],
            "operationId": self.id,
            "responses": {
                "200": {"description": "OK", "content": answers},
                "401": {"description": "Unauthorized"},
            },
        });
        whole(Map::from_iter([(format!("/{}/", self.name), json!({"get": get}))]), schemas)
    }
}

/// Returns the documents beside those of versions, by their names in the index. `groups` are those that come with the
/// server: groups that definitions add have no documents here.
pub fn around<'a>(groups: impl IntoIterator<Item = &'a str>, texts: &dyn Texts) -> Vec<(String, Value)> {
    let own = [
        Around::new("api", "core", "getCoreAPIVersions", Answer::Object("APIVersions")),
        Around::new("apis", "apis", "getAPIVersions", Answer::Object("APIGroupList")),
        Around::new("version", "version", "getCodeVersion", Answer::Version),
        Around::new(
            "openid/v1/jwks",
            "openid",
            "getServiceAccountIssuerOpenIDKeyset",
            Answer::Text("application/jwk-set+json"),
        ),
        Around::new(
            ".well-known/openid-configuration",
            "WellKnown",
            "getServiceAccountIssuerOpenIDConfiguration",
            Answer::Text("application/json"),
        ),
    ];
    let groups = groups.into_iter().filter(|group| !group.is_empty()).map(Around::of_group);
    own.into_iter().chain(groups).map(|one| (one.name.clone(), one.document(texts))).collect()
}

/// Adds the schema of a kind of the core with those that it refers to; its name.
fn add_object(schemas: &mut BTreeMap<String, Value>, kind: &str, texts: &dyn Texts) -> String {
    let table = KindTable::builtin();
    let gvk = GroupVersionKind::new("", "v1", kind);
    let id = table.object_type(&gvk.group, &gvk.version, &gvk.kind).expect("a test makes every document");
    let kinds = GroupKinds::new(table, &GroupVersion::new("", "v1"), true);
    add_schemas(schemas, table, id, &kinds, texts);
    table.get(id).name.to_string()
}

fn text(media: &str) -> (String, Value) {
    (media.to_owned(), json!({"schema": {"type": "string"}}))
}

/// Returns the schema of the version document, which is not in the kind table.
fn info(texts: &dyn Texts) -> Value {
    let described = |name: Option<&str>, mut schema: Value| {
        if let Some(text) = texts.text(INFO, name) {
            schema["description"] = text.into();
        }
        schema
    };
    let always =
        INFO_ALWAYS.map(|name| (name.to_owned(), described(Some(name), json!({"type": "string", "default": ""}))));
    let others = INFO_ELSE.map(|name| (name.to_owned(), described(Some(name), json!({"type": "string"}))));
    let properties: Map<String, Value> = always.into_iter().chain(others).collect();
    described(None, json!({"type": "object", "properties": properties, "required": INFO_ALWAYS}))
}
