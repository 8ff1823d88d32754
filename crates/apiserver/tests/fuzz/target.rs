//! Fuzz targets: each turns a number into a request.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    random::Random,
    seeds::{Seed, Seeds},
    text, tree,
};

/// A part of the server that reads what clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Json,
    Yaml,
    Protobuf,
    JsonPatch,
    MergePatch,
    StrategicPatch,
    Apply,
    Selectors,
    Tokens,
    Paths,
}

impl Target {
    pub const ALL: [Self; 10] = [
        Self::Json,
        Self::Yaml,
        Self::Protobuf,
        Self::JsonPatch,
        Self::MergePatch,
        Self::StrategicPatch,
        Self::Apply,
        Self::Selectors,
        Self::Tokens,
        Self::Paths,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Yaml => "yaml",
            Self::Protobuf => "protobuf",
            Self::JsonPatch => "json-patch",
            Self::MergePatch => "merge-patch",
            Self::StrategicPatch => "strategic-patch",
            Self::Apply => "apply",
            Self::Selectors => "selectors",
            Self::Tokens => "tokens",
            Self::Paths => "paths",
        }
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Input {
    pub method: String,
    pub url: String,
    pub media: String,
    pub body: Bytes,
}

impl Input {
    fn new(method: &str, url: impl Into<String>, media: &str, body: impl Into<Bytes>) -> Self {
        Self { method: method.into(), url: url.into(), media: media.into(), body: body.into() }
    }

    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url, "-", Bytes::new())
    }

    /// Formats the input as a file: a line with method and target, then the body.
    pub fn to_file(&self) -> Vec<u8> {
        [format!("{} {} {}\n", self.method, self.url, self.media).as_bytes(), &self.body].concat()
    }

    pub fn from_file(file: &[u8]) -> Option<Self> {
        let end = file.iter().position(|byte| *byte == b'\n')?;
        let mut words = std::str::from_utf8(&file[..end]).ok()?.split(' ');
        let input = Self::new(words.next()?, words.next()?, words.next()?, Bytes::copy_from_slice(&file[end + 1..]));
        Some(input)
    }
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The input of a number.
pub fn input(target: Target, seeds: &Seeds, random: &mut Random) -> Input {
    match target {
        Target::Json => json_body(seeds, random),
        Target::Yaml => yaml_body(seeds, random),
        Target::Protobuf => protobuf_body(seeds, random),
        Target::JsonPatch => json_patch(seeds, random),
        Target::MergePatch => patch(seeds, random, "application/merge-patch+json", ""),
        Target::StrategicPatch => patch(seeds, random, "application/strategic-merge-patch+json", ""),
        Target::Apply => {
            let force = if random.one_in(2) { "&force=true" } else { "" };
            let manager = random.pick(&["&fieldManager=fuzz", "&fieldManager=setup", "&fieldManager=kubectl", ""]);
            patch(seeds, random, "application/apply-patch+yaml", &format!("{manager}{force}"))
        }
        Target::Selectors => selectors(seeds, random),
        Target::Tokens => tokens(seeds, random),
        Target::Paths => path(seeds, random),
    }
}

fn changed(seed: &Seed, seeds: &Seeds, random: &mut Random) -> Value {
    let mut tree = seed.object.clone();
    tree::change(&mut tree, &seeds.parts, random);
    tree
}

fn written(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

/// Sometimes broken on the way.
fn scratched(mut body: Vec<u8>, one_in: usize, seeds: &Seeds, random: &mut Random) -> Vec<u8> {
    if random.one_in(one_in) {
        text::change(&mut body, &seeds.texts, random);
    }
    body
}

fn json_body(seeds: &Seeds, random: &mut Random) -> Input {
    let is_new = !random.one_in(4);
    let seed = random.pick(if is_new { &seeds.objects } else { &seeds.stored });
    let body = written(&changed(seed, seeds, random));
    let body = scratched(body, 4, seeds, random);
    let strict = random.pick(&["", "&fieldValidation=Strict", "&fieldValidation=Ignore"]);
    let dry = if random.one_in(4) { "" } else { "&dryRun=All" };
    if is_new {
        Input::new("POST", format!("{}?{dry}{strict}", seed.collection), "application/json", body)
    } else {
        Input::new("PUT", format!("{}?dryRun=All{strict}", seed.path()), "application/json", body)
    }
}

fn yaml_body(seeds: &Seeds, random: &mut Random) -> Input {
    let seed = random.pick(&seeds.objects);
    let (url, body) = if random.one_in(3) {
        (&*seeds.maps, random.pick(&seeds.yaml).clone())
    } else {
        (&*seed.collection, serde_saphyr::to_string(&changed(seed, seeds, random)).unwrap().into_bytes())
    };
    let body = scratched(body, 2, seeds, random);
    Input::new("POST", format!("{url}?dryRun=All"), "application/yaml", body)
}

fn protobuf_body(seeds: &Seeds, random: &mut Random) -> Input {
    let (collection, encoded) = random.pick(&seeds.protobuf);
    let mut body = encoded.clone();
    let others: Vec<Vec<u8>> = vec![random.pick(&seeds.protobuf).1.clone()];
    text::change(&mut body, &others, random);
    // Mutations soon damage the envelope, but its content is what should be tested.
    if body.len() > 4 && !random.one_in(8) {
        body[..4].copy_from_slice(b"k8s\0");
    }
    Input::new("POST", format!("{collection}?dryRun=All"), PROTOBUF, body)
}

fn json_patch(seeds: &Seeds, random: &mut Random) -> Input {
    let seed = random.pick(&seeds.stored);
    let mut tree = random.pick(&seeds.json_patches).clone();
    if random.one_in(2) {
        let pointer = pointer(&seed.object, random);
        let operation = random.pick(&["add", "remove", "replace", "test", "copy", "move"]);
        let value = random.pick(&seeds.objects).object.clone();
        let own = json!({"op": operation, "path": pointer, "from": "/metadata/labels", "value": value});
        tree.as_array_mut().unwrap().push(own);
    }
    tree::change(&mut tree, &seeds.parts, random);
    let body = scratched(written(&tree), 6, seeds, random);
    Input::new("PATCH", format!("{}?dryRun=All", seed.path()), "application/json-patch+json", body)
}

/// A pointer into a tree.
fn pointer(mut tree: &Value, random: &mut Random) -> String {
    let mut pointer = String::new();
    while !random.one_in(5) {
        let (key, next) = match tree {
            Value::Object(map) if !map.is_empty() => {
                let at = random.below(map.len());
                map.iter().nth(at).map(|(key, next)| (key.replace('~', "~0").replace('/', "~1"), next)).unwrap()
            }
            Value::Array(items) if !items.is_empty() => {
                let at = random.below(items.len());
                (at.to_string(), &items[at])
            }
            _ => break,
        };
        pointer = format!("{pointer}/{key}");
        tree = next;
    }
    pointer
}

fn patch(seeds: &Seeds, random: &mut Random, media: &str, query: &str) -> Input {
    let seed = random.pick(&seeds.stored);
    let mut tree = changed(seed, seeds, random);
    if let Some(metadata) = tree.get_mut("metadata").and_then(Value::as_object_mut).filter(|_| !random.one_in(8)) {
        ["managedFields", "resourceVersion", "uid"].iter().for_each(|key| drop(metadata.remove(*key)));
    }
    let body = scratched(written(&tree), 8, seeds, random);
    let subresource = random.pick(&["", "", "", "", "", "/status", "/scale"]);
    Input::new("PATCH", format!("{}{subresource}?dryRun=All{query}", seed.path()), media, body)
}

fn selectors(seeds: &Seeds, random: &mut Random) -> Input {
    let mut selector = |seeds: &[Vec<u8>]| {
        let mut text = random.pick(seeds).clone();
        text::change(&mut text, seeds, random);
        encoded(&text)
    };
    let (labels, fields) = (selector(&seeds.labels), selector(&seeds.fields));
    let seed = random.pick(&seeds.stored);
    let query = match random.below(3) {
        0 => format!("labelSelector={labels}"),
        1 => format!("fieldSelector={fields}"),
        _ => format!("labelSelector={labels}&fieldSelector={fields}"),
    };
    if random.one_in(8) {
        Input::new("DELETE", format!("{}?dryRun=All&{query}", seed.collection), "-", Bytes::new())
    } else {
        Input::get(format!("{}?{query}", seed.collection))
    }
}

fn tokens(seeds: &Seeds, random: &mut Random) -> Input {
    let mut token = random.pick(&seeds.tokens).clone();
    text::change(&mut token, &seeds.tokens, random);
    Input::get(format!("{}?limit=1&continue={}", seeds.maps, encoded(&token)))
}

fn path(seeds: &Seeds, random: &mut Random) -> Input {
    let mut path = random.pick(&seeds.paths).clone();
    text::change(&mut path, &seeds.paths, random);
    // What no HTTP library lets through says nothing about us.
    let clean = |byte: &u8| match byte {
        b'!'..=b'~' if !b"\"<>\\^`{|}#".contains(byte) => (*byte as char).to_string(),
        other => format!("%{other:02x}"),
    };
    let url: String = path.iter().map(clean).collect();
    let method = random.pick(&["GET", "GET", "GET", "GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH"]);
    let media = random.pick(&["-", "application/json", "application/merge-patch+json"]);
    Input::new(method, if url.starts_with('/') { url } else { format!("/{url}") }, media, "{}")
}

fn encoded(text: &[u8]) -> String {
    percent_encoding::percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
