//! Fields that tell whether a write matters to placement, read without building a tree.

use portolan_types::{
    Record,
    placement::{CopyPhase, PlacementRecord},
};
use serde::Deserialize;

/// Fields of an object that matter to placement.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PlacementFields {
    pub(crate) generation: i64,
    pub(crate) pin: Option<String>,
    pub(crate) abandons_volumes: Option<String>,
    pub(crate) write_off: Option<String>,
    pub(crate) force: Option<String>,
    pub(crate) approval: Option<String>,
    pub(crate) record: PlacementRecord,
}

#[derive(Default, Deserialize)]
struct Body {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    generation: i64,
    annotations: Option<Annotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "portolan.dev/pin")]
    pin: Option<String>,
    #[serde(rename = "portolan.dev/abandon-volumes")]
    abandons_volumes: Option<String>,
    #[serde(rename = "portolan.dev/write-off")]
    write_off: Option<String>,
    #[serde(rename = "portolan.dev/force")]
    force: Option<String>,
    #[serde(rename = "portolan.dev/approve-rollout")]
    approval: Option<String>,
    #[serde(rename = "portolan.dev/placement")]
    placement: Option<String>,
}

impl PlacementFields {
    /// Reads the fields. An object without them is as one without a placement.
    pub(crate) fn of(record: &Record) -> Self {
        let body: Body = serde_json::from_slice(record.body()).unwrap_or_default();
        let annotations = body.metadata.annotations.unwrap_or_default();
        Self {
            generation: body.metadata.generation,
            pin: annotations.pin,
            abandons_volumes: annotations.abandons_volumes,
            write_off: annotations.write_off,
            force: annotations.force,
            approval: annotations.approval,
            record: annotations.placement.as_deref().and_then(PlacementRecord::parse).unwrap_or_default(),
        }
    }

    /// Returns true if a user asks for another treatment in `after`.
    pub(crate) fn is_asked_otherwise(&self, after: &Self) -> bool {
        let asked = |of: &Self| {
            let texts = [&of.pin, &of.abandons_volumes, &of.write_off, &of.force, &of.approval];
            texts.map(Clone::clone)
        };
        asked(self) != asked(after)
    }

    /// Returns true if `after` lacks a copy that `self` names.
    pub(crate) fn lost_copies(&self, after: &Self) -> bool {
        self.record.clusters.iter().any(|c| c.phase != CopyPhase::Projected && after.record.on(&c.uid).is_none())
    }
}

/// Returns true if the bytes of a record may contain copies that take room before they arrive.
pub(crate) fn may_await_copies(record: &Record) -> bool {
    // The placement is JSON in a string, so its quotes are escaped.
    std::str::from_utf8(record.body()).is_ok_and(|body| body.contains(r#"awaited""#))
}

/// Returns true if the bytes of a record contain a pin.
pub(crate) fn may_have_pin(record: &Record) -> bool {
    std::str::from_utf8(record.body()).is_ok_and(|body| body.contains("portolan.dev/pin"))
}
