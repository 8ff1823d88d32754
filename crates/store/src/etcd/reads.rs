//! Reads of one key, or of many at one etcd revision. Every read of the latest state is linearizable. It is answered
//! after the hub has reached its revision, so that later reads and watches show no older state.

use bytes::Bytes;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, ResourceVersion};

use super::{
    EtcdCore, READ_TIMEOUT,
    client::EtcdFault,
    commit::{at, delete, is_absent, is_there, nested, read_key, read_results},
    layout::{after, range_of},
    proto::{
        self, KeyValue, RangeResponse, RequestOp, TxnRequest, TxnResponse, request_op::Request, response_op::Response,
    },
};
use crate::{
    api::{
        OnDamage, RangePage, RangeRequest, RangeScope, StoreError, StoredObject,
        damage::{Damage, DamagedObject},
    },
    engine::failed,
    layout::record::CheckedObject,
    read::{
        skipped::SkippedObjects,
        state::{backend, damaged, revision},
    },
    reader_pool::ReadTenant,
};

/// Objects of the first page if their size is unknown.
const FIRST_PAGE: usize = 64;
/// Most objects of a page.
const LARGEST_PAGE: i64 = 2048;
/// Target size of a page in bytes.
const PAGE_BYTES: usize = 2 << 20;
/// Most indexed objects that are read at once.
const MAX_INDEXED_READS: usize = 100;
/// Keys that are read at once in a range with malformed keys.
const MALFORMED_PAGE: i64 = 1000;
/// Malformed keys that one read notes. Each costs one more read.
const MAX_NOTED: usize = 64;
/// Index entries that are removed in one write. etcd takes 128 operations; a nested transaction needs its conditions
/// too.
const MAX_DANGLING: usize = 100;

impl EtcdCore {
    /// Returns etcd's current revision.
    pub(super) async fn current_revision(&self) -> Result<i64, StoreError> {
        Ok(revision_of(&self.read(self.layout.meta(), Vec::new(), 1, 0, true).await?))
    }

    pub(super) async fn read(
        &self,
        from: Vec<u8>,
        to: Vec<u8>,
        limit: i64,
        revision: i64,
        keys_only: bool,
    ) -> Result<RangeResponse, StoreError> {
        self.request_range(from, to, limit, revision, keys_only).await.map_err(|fault| self.read_fault(fault))
    }

    async fn request_range(
        &self,
        from: Vec<u8>,
        to: Vec<u8>,
        limit: i64,
        revision: i64,
        keys_only: bool,
    ) -> Result<RangeResponse, EtcdFault> {
        let (key, range_end) = (Bytes::from(from), Bytes::from(to));
        let request = proto::RangeRequest { key, range_end, limit, revision, keys_only, ..Default::default() };
        self.client.range(request, READ_TIMEOUT).await
    }

    /// Reads the latest state of an object.
    pub(super) async fn get(&self, key: &ObjectKey) -> Result<Option<StoredObject>, StoreError> {
        let found = self.read(self.layout.object(key), Vec::new(), 0, 0, false).await?;
        self.reach(revision_of(&found)).await?;
        match found.kvs.first().map(|kv| self.layout.stored(kv)).transpose() {
            Err(StoreError::Damaged { key, why }) => {
                self.note(&DamagedObject { key: key.clone(), why }, None).await;
                Err(StoreError::Damaged { key, why })
            }
            // The error lets a client delete an object that only an index names.
            Ok(None) if self.damage.is_known_missing(key) => {
                Err(StoreError::Damaged { key: key.clone(), why: Damage::Missing })
            }
            stored => stored,
        }
    }

    /// Notes an object that a read of `scope` found damaged, unless only an older state is damaged.
    async fn note(&self, found: &DamagedObject, scope: Option<&RangeScope>) {
        if !self.damage.is_new(found) || !self.is_damaged(found, scope).await {
            return;
        }
        self.damage.add(found);
        // The feed may have reported its deletion in between.
        if !self.is_damaged(found, scope).await {
            self.damage.remove(&found.key);
        }
    }

    /// Notes the damaged objects that a read of `scope` found, except those whose index entries it removes.
    async fn note_all(&self, damaged: &[DamagedObject], scope: &RangeScope) {
        let is_noted = |found: &&DamagedObject| found.why != Damage::Key && self.damage.is_new(found);
        let news: Vec<_> = damaged.iter().filter(is_noted).collect();
        for news in news.chunks(MAX_DANGLING) {
            let taken = self.remove_dangling(news, scope).await;
            for found in news.iter().filter(|found| !taken.contains(&&found.key)) {
                self.note(found, Some(scope)).await;
            }
        }
    }

    /// Removes index entries of deleted logical clusters whose object is missing: no client could delete them. All are
    /// removed in one write, since each write is an fsync of etcd, but each under its own conditions. Returns the
    /// removed ones.
    async fn remove_dangling<'a>(&self, news: &[&'a DamagedObject], scope: &RangeScope) -> Vec<&'a ObjectKey> {
        let missing = news.iter().filter(|found| found.why == Damage::Missing).map(|found| &found.key);
        let named: Vec<_> = missing.filter_map(|key| Some((key, self.layout.entry(key, scope)?))).collect();
        if named.is_empty() {
            return Vec::new();
        }
        // Most belong to existing logical clusters: a read finds that out without a write.
        let tombstones = named.iter().map(|(key, _)| read_key(self.layout.tombstone(key.cluster))).collect();
        let request = TxnRequest { success: tombstones, ..TxnRequest::default() };
        let Ok(response) = self.client.read(request, READ_TIMEOUT).await else { return Vec::new() };
        let is_gone = read_results(response).into_iter().map(|tombstone| tombstone.is_some());
        let left: Vec<_> = named.into_iter().zip(is_gone).filter_map(|(named, gone)| gone.then_some(named)).collect();
        if left.is_empty() {
            return Vec::new();
        }
        let request = TxnRequest {
            compare: vec![self.is_same_store()],
            success: left.iter().map(|(key, entry)| self.deletion(key, entry)).collect(),
            failure: Vec::new(),
        };
        let Ok(response) = self.client.write(request, READ_TIMEOUT).await else { return Vec::new() };
        let deleted = response
            .responses
            .into_iter()
            .map(|done| matches!(done.response, Some(Response::ResponseTxn(nested)) if nested.succeeded));
        left.into_iter().zip(deleted).filter_map(|((key, _), deleted)| deleted.then_some(key)).collect()
    }

    /// Builds the removal of an index entry that names a missing object of a deleted logical cluster.
    fn deletion(&self, key: &ObjectKey, entry: &[u8]) -> RequestOp {
        let gone = is_there(self.layout.tombstone(key.cluster));
        let compare = vec![gone, is_absent(self.layout.object(key)), is_there(entry.to_vec())];
        let request = TxnRequest { compare, success: vec![delete(entry.to_vec())], failure: Vec::new() };
        RequestOp { request: Some(Request::RequestTxn(request)) }
    }

    /// Describes a malformed object key.
    fn malformed_key(&self, key: &[u8]) -> DamagedObject {
        DamagedObject { key: self.layout.stand_in(key), why: Damage::Key }
    }

    /// Notes a malformed object key. Its value was not written by the store, or belongs to an unknown object.
    pub(super) fn note_key(&self, key: &[u8]) {
        let found = self.malformed_key(key);
        if self.damage.is_new(&found) {
            tracing::error!(
                key = %key.escape_ascii(),
                "a key among those of objects in etcd names none: somebody else has written it, or it is damaged",
            );
            self.damage.add(&found);
        }
    }

    /// Notes a malformed key that a read found, if it still exists.
    async fn note_malformed(&self, key: Vec<u8>) {
        let told = self.malformed_key(&key);
        if !self.damage.is_new(&told) {
            return;
        }
        self.note_key(&key);
        // The feed may have reported its deletion in between.
        if !matches!(self.at(key, 0).await, Ok(Some(_))) {
            self.damage.remove(&told.key);
        }
    }

    async fn is_damaged(&self, found: &DamagedObject, scope: Option<&RangeScope>) -> bool {
        let object = self.layout.object(&found.key);
        let entry = scope.and_then(|scope| self.layout.entry(&found.key, scope));
        let request = TxnRequest {
            success: [Some(object), entry].into_iter().flatten().map(read_key).collect(),
            ..TxnRequest::default()
        };
        let Ok(response) = self.client.read(request, READ_TIMEOUT).await else { return false };
        match (&read_results(response)[..], found.why) {
            ([None, Some(_)], Damage::Missing) => true,
            ([Some(kv), ..], _) => matches!(self.layout.stored(kv), Err(StoreError::Damaged { .. })),
            _ => false,
        }
    }

    /// Reads a key at an etcd revision.
    pub(super) async fn at(&self, key: Vec<u8>, revision: i64) -> Result<Option<KeyValue>, StoreError> {
        match self.request_range(key, Vec::new(), 0, revision, false).await {
            Ok(found) => Ok(found.kvs.into_iter().next()),
            Err(EtcdFault::Compacted) => Err(self.compacted_error(revision).await?),
            Err(fault) => Err(self.read_fault(fault)),
        }
    }

    /// Reads all keys with a prefix, without values.
    pub(super) async fn keys(&self, prefix: Vec<u8>) -> Result<Vec<KeyValue>, StoreError> {
        let (from, to) = range_of(prefix);
        Ok(self.read(from, to, 0, 0, true).await?.kvs)
    }

    pub(super) async fn deleted_clusters(&self) -> Result<Vec<LogicalClusterId>, StoreError> {
        let tombstones = self.keys(self.layout.under(b't', &[])).await?;
        // A malformed tombstone deletes no logical cluster.
        Ok(tombstones.iter().filter_map(|kv| self.layout.cluster_of(&kv.key)).collect())
    }

    /// Reads a page of keys, without values.
    pub(super) async fn key_page(&self, from: Vec<u8>, to: Vec<u8>, limit: i64) -> Result<RangeResponse, StoreError> {
        self.read(from, to, limit, 0, true).await
    }

    /// Builds the error for a compacted etcd revision.
    pub(super) async fn compacted_error(&self, at: i64) -> Result<StoreError, StoreError> {
        let floor = self.layout.numbering.boundary(self.compacted().await?);
        self.hub.raise_floor(floor);
        let asked = self.layout.numbering.boundary(at).min(floor.saturating_sub(1));
        Ok(StoreError::Compacted { asked: revision(asked)?, oldest: revision(floor)? })
    }

    /// Reads a page of objects at one revision.
    pub(super) async fn range(&self, request: &RangeRequest) -> Result<RangePage, StoreError> {
        self.range_for(ReadTenant::of_range(&request.scope), request).await
    }

    /// Reads a page like [`EtcdCore::range`], when it is the tenant's turn.
    pub(super) async fn range_for(&self, party: ReadTenant, request: &RangeRequest) -> Result<RangePage, StoreError> {
        let page = self.page(party, request).await;
        let damaged = match &page {
            Ok(page) => page.damaged.clone(),
            Err(StoreError::Damaged { key, why }) => vec![DamagedObject { key: key.clone(), why: *why }],
            Err(_) => Vec::new(),
        };
        self.note_all(&damaged, &request.scope).await;
        page
    }

    async fn page(&self, party: ReadTenant, request: &RangeRequest) -> Result<RangePage, StoreError> {
        let mut reader = EtcdRangeReader {
            inner: self,
            request,
            at: 0,
            objects: Vec::new(),
            passed: SkippedObjects::default(),
            malformed: Vec::new(),
            unnoted: 0,
            bytes: 0,
            page: page_of(request, PageSize::default(), request.each.map(|bytes| PageSize { objects: 1, bytes })),
            indexed: MAX_INDEXED_READS,
        };
        if let Some(asked) = request.at {
            reader.at = self.state(asked).await?;
        }
        let turn = self.readers.acquire(party).await;
        let layout = &self.layout;
        let end = match &request.scope {
            RangeScope::All => reader.segment(layout.under(b'o', &[])).await,
            RangeScope::AllClusters(resource) => reader.segment(layout.resource(resource, None, None)).await,
            RangeScope::Cluster(cluster, resource) => {
                reader.segment(layout.resource(resource, Some(*cluster), None)).await
            }
            RangeScope::Namespace(cluster, resource, namespace) => {
                reader.segment(layout.resource(resource, Some(*cluster), Some(namespace))).await
            }
            RangeScope::Everything(cluster) => reader.everything(*cluster).await,
            RangeScope::PlacedOn(uid) => reader.index(layout.placed_on(uid)).await,
            RangeScope::OwnedBy(cluster, uid) => reader.index(layout.owned_by(*cluster, uid)).await,
        };
        for key in std::mem::take(&mut reader.malformed) {
            self.note_malformed(key).await;
        }
        if reader.unnoted > 0 {
            tracing::warn!(count = reader.unnoted, "more malformed object keys in etcd: later reads log them");
        }
        let end = end?;
        if reader.at == 0 {
            reader.at = self.current_revision().await?;
        }
        drop(turn);
        self.reach(reader.at).await?;
        let (more, remaining) = match end {
            PageEnd::Reached => (false, None),
            PageEnd::Full(remaining) => (true, remaining),
        };
        let revision = revision(layout.numbering.boundary(reader.at))?;
        let last = reader.last_read().cloned();
        let EtcdRangeReader { objects, passed, .. } = reader;
        let (damaged, unnamed) = passed.finish(more);
        Ok(RangePage { revision, objects, damaged, unnamed, last, more, remaining })
    }

    /// Returns the transaction of a revision whose state is requested.
    async fn state(&self, asked: ResourceVersion) -> Result<i64, StoreError> {
        self.wait_until_happened(asked).await?;
        self.hub.marks().check_kept(asked.get())?;
        Ok(self.layout.numbering.transaction(asked.get()))
    }
}

/// Returns the etcd revision of a response.
fn revision_of(response: &RangeResponse) -> i64 {
    response.header.as_ref().map_or(0, |header| header.revision)
}

/// End of a part of a read.
enum PageEnd {
    Reached,
    /// A limit cut the part; the number of objects that follow, if known.
    Full(Option<u64>),
}

struct EtcdRangeReader<'a> {
    inner: &'a EtcdCore,
    request: &'a RangeRequest,
    /// etcd revision that is read; 0 until the first answer.
    at: i64,
    objects: Vec<StoredObject>,
    passed: SkippedObjects,
    /// Malformed keys that are not known yet.
    malformed: Vec<Vec<u8>>,
    /// Number of further malformed keys.
    unnoted: usize,
    bytes: usize,
    page: i64,
    /// Indexed objects that are read at once. Lowered after an answer that was too large.
    indexed: usize,
}

impl EtcdRangeReader<'_> {
    fn is_at_limit(&self) -> bool {
        self.request.limit.is_some_and(|limit| self.read() >= limit)
    }

    fn is_full(&self) -> bool {
        self.is_at_limit()
            || (self.request.bytes.is_some_and(|bytes| self.bytes >= bytes) && self.last_read().is_some())
    }

    /// Returns true if another page would add little to a slice, which may be shorter than requested.
    fn is_enough(&self) -> bool {
        self.request.bytes.is_some_and(|bytes| self.bytes >= bytes / 8 * 7)
            && self.request.labels.is_everything()
            && self.last_read().is_some()
    }

    /// Returns the cursor of the next page.
    fn last_read(&self) -> Option<&ObjectKey> {
        self.passed.last().or_else(|| self.objects.last().map(|object| &object.key))
    }

    /// Reads the next page at the revision of the read, with a lower limit if the answer is too large.
    async fn next(&mut self, from: Vec<u8>, to: Vec<u8>, keys_only: bool) -> Result<RangeResponse, StoreError> {
        loop {
            match self.inner.request_range(from.clone(), to.clone(), self.page, self.at, keys_only).await {
                Ok(page) => {
                    if self.at == 0 {
                        self.at = revision_of(&page);
                    }
                    return Ok(page);
                }
                Err(EtcdFault::LargeAnswer) if self.page > 1 => self.page /= 2,
                Err(EtcdFault::Compacted) => return Err(self.inner.compacted_error(self.at).await?),
                Err(fault) => return Err(self.inner.read_fault(fault)),
            }
        }
    }

    /// Reads the objects whose keys have a prefix.
    async fn segment(&mut self, prefix: Vec<u8>) -> Result<PageEnd, StoreError> {
        let (mut from, to) = range_of(prefix);
        if let Some(last) = &self.request.after {
            from = from.max(after(self.inner.layout.object(last)));
        }
        if from >= to {
            return Ok(PageEnd::Reached);
        }
        loop {
            let page = self.next(from, to.clone(), false).await?;
            let (mut size, count) = (0, page.kvs.len());
            for (taken, kv) in page.kvs.iter().enumerate() {
                if self.is_full() {
                    return Ok(PageEnd::Full(self.remaining(&page, taken)));
                }
                size += kv.value.len();
                self.take(kv)?;
            }
            match page.kvs.last().filter(|_| page.more) {
                None => return Ok(PageEnd::Reached),
                Some(_) if self.is_full() || self.is_enough() => {
                    return Ok(PageEnd::Full(self.remaining(&page, count)));
                }
                Some(last) => from = after(last.key.to_vec()),
            }
            let taken = PageSize { objects: self.read(), bytes: self.bytes };
            let like =
                if self.request.labels.is_everything() { taken } else { PageSize { objects: count, bytes: size } };
            self.page = page_of(self.request, taken, Some(like));
        }
    }

    /// Returns the number of objects that were read, damaged ones included.
    fn read(&self) -> usize {
        self.objects.len() + self.passed.objects()
    }

    /// Returns the number of objects after the first `taken` ones of a page, if that is cheap to know.
    fn remaining(&self, page: &RangeResponse, taken: usize) -> Option<u64> {
        let whole = self.is_at_limit()
            && matches!(self.request.scope, RangeScope::Cluster(..) | RangeScope::Namespace(..))
            && self.request.labels.is_everything();
        whole.then(|| u64::try_from(page.count).unwrap_or(0).saturating_sub(taken as u64))
    }

    fn take(&mut self, kv: &KeyValue) -> Result<(), StoreError> {
        // Decoding checks the object; only a selector needs a check before.
        let matches = if self.request.labels.is_everything() {
            Ok(true)
        } else {
            CheckedObject::check(self.inner.layout.address_in(&kv.key), &kv.value)
                .and_then(|stored| stored.matches(&self.request.labels))
        };
        match matches.map(|matches| matches.then(|| self.inner.layout.stored(kv))) {
            Ok(None) => Ok(()),
            Ok(Some(Ok(object))) => {
                self.bytes += object.record.body().len();
                self.passed.record_read();
                self.objects.push(object);
                Ok(())
            }
            Ok(Some(Err(StoreError::Damaged { why, .. }))) | Err(why) => self.pass(&kv.key, kv.value.len(), why),
            Ok(Some(Err(error))) => Err(error),
        }
    }

    /// Skips an object that cannot be read, if the request allows it.
    fn pass(&mut self, key: &[u8], len: usize, why: Damage) -> Result<(), StoreError> {
        let layout = &self.inner.layout;
        let found = match layout.parse(key) {
            Some(key) => DamagedObject { key, why },
            None => self.inner.malformed_key(key),
        };
        if found.why == Damage::Key && why != Damage::Missing {
            self.note_later(key);
        }
        if self.request.on_damage == OnDamage::Fail {
            return Err(found.into());
        }
        self.bytes += len;
        self.passed.add(found);
        Ok(())
    }

    /// Records a malformed key, unless it is recorded already.
    fn note_later(&mut self, key: &[u8]) {
        if !self.inner.damage.is_new(&self.inner.malformed_key(key)) {
            return;
        }
        if self.malformed.len() < MAX_NOTED { self.malformed.push(key.to_vec()) } else { self.unnoted += 1 }
    }

    /// Reads a logical cluster resource by resource, seeking past other logical clusters.
    async fn everything(&mut self, cluster: LogicalClusterId) -> Result<PageEnd, StoreError> {
        let layout = &self.inner.layout;
        let (mut from, to) = range_of(layout.under(b'o', &[]));
        if let Some(last) = &self.request.after {
            from = layout.resource(&last.resource, None, None);
        }
        while let Some(resource) = self.next_resource(from, to.clone()).await? {
            match self.segment(layout.resource(&resource, Some(cluster), None)).await? {
                PageEnd::Reached => {}
                PageEnd::Full(_) => return Ok(PageEnd::Full(None)),
            }
            (_, from) = range_of(layout.resource(&resource, None, None));
            // The page may be full with the last object of a resource: the next resource tells if more follow.
            if self.is_full() {
                return Ok(if self.next_resource(from, to).await?.is_some() {
                    PageEnd::Full(None)
                } else {
                    PageEnd::Reached
                });
            }
        }
        Ok(PageEnd::Reached)
    }

    /// Returns the first resource at or after a key.
    async fn next_resource(&mut self, mut from: Vec<u8>, to: Vec<u8>) -> Result<Option<GroupResource>, StoreError> {
        let mut limit = 1;
        loop {
            let page = std::mem::replace(&mut self.page, limit);
            let found = self.next(from, to.clone(), true).await;
            self.page = page;
            let found = found?;
            for kv in &found.kvs {
                match self.inner.layout.parse(&kv.key) {
                    Some(key) => return Ok(Some(key.resource)),
                    None => self.note_later(&kv.key),
                }
            }
            let Some(last) = found.kvs.last().filter(|_| found.more) else { return Ok(None) };
            from = after(last.key.to_vec());
            // After one malformed key there may be many.
            limit = MALFORMED_PAGE;
        }
    }

    /// Reads the objects that an index names. Only the latest state has indexes.
    async fn index(&mut self, prefix: Option<Vec<u8>>) -> Result<PageEnd, StoreError> {
        let Some(prefix) = prefix else { return Ok(PageEnd::Reached) };
        let now = self.inner.hub.marks().last;
        if let Some(asked) = self.request.at.filter(|asked| asked.get() < now) {
            return Err(StoreError::Compacted { asked, oldest: revision(now)? });
        }
        let layout = &self.inner.layout;
        let (mut from, to) = range_of(prefix.clone());
        if let Some(last) = &self.request.after {
            let address = layout.object(last).split_off(layout.under(b'o', &[]).len());
            from = from.max(after([prefix.clone(), address].concat()));
        }
        loop {
            let page = self.next(from, to.clone(), true).await?;
            let object = |kv: &KeyValue| layout.indexed(&kv.key, &prefix);
            let keys: Option<Vec<_>> = page.kvs.iter().map(object).collect();
            let keys = keys.ok_or_else(|| damaged(Damage::Key))?;
            let mut left = keys.as_slice();
            while !left.is_empty() {
                let found = self.objects_at(left).await?;
                let (keys, rest) = left.split_at(found.len());
                for (key, kv) in keys.iter().zip(found) {
                    if self.is_full() {
                        return Ok(PageEnd::Full(None));
                    }
                    match kv {
                        Some(kv) => self.take(&kv)?,
                        None => self.pass(key, 0, Damage::Missing)?,
                    }
                }
                left = rest;
            }
            match page.kvs.last().filter(|_| page.more) {
                None => return Ok(PageEnd::Reached),
                Some(_) if self.is_full() => return Ok(PageEnd::Full(None)),
                Some(last) => from = after(last.key.to_vec()),
            }
        }
    }

    /// Reads the first of these keys at the revision of the read: as many as fit into one answer.
    async fn objects_at(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<KeyValue>>, StoreError> {
        loop {
            let keys = &keys[..keys.len().min(self.indexed)];
            match self.ask_for(keys).await.map(read_results) {
                Ok(found) if found.len() == keys.len() => return Ok(found),
                Ok(_) => return Err(backend(failed("etcd answered with less than it was asked for"))),
                Err(EtcdFault::LargeAnswer) if keys.len() > 1 => self.indexed = keys.len() / 2,
                Err(EtcdFault::Compacted) => return Err(self.inner.compacted_error(self.at).await?),
                Err(fault) => return Err(self.inner.read_fault(fault)),
            }
        }
    }

    async fn ask_for(&self, keys: &[Vec<u8>]) -> Result<TxnResponse, EtcdFault> {
        let looks = keys.iter().map(|key| {
            let mut operation = read_key(key.clone());
            if let Some(Request::RequestRange(range)) = &mut operation.request {
                range.revision = self.at;
            }
            operation
        });
        let request = TxnRequest { success: nested(0, looks.collect()), ..TxnRequest::default() };
        let found = self.inner.client.read(request, READ_TIMEOUT).await?;
        debug_assert!(at(&found) >= self.at, "etcd answers at the latest state or later");
        Ok(found)
    }
}

/// Number of objects and their total size.
#[derive(Clone, Copy, Debug, Default)]
struct PageSize {
    objects: usize,
    bytes: usize,
}

/// Returns the number of objects to request after `taken` ones, if their size is like that of `like`: as many as still
/// needed, but at most the size of a page.
fn page_of(request: &RangeRequest, taken: PageSize, like: Option<PageSize>) -> i64 {
    // A selector may discard most of the objects that are read.
    let is_plain = request.labels.is_everything();
    let wanted = request.bytes.filter(|_| is_plain).map(|most| most.saturating_sub(taken.bytes));
    let left = request.limit.filter(|_| is_plain).map(|limit| limit.saturating_sub(taken.objects));
    let room = wanted.map_or(PAGE_BYTES, |wanted| wanted.min(PAGE_BYTES));
    let fits = like.map_or(FIRST_PAGE, |like| room.div_ceil((like.bytes / like.objects.max(1)).max(1)));
    let page = left.map_or(fits, |left| left.min(fits));
    i64::try_from(page).unwrap_or(LARGEST_PAGE).clamp(1, LARGEST_PAGE)
}

#[cfg(test)]
mod tests {
    use portolan_types::LabelSelector;

    use super::*;

    #[test]
    fn pages_are_complete_and_within_their_limits() {
        const KIB: usize = 1 << 10;
        let all = RangeRequest::all(RangeScope::All);
        let slices = RangeRequest { bytes: Some(256 * KIB), ..all.clone() };
        let limited = RangeRequest { limit: Some(100), ..all.clone() };
        let selected = LabelSelector::parse("app=web").unwrap();
        let amount = |objects, bytes| PageSize { objects, bytes };
        for (case, request, taken, like, expected) in [
            ("nothing is known", &all, amount(0, 0), None, 64),
            ("they are small", &all, amount(64, 64 * KIB), Some(amount(64, 64 * KIB)), 2048),
            ("they are empty", &all, amount(64, 0), Some(amount(64, 0)), 2048),
            ("they are large", &all, amount(64, 64 << 20), Some(amount(64, 64 << 20)), 2),
            ("they are larger than a page", &all, amount(64, 1 << 30), Some(amount(64, 1 << 30)), 1),
            ("a slice has room for so many", &slices, amount(64, 64 * KIB), Some(amount(64, 64 * KIB)), 192),
            ("a slice that begins like the one before", &slices, amount(0, 0), Some(amount(1, 2 * KIB)), 128),
            ("a slice that is nearly full", &slices, amount(64, 255 * KIB), Some(amount(64, 255 * KIB)), 1),
            ("so many are left", &limited, amount(64, 64 * KIB), Some(amount(64, 64 * KIB)), 36),
            ("fewer are left than at first", &RangeRequest { limit: Some(10), ..all.clone() }, amount(0, 0), None, 10),
            (
                "the number of selected objects is unknown",
                &RangeRequest { labels: selected, limit: Some(1), ..slices.clone() },
                amount(0, 0),
                Some(amount(64, 64 * KIB)),
                2048,
            ),
        ] {
            assert_eq!(page_of(request, taken, like), expected, "{case}");
        }
    }
}
