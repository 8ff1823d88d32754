//! Paged reads of one revision: the reader holds one slice at a time, however many objects there are.

use std::{iter::Peekable, sync::Arc, vec::IntoIter};

use portolan_store::{RangeRequest, StoredObject};
use portolan_types::{LabelSelector, ObjectKey, ResourceVersion, Status};

use crate::{
    authz::shared_objects,
    errors::{damaged, status_for},
    options::ObjectSelection,
    request::ResourceTarget,
};

use super::{ReadContext, range::ObjectRange};

/// Read of the objects of one revision, in slices.
pub(crate) struct ObjectSlices {
    context: Arc<ReadContext>,
    target: ResourceTarget,
    selection: ObjectSelection,
    revision: ResourceVersion,
    /// Objects read and not yet returned.
    ready: Vec<StoredObject>,
    /// Next range to read; `None` at the end.
    next: Option<RangeRequest>,
    /// Shared objects, merged between the stored ones unless these replace them.
    shared: Peekable<IntoIter<StoredObject>>,
    /// Set where the limit ended the read: the number of objects left, if known.
    cut: Option<Option<u64>>,
    /// First range and shared objects, to read again from the start.
    beginning: Option<(RangeRequest, Vec<StoredObject>)>,
}

/// Most objects that are counted behind a page.
const MAX_COUNTED: u64 = 20_000;

impl ObjectSlices {
    /// Returns a read of objects that are in memory.
    pub(super) fn of(range: ObjectRange<'_>, revision: ResourceVersion, ready: Vec<StoredObject>) -> Self {
        let ObjectRange { context, target, selection, .. } = range;
        Self { ready, ..Self::at(context.clone(), target.clone(), selection.clone(), revision) }
    }

    fn at(
        context: Arc<ReadContext>,
        target: ResourceTarget,
        selection: ObjectSelection,
        revision: ResourceVersion,
    ) -> Self {
        Self {
            context,
            target,
            selection,
            revision,
            ready: Vec::new(),
            next: None,
            shared: Vec::new().into_iter().peekable(),
            cut: None,
            beginning: None,
        }
    }

    /// Starts a read; `request` has its start and revision.
    pub(super) async fn open(range: ObjectRange<'_>, request: RangeRequest) -> Result<Self, Status> {
        let (shared, selection) = (shared(range, request.after.as_ref()).await?, range.selection);
        let labels = match shared {
            // An own object hides the shared object of its name even if only the shared one is selected.
            Some(_) => LabelSelector::everything(),
            None => selection.labels.clone(),
        };
        // The store can count only the objects that it selects itself.
        let limit = request.limit.filter(|_| shared.is_none() && selection.fields.is_everything());
        let mut slices = Self::of(range, ResourceVersion::FIRST, Vec::new());
        let (request, shared) = (RangeRequest { labels, limit, ..request }, shared.unwrap_or_default());
        slices.beginning = Some((request.clone(), shared.clone()));
        slices.shared = shared.into_iter().peekable();
        slices.read(request).await?;
        Ok(slices)
    }

    /// Reads the same revision again from the start.
    ///
    /// # Errors
    /// As [`ObjectSlices::next`].
    pub(crate) async fn restart(&self) -> Result<Self, Status> {
        let (context, target, selection) = (self.context.clone(), self.target.clone(), self.selection.clone());
        let mut again = Self::at(context, target, selection, self.revision);
        if let Some((request, shared)) = self.beginning.clone() {
            again.beginning = Some((request.clone(), shared.clone()));
            again.shared = shared.into_iter().peekable();
            again.read(RangeRequest { at: Some(self.revision), ..request }).await?;
        }
        Ok(again)
    }

    /// Returns the revision of the read: a watch from it misses nothing.
    pub(crate) fn revision(&self) -> ResourceVersion {
        self.revision
    }

    /// Returns true at the end.
    pub(super) fn is_finished(&mut self) -> bool {
        self.ready.is_empty() && self.next.is_none() && self.shared.peek().is_none()
    }

    /// Returns `Some` if the limit left objects out, with their number if known. Valid at the end.
    pub(super) fn cut(&self) -> Option<Option<u64>> {
        self.cut.map(|remaining| remaining.filter(|_| self.selection.is_everything()))
    }

    /// Adds the objects that are left to `count`; `None` when there are too many to count.
    pub(super) async fn count_from(&mut self, mut count: u64) -> Result<Option<u64>, Status> {
        if !self.selection.is_everything() {
            return Ok(None);
        }
        while count <= MAX_COUNTED {
            match self.next().await? {
                Some(objects) => count += objects.len() as u64,
                None => return Ok(Some(count)),
            }
        }
        Ok(None)
    }

    /// Returns the next objects in key order; `None` at the end.
    ///
    /// # Errors
    /// 410 when the revision has been compacted; failures of the store.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<StoredObject>>, Status> {
        loop {
            let stored = std::mem::take(&mut self.ready);
            let mut objects = self.merge_shared(stored);
            self.retain_selected(&mut objects)?;
            if !objects.is_empty() {
                return Ok(Some(objects));
            }
            match self.next.take() {
                Some(request) => self.read(request).await?,
                None => return Ok(None),
            }
        }
    }

    async fn read(&mut self, request: RangeRequest) -> Result<(), Status> {
        let page = self.context.storage.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
        self.revision = page.revision;
        let left = request.limit.map(|limit| limit.saturating_sub(page.objects.len()));
        self.next = request.next(&page).map(|next| RangeRequest { limit: left, ..next });
        if left == Some(0) && self.next.take().is_some() {
            self.cut = Some(page.remaining);
        }
        self.ready = self.context.conversion.in_version(&self.target, page.objects).await?;
        Ok(())
    }

    /// Merges the shared objects that precede the last stored one; at the end, all that are left.
    fn merge_shared(&mut self, stored: Vec<StoredObject>) -> Vec<StoredObject> {
        if self.shared.peek().is_none() {
            return stored;
        }
        let mut mixed = Vec::with_capacity(stored.len());
        for own in stored {
            while let Some(shared) = self.shared.next_if(|shared| shared.key < own.key) {
                mixed.push(shared);
            }
            self.shared.next_if(|shared| shared.key == own.key);
            mixed.push(own);
        }
        if self.next.is_none() {
            mixed.extend(&mut self.shared);
        }
        mixed
    }

    /// Removes the objects that are not selected. The store has applied the label selector unless there are shared
    /// objects.
    fn retain_selected(&self, objects: &mut Vec<StoredObject>) -> Result<(), Status> {
        if self.selection.is_everything() {
            return Ok(());
        }
        let mut failure = None;
        objects.retain(|o| match self.selection.matches(&self.target, &o.key, &o.record, o.revision) {
            Ok(fits) => fits,
            Err(error) => {
                failure = Some(damaged(&o.key, &error));
                false
            }
        });
        failure.map_or(Ok(()), Err)
    }
}

/// Returns the shared objects after a key; `None` if none is selected, so that the store can select and count.
async fn shared(range: ObjectRange<'_>, after: Option<&ObjectKey>) -> Result<Option<Vec<StoredObject>>, Status> {
    let ObjectRange { context, call, target, selection } = range;
    let resource = target.stored_as();
    if !shared_objects::has_shared(&resource, target.namespace.as_ref()) {
        return Ok(None);
    }
    let mut all = context.shared.all(&call.cluster, &resource).await?;
    all.retain(|shared| {
        let is_there = target.namespace.is_none() || target.namespace.as_ref() == shared.key.namespace();
        is_there && after.is_none_or(|after| shared.key > *after)
    });
    let is_selected = |shared: &StoredObject| {
        selection.matches(target, &shared.key, &shared.record, shared.revision).map_err(|e| damaged(&shared.key, &e))
    };
    for shared in &all {
        if is_selected(shared)? {
            return Ok(Some(all));
        }
    }
    Ok(None)
}
