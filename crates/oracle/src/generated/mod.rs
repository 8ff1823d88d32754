//! Requests generated from a valid object: every verb of its resource in every content type, and the refusals that all
//! kinds share.

mod change;
mod create;
mod delete;
mod forms;
mod read;
mod subresources;

use serde_json::Value;

use super::catalog::CatalogResource;
use super::mutation::ObjectMutation;
use super::step::Step;

/// Input of the generated families of requests.
struct GeneratorInput<'a> {
    resource: &'a CatalogResource,
    base: &'a Value,
    name: &'a str,
}

/// Returns all requests for one kind. They delete what they create.
pub(super) fn steps(resource: &CatalogResource, base: &Value) -> Vec<Step> {
    let name = base["metadata"]["name"].as_str().unwrap_or_default();
    let subject = GeneratorInput { resource, base, name };
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
    // Names of a file's own cases begin with their section.
    steps.iter_mut().for_each(|step| step.name.insert_str(0, "common "));
    steps
}

impl GeneratorInput<'_> {
    fn collection(&self, query: &str) -> String {
        format!("{}{query}", self.resource.collection())
    }

    fn object(&self, rest: &str) -> String {
        format!("{}/{}{rest}", self.resource.collection(), self.name)
    }

    /// Returns the path of the collection, restricted to this script's objects.
    fn own(&self, query: &str) -> String {
        let label = self.base["metadata"]["labels"]["oracle"].as_str().unwrap_or_default();
        self.collection(&format!("?labelSelector=oracle%3D{label}{query}"))
    }

    /// Returns the base with one value set; the base itself if the path does not fit.
    fn with(&self, path: &str, value: impl Into<Value>) -> Value {
        self.changed(&ObjectMutation::set(path, value))
    }

    fn changed(&self, mutation: &ObjectMutation) -> Value {
        mutation.apply(self.base).unwrap_or_else(|_| self.base.clone())
    }
}
