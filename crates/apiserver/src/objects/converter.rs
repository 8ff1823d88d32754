//! Conversion of the objects of a write to their stored form and back.

use std::sync::Arc;

use portolan_codec::conversion;
use portolan_merge::apply::Conversions;
use portolan_store::StoredObject;
use portolan_types::{
    LogicalClusterId, ObjectKey, Record, ResourceVersion, Status,
    json_patch::{MAX_DEPTH, depth},
    object,
};
use serde_json::Value;

use crate::{conversion::ConversionContext, errors::status_for, objects::tree, request::ResourceTarget};

/// Converter between objects of one resource and their stored form.
pub(crate) struct ObjectConverter<'a> {
    pub(crate) context: &'a ConversionContext,
    pub(crate) cluster: LogicalClusterId,
    pub(crate) target: &'a ResourceTarget,
}

impl ObjectConverter<'_> {
    /// Calls `make` again until it no longer needs a webhook to convert objects.
    ///
    /// # Errors
    /// The errors of `make`, and 429 when too many objects are being converted.
    pub(crate) async fn with_conversions<T>(
        &self,
        conversions: &Conversions,
        mut make: impl FnMut() -> Result<T, Status>,
    ) -> Result<T, Status> {
        loop {
            let made = make();
            let Some(wanted) = conversions.take_wanted() else { return made };
            // Boxed, because few writes need it.
            let converted = Box::pin(self.context.convert_for_manager(self.cluster, self.target, &wanted)).await?;
            conversions.learn(wanted, converted);
        }
    }

    /// Returns the stored form of an object.
    ///
    /// # Errors
    /// 400 for an object that could not be read back, 500 for one that cannot be converted.
    pub(crate) async fn record(&self, object: &Value) -> Result<Record, Status> {
        if depth(object) > MAX_DEPTH {
            return Err(Status::bad_request(format!("the object is deeper than {} levels", MAX_DEPTH)));
        }
        self.context.stored_form(self.cluster, self.target, object).await
    }

    /// Returns the stored form of an object after a write of its status.
    ///
    /// # Errors
    /// As [`ObjectConverter::record`].
    pub(crate) async fn record_of_status(&self, object: &Value, stored: &StoredObject) -> Result<Record, Status> {
        if !conversion::loses_order(&self.target.kind) {
            return self.record(object).await;
        }
        let before = stored.to_value().map_err(|e| status_for(&e))?;
        Ok(Record::of(&conversion::status_to_storage(&self.target.kind, object, &before)))
    }

    /// Returns a stored object as the requested version shows it; `object` is the tree that was written.
    ///
    /// # Errors
    /// 500 when it cannot be converted.
    pub(crate) async fn result_of_write(
        &self,
        stored: StoredObject,
        object: Value,
    ) -> Result<(StoredObject, Value), Status> {
        if self.is_converted() { self.converted_object(stored).await } else { Ok((stored, object)) }
    }

    /// Returns the result of a dry run as the requested version shows it; `record` is its stored form.
    ///
    /// # Errors
    /// 500 when it cannot be converted.
    pub(crate) async fn result_of_dry_run(
        &self,
        key: &ObjectKey,
        object: Value,
        record: Record,
    ) -> Result<Value, Status> {
        if !self.is_converted() {
            return Ok(object);
        }
        let record = Arc::new(record);
        let revision = ResourceVersion::FIRST;
        let (_, mut shown) =
            self.converted_object(StoredObject { key: key.clone(), revision, created: revision, record }).await?;
        let (metadata, own) = (object::metadata_mut(&mut shown), object::metadata(&object).get("resourceVersion"));
        match own {
            Some(own) => drop(metadata.insert("resourceVersion".to_owned(), own.clone())),
            None => drop(metadata.remove("resourceVersion")),
        }
        Ok(shown)
    }

    /// Returns true if the storage version differs from the written one.
    fn is_converted(&self) -> bool {
        self.target.is_custom() && conversion::is_needed(&self.target.kind)
    }

    async fn converted_object(&self, stored: StoredObject) -> Result<(StoredObject, Value), Status> {
        let stored = self.context.in_version(self.target, vec![stored]).await?.pop();
        let stored = stored.ok_or_else(|| Status::internal("nothing was converted"))?;
        let object = tree(self.target, &stored)?;
        Ok((stored, object))
    }
}
