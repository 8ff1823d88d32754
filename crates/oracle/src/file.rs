//! A file of the corpus: `e2e/corpus/<group>/<kind>.yaml`.
//!
//! The first document is a valid object, the base. Each further one is a map of sections, each a list of cases
//! `sentence: change`:
//!
//! - `create`: the changed base is created; `update`, `status`: the changed stored base is put; `json`, `merge`,
//!   `strategic`, `apply`: the stored base is patched. All of these are dry runs, so that no case depends on another.
//! - `steps`: requests that are executed in order: `sentence: [line, body, {header: value}]`. A line is `METHOD path`;
//!   relative paths begin at the kind's version and the script's namespace.
//! - `settings`: how the file is run; see [`FileSettings`].

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Map, Value};

use super::catalog::{CatalogResource, ResourceCatalog};
use super::generated;
use super::mutation::ObjectMutation;
use super::step::{METADATA, OracleScript, PROTOBUF, RequestBody, ScriptPhase, Step, TABLE};
use super::websocket;

/// Settings of a file: how its requests are made.
#[derive(Default)]
struct FileSettings {
    /// Generates no requests from the base.
    alone: bool,
    /// Runs after the other files.
    last: bool,
}

/// Optional parts of a case other than its change.
#[derive(Default)]
struct Extras {
    query: String,
    headers: Vec<(String, String)>,
    body: Option<Value>,
    real: bool,
}

/// Sections in the order in which they run. The base is created after the first one.
const SECTIONS: [&str; 8] = ["create", "update", "status", "json", "merge", "strategic", "apply", "steps"];

struct ScriptReader<'c> {
    resource: &'c CatalogResource,
    base: Value,
    /// True for cases that change the created base.
    made: bool,
    steps: Vec<Step>,
}

/// Parses one file; `name` is `<group>/<kind>`.
pub(super) fn read(file: &Path, name: &str, catalog: &ResourceCatalog) -> Result<OracleScript> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    parse(&text, name, catalog).with_context(|| file.display().to_string())
}

fn parse(text: &str, name: &str, catalog: &ResourceCatalog) -> Result<OracleScript> {
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, as_written()).context("no YAML")?;
    let mut documents = documents.into_iter();
    let base = documents.next().context("the file is empty")?;
    let documents: Vec<Value> = documents.collect();
    let settings = FileSettings::read(&documents)?;
    let (version, kind) = (base["apiVersion"].as_str(), base["kind"].as_str());
    let (version, kind) = version.zip(kind).context("the first document is no object")?;
    let resource = catalog.find(version, kind).with_context(|| format!("{version} {kind} is not served"))?;

    let base = labelled(base, name);
    let steps = if settings.alone { Vec::new() } else { generated::steps(resource, &base) };
    let mut reader = ScriptReader { resource, base, made: false, steps };
    for document in &documents {
        reader.document(document)?;
    }
    let phase = if settings.last { ScriptPhase::Last } else { ScriptPhase::Usual };
    Ok(OracleScript { name: name.to_owned(), steps: unique(reader.steps)?, phase })
}

/// In the corpus `y`, `n`, `on` and the like are strings. As booleans they would be invalid names, and both servers
/// would refuse the requests.
fn as_written() -> serde_saphyr::Options {
    let mut options = serde_saphyr::Options::default();
    options.strict_booleans = true;
    options
}

/// Label by which lists select the objects of one script.
pub(super) fn label(name: &str) -> String {
    name.replace('/', "-")
}

fn labelled(base: Value, name: &str) -> Value {
    // Reviews and similar kinds have no relevant metadata, and a label does no harm.
    let change = ObjectMutation::set("metadata.labels.oracle", label(name));
    change.apply(&base).unwrap_or(base)
}

fn unique(steps: Vec<Step>) -> Result<Vec<Step>> {
    let mut names = std::collections::BTreeSet::new();
    for step in &steps {
        ensure!(names.insert(step.name.clone()), "{:?} is there twice", step.name);
    }
    Ok(steps)
}

impl FileSettings {
    fn read(documents: &[Value]) -> Result<Self> {
        let mut settings = Self::default();
        for word in documents.iter().filter_map(|document| document["settings"].as_array()).flatten() {
            match word.as_str() {
                Some("alone") => settings.alone = true,
                Some("last") => settings.last = true,
                _ => bail!("unknown setting {word}"),
            }
        }
        Ok(settings)
    }
}

impl ScriptReader<'_> {
    fn document(&mut self, document: &Value) -> Result<()> {
        let sections = document.as_object().context("a document of cases is a map")?;
        let unknown = sections.keys().find(|section| !SECTIONS.contains(&section.as_str()) && *section != "settings");
        ensure!(unknown.is_none(), "unknown section {unknown:?}");
        for section in SECTIONS {
            let Some(cases) = sections.get(section) else { continue };
            let cases = cases.as_array().with_context(|| format!("{section} is no list"))?;
            for case in cases {
                let (name, change) = single(case)?;
                self.case(section, name, change).with_context(|| format!("{section}: {name}"))?;
            }
        }
        Ok(())
    }

    fn case(&mut self, section: &str, name: &str, change: &Value) -> Result<()> {
        let name = format!("{section}: {name}");
        if section == "steps" {
            let step = self.request(&name, change)?;
            self.steps.push(step);
            return Ok(());
        }
        if section != "create" {
            self.make_base();
        }
        let (object, extras) = Extras::split(change);
        let step = match section {
            "create" => self.create(&name, &object, &extras)?,
            "update" => Step::put(&name, self.object_path(""), ObjectMutation::parse(&object)),
            "status" => Step::put(&name, self.object_path("/status"), ObjectMutation::parse(&object)),
            _ => {
                let body = extras.body.clone().unwrap_or(Value::Object(object));
                self.patch(section, &name, body)?
            }
        };
        self.steps.push(extras.add_to(step));
        Ok(())
    }

    fn create(&self, name: &str, object: &Map<String, Value>, extras: &Extras) -> Result<Step> {
        let body = match &extras.body {
            Some(body) => body.clone(),
            None => ObjectMutation::parse(object).apply(&self.base)?,
        };
        Ok(Step::post(name, self.resource.collection(), body))
    }

    fn patch(&self, section: &str, name: &str, body: Value) -> Result<Step> {
        let (media, query) = match section {
            "json" => ("application/json-patch+json", ""),
            "merge" => ("application/merge-patch+json", ""),
            "strategic" => ("application/strategic-merge-patch+json", ""),
            "apply" => ("application/apply-patch+yaml", "?fieldManager=oracle-apply"),
            _ => bail!("unknown section {section}"),
        };
        let body = if section == "apply" { self.applied(body) } else { body };
        Ok(Step::patch(name, self.object_path(query), media, body))
    }

    /// An applied object contains its name.
    fn applied(&self, mut body: Value) -> Value {
        for key in ["apiVersion", "kind"] {
            if body.get(key).is_none() && body.is_object() {
                body[key] = self.base[key].clone();
            }
        }
        body
    }

    fn object_path(&self, rest: &str) -> String {
        let name = self.base["metadata"]["name"].as_str().unwrap_or_default();
        format!("{}/{name}{rest}", self.resource.collection())
    }

    fn make_base(&mut self) {
        if !std::mem::replace(&mut self.made, true) {
            let step = Step::post("the base is made", self.resource.collection(), self.base.clone());
            self.steps.push(step);
        }
    }

    /// Parses `[line, body, {header: value}]`, or the line alone.
    fn request(&self, name: &str, request: &Value) -> Result<Step> {
        let parts = match request {
            Value::String(_) => std::slice::from_ref(request),
            Value::Array(parts) => parts.as_slice(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                bail!("a request is a line or a list")
            }
        };
        let line = parts.first().and_then(Value::as_str).context("a request begins with its line")?;
        let (method, path) = line.split_once(' ').context("a line is METHOD path")?;
        let mut step = self.line(name, method, path);
        if let Some(body) = parts.get(1).filter(|body| !body.is_null()) {
            step.body = self.body(body)?;
        }
        for (key, value) in parts.get(2).and_then(Value::as_object).into_iter().flatten() {
            let value = value.as_str().with_context(|| format!("{key} is no text"))?;
            match key.as_str() {
                "keep" => step.keep = Some(value.to_owned()),
                "pause" => step.pause = Duration::from_millis(value.parse().context("a pause is in milliseconds")?),
                _ => {
                    step.headers.retain(|(name, _)| name != key);
                    step.headers.push((key.clone(), value.to_owned()));
                }
            }
        }
        if matches!(step.body, RequestBody::None) {
            step.headers.retain(|(name, _)| name != "content-type" || step.method == "PATCH");
        }
        Ok(step)
    }

    fn line(&self, name: &str, method: &str, path: &str) -> Step {
        let path = if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", self.resource.prefix()) };
        let and = if path.contains('?') { '&' } else { '?' };
        let patch = |media: &str| Step::new(name, "PATCH", &path).header("content-type", media);
        match method {
            "TABLE" => Step::get(name, path).accept(TABLE),
            "META" => Step::get(name, path).accept(METADATA),
            "PROTO" => Step::get(name, path).accept(PROTOBUF),
            "WATCH" => Step::get(name, format!("{path}{and}watch=true&timeoutSeconds=1")),
            websocket::METHOD => Step::new(name, method, format!("{path}{and}watch=true&timeoutSeconds=1")),
            "JSON" => patch("application/json-patch+json"),
            "MERGE" => patch("application/merge-patch+json"),
            "STRATEGIC" => patch("application/strategic-merge-patch+json"),
            "APPLY" => patch("application/apply-patch+yaml"),
            _ => Step::new(name, method, path).header("content-type", "application/json"),
        }
    }

    /// Parses a body: `{$base: change}` is the base, `{$stored: change}` the stored object, each changed; a text and
    /// `{$base64: text}` are sent unchanged.
    fn body(&self, body: &Value) -> Result<RequestBody> {
        let changed = |key: &str| body.get(key).map(|change| change.as_object().cloned().unwrap_or_default());
        if let Value::String(text) = body {
            return Ok(RequestBody::Text(text.clone()));
        }
        if let Some(encoded) = body.get("$base64").and_then(Value::as_str) {
            return Ok(RequestBody::Bytes(BASE64.decode(encoded).context("no base64")?));
        }
        if let Some(change) = changed("$base") {
            return Ok(RequestBody::Json(ObjectMutation::parse(&change).apply(&self.base)?));
        }
        if let Some(change) = changed("$stored") {
            return Ok(RequestBody::Stored(ObjectMutation::parse(&change)));
        }
        Ok(RequestBody::Json(body.clone()))
    }
}

impl Extras {
    /// Extracts `$query`, `$accept`, `$type`, `$body` and `$real` from a case.
    fn split(change: &Value) -> (Map<String, Value>, Self) {
        let mut extras = Self::default();
        let mut rest = Map::new();
        for (key, value) in change.as_object().into_iter().flatten() {
            let text = || value.as_str().unwrap_or_default().to_owned();
            match key.as_str() {
                "$query" => extras.query = text(),
                "$accept" => extras.headers.push(("accept".to_owned(), text())),
                "$type" => extras.headers.push(("content-type".to_owned(), text())),
                "$body" => extras.body = Some(value.clone()),
                "$real" => extras.real = true,
                _ => drop(rest.insert(key.clone(), value.clone())),
            }
        }
        if let Value::Array(_) = change {
            extras.body = Some(change.clone());
        }
        (rest, extras)
    }

    fn add_to(self, mut step: Step) -> Step {
        let dry = if self.real { "" } else { "dryRun=All" };
        for part in [dry, self.query.as_str()].into_iter().filter(|part| !part.is_empty()) {
            let and = if step.path.contains('?') { '&' } else { '?' };
            step.path = format!("{}{and}{part}", step.path);
        }
        for (name, value) in self.headers {
            step.headers.retain(|(own, _)| *own != name);
            step.headers.push((name, value));
        }
        if let (Some(Value::String(text)), false) = (self.body, matches!(step.body, RequestBody::Stored(_))) {
            step.body = RequestBody::Text(text);
        }
        step
    }
}

/// Returns the single pair of a map.
fn single(case: &Value) -> Result<(&str, &Value)> {
    let map = case.as_object().context("a case is `sentence: change`")?;
    ensure!(map.len() == 1, "a case has one sentence: {case}");
    map.iter().next().map(|(name, change)| (name.as_str(), change)).context("a case has a sentence")
}
