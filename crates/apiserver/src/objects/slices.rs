//! The objects of one state, slice by slice: whoever reads them holds one slice, however many there are.

use std::{iter::Peekable, sync::Arc, vec::IntoIter};

use portolan_store::{RangeRequest, StoredObject};
use portolan_types::{LabelSelector, ObjectKey, ResourceVersion, Status};

use crate::{
    ApiServer, bootstrap,
    call::{Call, Target},
    errors::{damaged, status_for},
    options::Selection,
};

/// A state that is being read.
pub(crate) struct Slices {
    api: Arc<ApiServer>,
    target: Target,
    selection: Selection,
    revision: ResourceVersion,
    /// Read, and not handed out.
    ready: Vec<StoredObject>,
    /// What is to be read next; `None` at the end.
    next: Option<RangeRequest>,
    /// Shared objects, which lie between the stored ones unless these replace them.
    shared: Peekable<IntoIter<StoredObject>>,
    /// Set where the limit cut it: how many follow, if that is known.
    cut: Option<Option<u64>>,
    /// Where it began, with the shared objects.
    beginning: Option<(RangeRequest, Vec<StoredObject>)>,
}

/// How far what remains behind a page is counted.
const MAX_COUNTED: u64 = 20_000;

impl Slices {
    /// Objects that are there already.
    pub(super) fn of(
        api: &Arc<ApiServer>,
        target: &Target,
        selection: &Selection,
        revision: ResourceVersion,
        ready: Vec<StoredObject>,
    ) -> Self {
        Self {
            api: api.clone(),
            target: target.clone(),
            selection: selection.clone(),
            revision,
            ready,
            next: None,
            shared: Vec::new().into_iter().peekable(),
            cut: None,
            beginning: None,
        }
    }

    /// Begins to read; `request` says where and at which state.
    pub(super) async fn open(
        api: &Arc<ApiServer>,
        call: &Call,
        target: &Target,
        selection: &Selection,
        request: RangeRequest,
    ) -> Result<Self, Status> {
        let shared = shared(api, call, (target, selection), request.after.as_ref()).await?;
        let labels = match shared {
            // An own object hides the shared one of its name also where only the latter is selected.
            Some(_) => LabelSelector::everything(),
            None => selection.labels.clone(),
        };
        // The store can count objects only where it selects them.
        let limit = request.limit.filter(|_| shared.is_none() && selection.fields.is_everything());
        let mut slices = Self::of(api, target, selection, ResourceVersion::FIRST, Vec::new());
        let (request, shared) = (RangeRequest { labels, limit, ..request }, shared.unwrap_or_default());
        slices.beginning = Some((request.clone(), shared.clone()));
        slices.shared = shared.into_iter().peekable();
        slices.read(request).await?;
        Ok(slices)
    }

    /// The same objects in the same state from the beginning.
    ///
    /// # Errors
    /// As [`Slices::next`].
    pub(crate) async fn again(&self) -> Result<Self, Status> {
        let mut again = Self::of(&self.api, &self.target, &self.selection, self.revision, Vec::new());
        if let Some((request, shared)) = self.beginning.clone() {
            again.beginning = Some((request.clone(), shared.clone()));
            again.shared = shared.into_iter().peekable();
            again.read(RangeRequest { at: Some(self.revision), ..request }).await?;
        }
        Ok(again)
    }

    /// The state: a watch that starts here has no gap.
    pub(crate) fn revision(&self) -> ResourceVersion {
        self.revision
    }

    /// Whether nothing comes any more.
    pub(super) fn is_over(&mut self) -> bool {
        self.ready.is_empty() && self.next.is_none() && self.shared.peek().is_none()
    }

    /// Whether the limit left objects out, and how many if that is known. To be asked at the end.
    pub(super) fn cut(&self) -> Option<Option<u64>> {
        self.cut.map(|remaining| remaining.filter(|_| self.selection.is_everything()))
    }

    /// How many objects there are with all that are still to come; `None` where that would take long.
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

    /// The next objects, in key order; `None` at the end.
    ///
    /// # Errors
    /// 410 when the state has been compacted meanwhile; failures of the store.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<StoredObject>>, Status> {
        loop {
            let stored = std::mem::take(&mut self.ready);
            let mut objects = self.mixed(stored);
            self.sift(&mut objects)?;
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
        let page = self.api.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
        self.revision = page.revision;
        let left = request.limit.map(|limit| limit.saturating_sub(page.objects.len()));
        self.next = request.next(&page).map(|next| RangeRequest { limit: left, ..next });
        if left == Some(0) && self.next.take().is_some() {
            self.cut = Some(page.remaining);
        }
        self.ready = self.api.in_version(&self.target, page.objects).await?;
        Ok(())
    }

    /// With the shared objects that come before the last of them; at the end, with all that are left.
    fn mixed(&mut self, stored: Vec<StoredObject>) -> Vec<StoredObject> {
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

    /// Keeps what is selected. The store has looked at the labels unless shared objects are among them.
    fn sift(&self, objects: &mut Vec<StoredObject>) -> Result<(), Status> {
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

/// The shared objects behind a key; `None` where none is selected, so that the store can do all of it.
async fn shared(
    api: &ApiServer,
    call: &Call,
    (target, selection): (&Target, &Selection),
    after: Option<&ObjectKey>,
) -> Result<Option<Vec<StoredObject>>, Status> {
    let resource = target.stored_as();
    if !bootstrap::has_shared(&resource, target.namespace.as_ref()) {
        return Ok(None);
    }
    let roles = api.rbac.roles(call.cluster.id).await?;
    let mut all = bootstrap::all(api, &call.cluster, &resource, &roles);
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
