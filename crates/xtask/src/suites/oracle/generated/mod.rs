//! Requests made up from a valid object: every verb of its resource in every content type, and the refusals that all
//! kinds share.

mod change;
mod create;
mod delete;
mod forms;
mod read;
mod subresources;

use serde_json::Value;

use super::catalog::Resource;
use super::mutation::Mutation;
use super::step::Step;

/// What the families of requests are made from.
struct Subject<'a> {
    resource: &'a Resource,
    base: &'a Value,
    name: &'a str,
}

/// All requests for one kind. Nothing is left of them.
pub(super) fn steps(resource: &Resource, base: &Value) -> Vec<Step> {
    let name = base["metadata"]["name"].as_str().unwrap_or_default();
    let subject = Subject { resource, base, name };
    let mut steps = create::steps(&subject);
    if resource.can("get") {
        steps.extend(read::steps(&subject));
    }
    if resource.can("update") {
        steps.extend(change::steps(&subject));
    }
    if resource.can("get") {
        steps.extend(subresources::steps(&subject));
    }
    if resource.can("delete") {
        steps.extend(delete::steps(&subject));
    }
    // Sentences of a file's own cases begin with their section.
    steps.iter_mut().for_each(|step| step.name.insert_str(0, "common "));
    steps
}

impl Subject<'_> {
    fn collection(&self, query: &str) -> String {
        format!("{}{query}", self.resource.collection())
    }

    fn object(&self, rest: &str) -> String {
        format!("{}/{}{rest}", self.resource.collection(), self.name)
    }

    /// The collection, narrowed to what this script made.
    fn own(&self, query: &str) -> String {
        let label = self.base["metadata"]["labels"]["oracle"].as_str().unwrap_or_default();
        self.collection(&format!("?labelSelector=oracle%3D{label}{query}"))
    }

    /// The base with one value set; the base where that does not fit it.
    fn with(&self, path: &str, value: impl Into<Value>) -> Value {
        self.changed(&Mutation::set(path, value))
    }

    fn changed(&self, mutation: &Mutation) -> Value {
        mutation.apply(self.base).unwrap_or_else(|_| self.base.clone())
    }
}
