//! The format of a row.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;

/// An attack of the threat model.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What is tried, in a few words.
    pub attack: String,
    /// What is there before.
    #[serde(default)]
    pub given: Vec<Step>,
    /// The attack, in its variants.
    pub requests: Vec<Step>,
}

/// One request and its answer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    #[serde(default)]
    pub case: String,
    /// `tenant` (owner of `root:t`), `admin`, `nobody`, or `Bearer …`.
    #[serde(default = "tenant", rename = "as")]
    pub who: String,
    /// Method and target; `${name}` stands for what an earlier step kept.
    pub send: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Parts of the body, each as often as it says; `#` in a part that is repeated is its number.
    #[serde(default)]
    pub body: Vec<Part>,
    /// Whether the body comes without its length.
    #[serde(default)]
    pub chunked: bool,
    /// One code, or several where upstream leaves the choice.
    pub code: Codes,
    pub reason: Option<String>,
    /// Part of the answer.
    pub says: Option<String>,
    /// JSON pointers into the answer.
    #[serde(default)]
    pub is: BTreeMap<String, String>,
    #[serde(default)]
    pub is_not: BTreeMap<String, String>,
    /// What later steps may use: name and JSON pointer.
    #[serde(default)]
    pub keep: BTreeMap<String, String>,
    /// Milliseconds of CPU in a release build.
    cpu_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub enum Codes {
    One(u16),
    Several(Vec<u16>),
}

#[derive(Deserialize)]
#[serde(untagged)]
pub enum Part {
    Once(String),
    Often { times: usize, text: String },
}

fn tenant() -> String {
    "tenant".into()
}

impl Step {
    pub fn codes(&self) -> Vec<u16> {
        match &self.code {
            Codes::One(code) => vec![*code],
            Codes::Several(codes) => codes.clone(),
        }
    }

    pub fn cpu_ms(&self) -> u64 {
        self.cpu_ms.unwrap_or(250)
    }

    pub fn body(&self) -> Bytes {
        let mut out = String::new();
        for part in &self.body {
            match part {
                Part::Once(text) => out.push_str(text),
                Part::Often { times, text } if text.contains('#') => {
                    (0..*times).for_each(|n| out.push_str(&text.replace('#', &n.to_string())));
                }
                Part::Often { times, text } => out.push_str(&text.repeat(*times)),
            }
        }
        out.into()
    }
}
