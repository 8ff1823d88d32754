//! Writing what may be there or not: others create and delete it meanwhile.

use portolan_types::{BoxFuture, ObjectKey, Status};
use serde_json::Value;

use super::{Changed, CommitError, Races, Writer};

/// How an object is written, whether it is there or not.
pub(crate) struct Put<'m> {
    /// Whether it may be made where there is none; asked each time before.
    pub(crate) may_create: &'m (dyn Fn() -> BoxFuture<'m, Result<(), Status>> + Sync),
    /// What is made where there is none.
    pub(crate) fresh: &'m (dyn Fn() -> Result<Value, Status> + Sync),
    /// The new state of what is there.
    pub(crate) changed: &'m (dyn Fn(&Value) -> Result<Value, Status> + Sync),
}

impl Writer<'_> {
    /// Changes the object of the URL, or creates it, whichever it takes: as upstream's `GuaranteedUpdate` with `ignoreNotFound`,
    /// where neither who creates it first nor who deletes it is an error. The code of the answer, and what it came to.
    ///
    /// # Errors
    /// As [`Writer::create`] and [`Writer::change`], but for the name being taken and the object being gone.
    pub(crate) async fn put(
        &self,
        key: &ObjectKey,
        subresource: Option<&str>,
        put: &Put<'_>,
    ) -> Result<(u16, Changed), Status> {
        let mut races = Races::new(self.api, key, self.call.deadline);
        let done = self.put_at_last(key, subresource, put, &mut races).await;
        races.end();
        done
    }

    async fn put_at_last(
        &self,
        key: &ObjectKey,
        subresource: Option<&str>,
        put: &Put<'_>,
        races: &mut Races<'_>,
    ) -> Result<(u16, Changed), Status> {
        loop {
            if let Some(found) = self.api.find(self.call, self.target, key).await? {
                if let Some(changed) = self.change_at_last((key, found), subresource, put.changed, races).await? {
                    return Ok((200, changed));
                }
            } else {
                (put.may_create)().await?;
                match self.create_at_last(put.fresh, (Some(&self.call.captures.name), subresource)).await {
                    Err(CommitError::Exists(_)) => {}
                    done => return done.map(|made| (201, made)).map_err(CommitError::into_status),
                }
            }
            races.lose().await;
        }
    }
}
