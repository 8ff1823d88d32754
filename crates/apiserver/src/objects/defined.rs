//! New custom resources come as long as their definition stays: its end takes along what it finds, and nothing that comes later.

use portolan_store::Expect;
use portolan_types::{ObjectKey, Status, object};
use serde_json::Value;

use crate::routes::nothing_at;

use super::Writer;

impl Writer<'_> {
    /// What must still hold when a new object is committed: that its definition is there and stays. Nothing of what is built in.
    ///
    /// # Errors
    /// 404 when the definition is gone, also where another one has its name; 403 when it is being deleted.
    pub(super) async fn while_defined(&self, object: &Value) -> Result<Option<(ObjectKey, Expect)>, Status> {
        let Some(found) = &self.target.definition else { return Ok(None) };
        let now = self.api.kinds.definition(found.key.cluster, &found.key.name).await?;
        match now.filter(|now| now.created == found.created) {
            None => Err(nothing_at(&self.call.path)),
            Some(now) if now.is_deleting => Err(self.ending(object)),
            Some(now) => Ok(Some((now.key, Expect::Lives { created: now.created, written: now.revision }))),
        }
    }

    fn ending(&self, object: &Value) -> Status {
        let why = "create not allowed while custom resource definition is terminating";
        Status::forbidden(&self.target.resource(), object::name(object), why)
    }

    /// Somebody was faster: on another server it may have been who wrote the definition.
    pub(super) fn doubt_definition(&self) {
        if let Some(found) = &self.target.definition {
            self.api.kinds.doubt(found.key.cluster, &found.key.name);
        }
    }
}
