//! Sync of definitions of custom resources to the physical cluster. A definition that Portolan did not create there is
//! never changed or deleted. One that Portolan created is deleted only when no object of its kind exists there.

use portolan_types::{GroupResource, annotations, object, upstream::SyncedDefinition};
use serde_json::Value;

use super::{SyncError, Worker, session::Session};
use crate::{
    client::{DownstreamError, discover},
    definitions::{DefinitionStep, definition_path, has_definition, instances_path, plan_definition},
    plan::{self, Proof},
    rules::SyncRules,
};

/// Most definitions that are looked at for removal at once: each is held in memory meanwhile.
const MAX_REMOVED: usize = 64;

impl Worker {
    /// Brings the definitions on the physical cluster up to date. Returns true if one was written.
    pub(super) async fn sync_definitions(
        &self,
        session: &Session,
        wanted: &[SyncedDefinition],
    ) -> Result<bool, SyncError> {
        let (mut is_written, mut conflicts) = (false, Vec::new());
        for definition in wanted {
            let name = object::name(&definition.object);
            match self.sync_definition(session, definition).await {
                Ok(Ok(written)) => is_written |= written,
                Ok(Err(why)) => conflicts.push(format!("{name}: {why}")),
                Err(DownstreamError::Refused(answer)) if answer.refusal().is_some() => {
                    conflicts.push(format!("{name}: the physical cluster refuses it: {}", answer.message));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let is_due = !wanted.is_empty() || session.are_definitions_there();
        if is_due {
            let kept = self.remove_definitions(session, wanted).await?;
            session.note_definitions(!wanted.is_empty() || !kept.is_empty());
            conflicts.extend(kept);
        }
        conflicts.sort_unstable();
        self.state().definition_conflicts = conflicts;
        Ok(is_written)
    }

    /// Returns true if the definition was written, or the reason for which it cannot be.
    async fn sync_definition(
        &self,
        session: &Session,
        wanted: &SyncedDefinition,
    ) -> Result<Result<bool, String>, DownstreamError> {
        let name = object::name(&wanted.object);
        let path = definition_path(Some(name));
        let found = match session.api.get(&path).await {
            Ok(found) => Some(found),
            Err(error) if error.is_absent(name) => None,
            Err(error) => return Err(error),
        };
        let step = plan_definition(wanted, &self.config.uid, self.config.syncer_epoch, found.as_ref());
        let is_as_found = |made: &Value| {
            let version = |object| object::meta_text(object, "resourceVersion");
            found.as_ref().is_some_and(|found| version(found) == version(made))
        };
        let written = match step {
            DefinitionStep::Keep => return Ok(Ok(false)),
            DefinitionStep::Refuse(why) => return Ok(Err(why)),
            DefinitionStep::Create(body) => session.api.create(&definition_path(None), &body).await,
            DefinitionStep::Apply(body) => session.api.apply(&path, &body).await,
        };
        match written {
            // A default that the server omits looks like a change, but is none.
            Ok(made) if is_as_found(&made) => Ok(Ok(false)),
            Ok(_) => {
                tracing::info!(cluster = %self.config.name, name, "a definition of custom resources was synced");
                Ok(Ok(true))
            }
            // Another writer was faster: the next reconcile reads the result.
            Err(error) if error.code() == 409 => Ok(Ok(true)),
            Err(error) => Err(error),
        }
    }

    /// Deletes definitions that Portolan created, if they are not wanted any more and have no objects. Returns a
    /// sentence for each one that has to stay.
    async fn remove_definitions(
        &self,
        session: &Session,
        wanted: &[SyncedDefinition],
    ) -> Result<Vec<String>, SyncError> {
        let mut ours: Vec<Value> = Vec::new();
        let is_removable = |found: &Value| {
            plan::copy_identity(found, &self.config.uid).is_some_and(|identity| {
                // A later syncer may have put it there since, for a policy of which this one does not know.
                let is_wanted = wanted.iter().any(|wanted| object::uid(&wanted.object).as_ref() == Some(&identity.uid));
                !is_wanted && identity.syncer_epoch <= self.config.syncer_epoch && !object::is_deleting(found)
            })
        };
        let take = |page: Vec<Value>| {
            ours.extend(page.into_iter().filter(is_removable).take(MAX_REMOVED - ours.len()));
            Ok(ours.len() < MAX_REMOVED)
        };
        match session.api.pages(&definition_path(None), annotations::DOWN_CLUSTER, take).await {
            Ok(_) => {}
            // Without the right to read definitions, none was created there.
            Err(error) if matches!(error.code(), 403 | 404) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let mut kept = Vec::new();
        for found in &ours {
            if let Some(path) = instances_path(found)
                && session.api.any(&path, |_| true).await?
            {
                let name = object::name(found);
                kept.push(format!("{name}: it is not to be there any more, and stays while objects of it are there"));
                continue;
            }
            self.remove_definition(session, found).await?;
        }
        Ok(kept)
    }

    async fn remove_definition(&self, session: &Session, found: &Value) -> Result<(), SyncError> {
        let name = object::name(found);
        let deletion = plan::CopyDeletion { proof: Proof::Unplaced, ..Proof::debt(found) };
        match session.api.delete(&definition_path(Some(name)), &deletion, "Background").await {
            Ok(_) => {
                tracing::info!(cluster = %self.config.name, name, "a definition of custom resources was removed");
                Ok(())
            }
            Err(error) if error.is_absent(name) || error.code() == 409 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true when the physical cluster proves that it has no objects of a custom kind: it has no definition of
    /// it, and serves it in no other way.
    pub(super) async fn has_no_definition(
        &self,
        session: &Session,
        resource: &GroupResource,
    ) -> Result<bool, SyncError> {
        if !has_definition(resource) {
            return Ok(false);
        }
        let name = resource.to_string();
        match session.api.get(&definition_path(Some(&name))).await {
            Err(error) if error.is_absent(&name) => {}
            // A refused read proves nothing.
            Ok(_) | Err(DownstreamError::Refused(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let found = discover(&session.api, &SyncRules::new(std::slice::from_ref(&name))).await?;
        let is_there = found.served.contains_key(resource) || found.cluster_scoped.contains_key(resource);
        Ok(!is_there && !found.unknown.contains(&*resource.group))
    }
}
