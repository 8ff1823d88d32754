//! Objects in a store whose bits are flipped, and the comparison of a server's answers with them.

use std::collections::{BTreeMap, HashSet};
use std::ops::AddAssign;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value as Json, json};

use harness::client::HttpClient;
use harness::kubeconfig::UserKubeconfig;

const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";
/// Of this many objects, one is updated and one is deleted.
const WRITTEN_TWICE: usize = 3;
const DELETED: usize = 10;

/// Sizes and counts of the objects to write, in turn.
pub(super) struct SamplePlan {
    count: usize,
    sizes: &'static [usize],
}

/// Few objects with pages of every kind.
pub(super) const SMALL: SamplePlan = SamplePlan { count: 150, sizes: &[30, 400, 2500, 60, 9000] };
/// More data than any engine caches, so that a running server reads it again.
pub(super) const LARGE: SamplePlan = SamplePlan { count: 120, sizes: &[600_000, 2000] };

/// Objects whose writes were acknowledged.
pub(super) struct Sample {
    /// Last state of each name: version and text; `None` if it was deleted.
    last: BTreeMap<String, Option<(String, String)>>,
    /// All states that were ever written under a name.
    ever: HashSet<(String, String)>,
}

/// Comparison of the answers with the acknowledged writes.
#[derive(Clone, Copy, Default)]
pub(super) struct SampleComparison {
    pub(super) right: usize,
    /// The server answered with an error.
    pub(super) told: usize,
    /// The object is missing or has an earlier state.
    pub(super) hidden: usize,
}

impl AddAssign for SampleComparison {
    fn add_assign(&mut self, other: Self) {
        self.right += other.right;
        self.told += other.told;
        self.hidden += other.hidden;
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn map(name: &str, text: &str) -> Bytes {
    let metadata = json!({"name": name, "namespace": "default"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}}).to_string().into()
}

/// Version and text of an object.
fn state(object: &Json) -> Result<(String, String)> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Json::as_str).map(str::to_owned);
    let version = text("/metadata/resourceVersion").context("an object without a version")?;
    Ok((version, text("/data/text").context("an object without its text")?))
}

impl Sample {
    /// Creates objects, and updates and deletes some.
    pub(super) fn write(config: &UserKubeconfig, plan: &SamplePlan) -> Result<Self> {
        runtime()?.block_on(async {
            let client = HttpClient::connect(config, 1).await?;
            let mut sample = Self { last: BTreeMap::new(), ever: HashSet::new() };
            for number in 0..plan.count {
                let (name, size) = (format!("m{number}"), plan.sizes[number % plan.sizes.len()]);
                let text = |round: usize| format!("{round} of {name} {}", "x".repeat(size));
                let mut answer = client.send(Method::POST, COLLECTION, map(&name, &text(1))).await?.success()?;
                sample.ever.insert((name.clone(), text(1)));
                let path = format!("{COLLECTION}/{name}");
                if number % WRITTEN_TWICE == 0 {
                    answer = client.send(Method::PUT, &path, map(&name, &text(2))).await?.success()?;
                    sample.ever.insert((name.clone(), text(2)));
                }
                let mut last = Some(state(&serde_json::from_slice(&answer)?)?);
                if number % DELETED == 0 {
                    client.send(Method::DELETE, &path, Bytes::new()).await?.success()?;
                    last = None;
                }
                sample.last.insert(name, last);
            }
            Ok(sample)
        })
    }

    /// Writes an object outside the sample, so that a killed server has one that it had not settled.
    pub(super) fn touch(&self, config: &UserKubeconfig) -> Result<()> {
        runtime()?.block_on(async {
            let client = HttpClient::connect(config, 1).await?;
            client.send(Method::POST, COLLECTION, map("beside", "beside")).await?.success().map(drop)
        })
    }

    /// Reads each object, and the list of all.
    ///
    /// # Errors
    /// Fails if an answer holds a state that was never written under its name.
    pub(super) fn look(&self, config: &UserKubeconfig) -> Result<SampleComparison> {
        runtime()?.block_on(async {
            let (client, mut looked) = (HttpClient::connect(config, 1).await?, SampleComparison::default());
            for name in self.last.keys() {
                let answer = client.send(Method::GET, &format!("{COLLECTION}/{name}"), Bytes::new()).await?;
                match answer.status {
                    StatusCode::OK => looked += self.judge(name, Some(&serde_json::from_slice(&answer.body)?))?,
                    StatusCode::NOT_FOUND => looked += self.judge(name, None)?,
                    status => looked.told += usize::from(is_error_status(status, &answer.body)?),
                }
            }
            let answer = client.send(Method::GET, COLLECTION, Bytes::new()).await;
            // A list that cannot be read completely is cut off.
            let answer = match answer {
                Ok(answer) if answer.status == StatusCode::OK => answer,
                Ok(answer) => {
                    looked.told += usize::from(is_error_status(answer.status, &answer.body)?);
                    return Ok(looked);
                }
                Err(_) => {
                    looked.told += 1;
                    return Ok(looked);
                }
            };
            let list: Json = serde_json::from_slice(&answer.body)?;
            let items = list["items"].as_array().context("a list without items")?;
            let named = |item: &Json| item["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let items: BTreeMap<String, &Json> = items.iter().map(|item| (named(item), item)).collect();
            for name in self.last.keys() {
                looked += self.judge(name, items.get(name).copied())?;
            }
            Ok(looked)
        })
    }

    fn judge(&self, name: &str, found: Option<&Json>) -> Result<SampleComparison> {
        let expected = self.last.get(name).and_then(Option::as_ref);
        let found = found.map(state).transpose().with_context(|| format!("{name} was made up"))?;
        if found.as_ref() == expected {
            return Ok(SampleComparison { right: 1, ..SampleComparison::default() });
        }
        if let Some((_, text)) = found
            && !self.ever.contains(&(name.to_owned(), text.clone()))
        {
            bail!("{name} was made up: {}", text.chars().take(200).collect::<String>());
        }
        Ok(SampleComparison { hidden: 1, ..SampleComparison::default() })
    }
}

/// The body is an error Status.
fn is_error_status(status: StatusCode, body: &[u8]) -> Result<bool> {
    ensure!(status.is_server_error(), "a read was answered {status}: {}", String::from_utf8_lossy(body));
    Ok(true)
}
