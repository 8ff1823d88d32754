//! Names behind hashes, read from the objects that have them.

use std::collections::BTreeSet;

use portolan_store::{DynStore, RangeRequest, RangeScope};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Scope, Status};

use crate::errors::status_for;

use super::names::{FlatName, NAME_LIMIT, NAMESPACE_LIMIT, flattened};

/// Most hashes that the body of one request may have.
const MAX_HASHES: usize = 64;
/// Name in front of the names of all objects.
const FIRST_NAME: &str = "!";

/// Names of one logical cluster.
pub(crate) struct NameLookup<'a> {
    pub(crate) store: &'a DynStore,
    pub(crate) cluster: LogicalClusterId,
}

impl NameLookup<'_> {
    /// Returns the name of an object of a resource; `None` for a hash of no object, and for a name of another logical
    /// cluster.
    ///
    /// # Errors
    /// Failure of the store.
    pub(crate) async fn name(&self, resource: &GroupResource, text: &str) -> Result<Option<String>, Status> {
        match FlatName::parse(text) {
            FlatName::Prefixed { cluster, name } if cluster == self.cluster => Ok(Some(name.to_owned())),
            FlatName::Hashed { cluster, start } if cluster == self.cluster => {
                Box::pin(self.hashed(resource, text, start)).await
            }
            _ => Ok(None),
        }
    }

    /// Reads the names with a start, and returns the one with this hash.
    async fn hashed(&self, resource: &GroupResource, text: &str, start: &str) -> Result<Option<String>, Status> {
        let is_namespace = resource.group.is_empty() && *resource.resource == *"namespaces";
        let limit = if is_namespace { NAMESPACE_LIMIT } else { NAME_LIMIT };
        if flattened(self.cluster, start, limit) == text {
            return Ok(Some(start.to_owned()));
        }
        let after = if start.is_empty() { FIRST_NAME } else { start };
        let Ok(name) = after.parse() else { return Ok(None) };
        let (cluster, scope) = (self.cluster, Scope::Cluster);
        let after = Some(ObjectKey { cluster, resource: resource.clone(), scope, name });
        let scope = RangeScope::Cluster(cluster, resource.clone());
        let mut next = Some(RangeRequest { after, ..RangeRequest::slices(scope).skip_damaged() });
        while let Some(request) = next {
            let page = self.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
            for stored in &page.objects {
                let name = stored.key.name.as_str();
                if !name.starts_with(start) {
                    return Ok(None);
                }
                if flattened(cluster, name, limit) == text {
                    return Ok(Some(name.to_owned()));
                }
            }
            next = request.next(&page);
        }
        Ok(None)
    }
}

/// Returns the texts in a body that can be hashes of names of a logical cluster.
///
/// # Errors
/// 413 for too many of them.
pub(crate) fn hashed_names(cluster: LogicalClusterId, body: &[u8]) -> Result<BTreeSet<String>, Status> {
    let mark = format!("{cluster}---");
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b':' | b'_');
    let mut found = BTreeSet::new();
    for at in memchr::memmem::find_iter(body, mark.as_bytes()) {
        let length = body[at..].iter().take_while(|byte| is_part(byte)).count();
        // In the user name of a service account, the name follows the namespace.
        let text = String::from_utf8_lossy(&body[at..at + length]).into_owned();
        found.extend(text.split_once(':').map(|(namespace, _)| namespace.to_owned()));
        found.insert(text);
        if found.len() > MAX_HASHES {
            return Err(Status::too_large(format!("the body has more than {MAX_HASHES} shortened names")));
        }
    }
    Ok(found)
}
