//! Lists, page by page. Each page has a limit, and each list an end.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use serde_json::Value;

use super::{DownstreamClient, DownstreamError, encode};

/// Objects per page of a list.
const PAGE: usize = 500;
/// Most pages of one list.
const MAX_PAGES: usize = 20_000;
/// Longest continue token that is sent back, in bytes.
const MAX_TOKEN: usize = 4096;
/// Longest resourceVersion that is taken, in bytes.
const MAX_VERSION: usize = 128;
/// Longest name, namespace or uid of an object, in bytes.
const MAX_NAME: usize = 253;

impl DownstreamClient {
    /// Lists all objects under `path` with the label `selector`, and passes each page to `take`, which returns false to
    /// stop. Returns the resourceVersion of the list. A page that is too large is read again in smaller ones.
    ///
    /// # Errors
    /// `Excessive` for a single object that is too large, and for a list that does not end; the error of `take`.
    pub(crate) async fn pages(
        &self,
        path: &str,
        selector: &str,
        mut take: impl FnMut(Vec<Value>) -> Result<bool, DownstreamError>,
    ) -> Result<String, DownstreamError> {
        let (mut token, mut limit) = (String::new(), PAGE);
        let mut tokens = HashSet::new();
        for _ in 0..MAX_PAGES {
            let query = format!("{path}?limit={limit}&labelSelector={}&continue={}", encode(selector), encode(&token));
            let mut page = match self.get(query.trim_end_matches("&continue=")).await {
                Err(DownstreamError::Excessive(_)) if limit > 1 => {
                    limit = limit.div_ceil(4).min(limit - 1);
                    continue;
                }
                answer => answer?,
            };
            let is_more_wanted = take(check_page(&mut page)?)?;
            let version = page["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            let next = page["metadata"]["continue"].as_str().unwrap_or_default();
            if next.is_empty() || !is_more_wanted {
                return Ok(version.to_owned());
            }
            if next.len() > MAX_TOKEN || !tokens.insert(hash(next)) {
                return Err(DownstreamError::Garbled(format!("the list {path} goes on with a token of before")));
            }
            next.clone_into(&mut token);
        }
        Err(DownstreamError::Excessive(format!("the list {path} has more than {MAX_PAGES} pages")))
    }

    /// Reads the current resourceVersion under `path`.
    pub(crate) async fn version(&self, path: &str) -> Result<String, DownstreamError> {
        let mut page = self.get(&format!("{path}?limit=1")).await?;
        check_page(&mut page)?;
        Ok(page["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned())
    }

    /// Returns true if there is any object under `path`, whatever its labels, that `counts`.
    pub(crate) async fn any(&self, path: &str, counts: impl Fn(&Value) -> bool) -> Result<bool, DownstreamError> {
        let mut is_found = false;
        self.pages(path, "", |objects| {
            is_found |= objects.iter().any(&counts);
            Ok(!is_found)
        })
        .await?;
        Ok(is_found)
    }
}

fn hash(token: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    token.hash(&mut hasher);
    hasher.finish()
}

/// Returns true for a resourceVersion that is there and within its bound.
pub(super) fn is_version(text: &str) -> bool {
    (1..=MAX_VERSION).contains(&text.len())
}

/// Checks the length of the texts that identify an object: they are kept after the object is gone.
pub(super) fn check_names(object: &Value) -> Result<(), DownstreamError> {
    let length = |key: &str| object["metadata"][key].as_str().map_or(0, str::len);
    let are_names_short = ["name", "namespace", "uid"].iter().all(|key| length(key) <= MAX_NAME);
    if are_names_short && length("resourceVersion") <= MAX_VERSION {
        Ok(())
    } else {
        Err(DownstreamError::Garbled("an object whose name, uid or resourceVersion is too long".into()))
    }
}

/// Checks a page: of the right kind, with items and a resourceVersion.
fn check_page(page: &mut Value) -> Result<Vec<Value>, DownstreamError> {
    let kind = page["kind"].as_str().and_then(|kind| kind.strip_suffix("List")).map(str::to_owned);
    let has_version = page["metadata"]["resourceVersion"].as_str().is_some_and(is_version);
    let (Some(kind), true) = (kind, has_version) else {
        return Err(DownstreamError::Garbled("not a list with a resourceVersion".into()));
    };
    let version = page["apiVersion"].clone();
    let items = match page.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        Some(Value::Null) => Vec::new(), // how Go writes an empty list
        _ => return Err(DownstreamError::Garbled("a list without items".into())),
    };
    let whole = items.into_iter().map(|mut item| {
        check_names(&item)?;
        let no_object = || DownstreamError::Garbled("a list with items that are no objects".into());
        let object = item.as_object_mut().ok_or_else(no_object)?;
        object.entry("apiVersion").or_insert_with(|| version.clone());
        object.entry("kind").or_insert_with(|| Value::String(kind.clone()));
        Ok(item)
    });
    whole.collect()
}
