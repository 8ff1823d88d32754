//! Reading: one key, or many at one revision of etcd's. Every read without a revision is linearizable, and the hub has come as
//! far before it is answered, so that nothing that follows shows an older state.

use bytes::Bytes;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, ResourceVersion};

use super::{
    Inner, READ_PATIENCE,
    client::Fault,
    commit::{at, delete, is_absent, is_there, look, looked, nested},
    layout::{after, range_of},
    proto::{
        self, KeyValue, RangeResponse, RequestOp, TxnRequest, TxnResponse, request_op::Request, response_op::Response,
    },
};
use crate::{
    Damaged, OnDamage, RangePage, RangeRequest, RangeScope, StoreError, StoredObject,
    blocking::Party,
    kv::failed,
    passed::Passed,
    read::{backend, damaged, revision},
    value::{Damage, Stored},
};

/// Objects of the first page that is asked of etcd, where nothing is known of their sizes.
const FIRST_PAGE: usize = 64;
/// Most objects of a page.
const LARGEST_PAGE: i64 = 2048;
/// Bytes that a page should have, about.
const PAGE_BYTES: usize = 2 << 20;
/// Most objects that an index names which are read at once.
const INDEXED: usize = 100;
/// Keys that are read at once where some name no object.
const KEYS: i64 = 1000;
/// Keys that name no object which one read notes: each is looked at once more.
const NOTED: usize = 64;
/// Entries of an index that are taken away in one write; etcd takes 128 operations, and a nested one its conditions besides.
const TAKEN_AWAY: usize = 100;

impl Inner {
    /// etcd's revision now.
    pub(super) async fn fresh(&self) -> Result<i64, StoreError> {
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
        self.ask(from, to, limit, revision, keys_only).await.map_err(|fault| self.read_fault(fault))
    }

    async fn ask(
        &self,
        from: Vec<u8>,
        to: Vec<u8>,
        limit: i64,
        revision: i64,
        keys_only: bool,
    ) -> Result<RangeResponse, Fault> {
        let (key, range_end) = (Bytes::from(from), Bytes::from(to));
        let request = proto::RangeRequest { key, range_end, limit, revision, keys_only, ..Default::default() };
        self.client.range(request, READ_PATIENCE).await
    }

    /// The latest state of an object.
    pub(super) async fn get(&self, key: &ObjectKey) -> Result<Option<StoredObject>, StoreError> {
        let found = self.read(self.layout.object(key), Vec::new(), 0, 0, false).await?;
        self.reach(revision_of(&found)).await?;
        match found.kvs.first().map(|kv| self.layout.stored(kv)).transpose() {
            Err(StoreError::Damaged { key, why }) => {
                self.note(&Damaged { key: key.clone(), why }, None).await;
                Err(StoreError::Damaged { key, why })
            }
            // Who knows of it only from an index may delete it as it is.
            Ok(None) if self.damage.misses(key) => Err(StoreError::Damaged { key: key.clone(), why: Damage::Missing }),
            stored => stored,
        }
    }

    /// Notes an object that a read of `scope` found damaged, unless only an older state of it is.
    async fn note(&self, found: &Damaged, scope: Option<&RangeScope>) {
        if !self.damage.is_news(found) || !self.is_damaged(found, scope).await {
            return;
        }
        self.damage.add(found);
        // The feed may have told of its deletion in between.
        if !self.is_damaged(found, scope).await {
            self.damage.remove(&found.key);
        }
    }

    /// Notes what a read of `scope` found damaged, but for what it may take away.
    async fn note_all(&self, damaged: &[Damaged], scope: &RangeScope) {
        let is_noted = |found: &&Damaged| found.why != Damage::Key && self.damage.is_news(found);
        let news: Vec<_> = damaged.iter().filter(is_noted).collect();
        for news in news.chunks(TAKEN_AWAY) {
            let taken = self.take_away(news, scope).await;
            for found in news.iter().filter(|found| !taken.contains(&&found.key)) {
                self.note(found, Some(scope)).await;
            }
        }
    }

    /// Deletes what an index names of logical clusters that are gone, where the object is missing: nobody else could. All in one
    /// write, since each is a sync of etcd's, and each under conditions of its own. Returns what is deleted.
    async fn take_away<'a>(&self, news: &[&'a Damaged], scope: &RangeScope) -> Vec<&'a ObjectKey> {
        let missing = news.iter().filter(|found| found.why == Damage::Missing).map(|found| &found.key);
        let named: Vec<_> = missing.filter_map(|key| Some((key, self.layout.entry(key, scope)?))).collect();
        if named.is_empty() {
            return Vec::new();
        }
        // Most are of logical clusters that are still there: that costs no write to know.
        let tombstones = named.iter().map(|(key, _)| look(self.layout.tombstone(key.cluster))).collect();
        let request = TxnRequest { success: tombstones, ..TxnRequest::default() };
        let Ok(response) = self.client.read(request, READ_PATIENCE).await else { return Vec::new() };
        let is_gone = looked(response).into_iter().map(|tombstone| tombstone.is_some());
        let left: Vec<_> = named.into_iter().zip(is_gone).filter_map(|(named, gone)| gone.then_some(named)).collect();
        if left.is_empty() {
            return Vec::new();
        }
        let request = TxnRequest {
            compare: vec![self.is_same_store()],
            success: left.iter().map(|(key, entry)| self.deletion(key, entry)).collect(),
            failure: Vec::new(),
        };
        let Ok(response) = self.client.write(request, READ_PATIENCE).await else { return Vec::new() };
        let deleted = response
            .responses
            .into_iter()
            .map(|done| matches!(done.response, Some(Response::ResponseTxn(nested)) if nested.succeeded));
        left.into_iter().zip(deleted).filter_map(|((key, _), deleted)| deleted.then_some(key)).collect()
    }

    /// Deletes the entry of an index that names nothing of a logical cluster that is gone.
    fn deletion(&self, key: &ObjectKey, entry: &[u8]) -> RequestOp {
        let gone = is_there(self.layout.tombstone(key.cluster));
        let compare = vec![gone, is_absent(self.layout.object(key)), is_there(entry.to_vec())];
        let request = TxnRequest { compare, success: vec![delete(entry.to_vec())], failure: Vec::new() };
        RequestOp { request: Some(Request::RequestTxn(request)) }
    }

    /// What is told of a key that names no object.
    fn foreign(&self, key: &[u8]) -> Damaged {
        Damaged { key: self.layout.stand_in(key), why: Damage::Key }
    }

    /// Notes a key that names no object. What lies there is none of the store's, or an object of which nobody can tell which.
    pub(super) fn note_key(&self, key: &[u8]) {
        let found = self.foreign(key);
        if self.damage.is_news(&found) {
            tracing::error!(
                key = %key.escape_ascii(),
                "a key among those of objects in etcd names none: somebody else has written it, or it is damaged",
            );
            self.damage.add(&found);
        }
    }

    /// Notes a key that a read found to name no object, if it is still there.
    async fn note_malformed(&self, key: Vec<u8>) {
        let told = self.foreign(&key);
        if !self.damage.is_news(&told) {
            return;
        }
        self.note_key(&key);
        // The feed may have told of its deletion in between.
        if !matches!(self.at(key, 0).await, Ok(Some(_))) {
            self.damage.remove(&told.key);
        }
    }

    async fn is_damaged(&self, found: &Damaged, scope: Option<&RangeScope>) -> bool {
        let object = self.layout.object(&found.key);
        let entry = scope.and_then(|scope| self.layout.entry(&found.key, scope));
        let request = TxnRequest {
            success: [Some(object), entry].into_iter().flatten().map(look).collect(),
            ..TxnRequest::default()
        };
        let Ok(response) = self.client.read(request, READ_PATIENCE).await else { return false };
        match (&looked(response)[..], found.why) {
            ([None, Some(_)], Damage::Missing) => true,
            ([Some(kv), ..], _) => matches!(self.layout.stored(kv), Err(StoreError::Damaged { .. })),
            _ => false,
        }
    }

    /// What etcd has at a key, at a revision of its own.
    pub(super) async fn at(&self, key: Vec<u8>, revision: i64) -> Result<Option<KeyValue>, StoreError> {
        match self.ask(key, Vec::new(), 0, revision, false).await {
            Ok(found) => Ok(found.kvs.into_iter().next()),
            Err(Fault::Compacted) => Err(self.forgotten(revision).await?),
            Err(fault) => Err(self.read_fault(fault)),
        }
    }

    /// All keys that begin with `prefix`, without values.
    pub(super) async fn keys(&self, prefix: Vec<u8>) -> Result<Vec<KeyValue>, StoreError> {
        let (from, to) = range_of(prefix);
        Ok(self.read(from, to, 0, 0, true).await?.kvs)
    }

    pub(super) async fn gone_clusters(&self) -> Result<Vec<LogicalClusterId>, StoreError> {
        let tombstones = self.keys(self.layout.under(b't', &[])).await?;
        // What names no logical cluster ends none.
        Ok(tombstones.iter().filter_map(|kv| self.layout.cluster_of(&kv.key)).collect())
    }

    /// Some keys of a range, without values.
    pub(super) async fn key_page(&self, from: Vec<u8>, to: Vec<u8>, limit: i64) -> Result<RangeResponse, StoreError> {
        self.read(from, to, limit, 0, true).await
    }

    /// What is said of a revision of etcd's that is compacted.
    pub(super) async fn forgotten(&self, at: i64) -> Result<StoreError, StoreError> {
        let floor = self.layout.numbering.boundary(self.compacted().await?);
        self.hub.raise_floor(floor);
        let asked = self.layout.numbering.boundary(at).min(floor.saturating_sub(1));
        Ok(StoreError::Compacted { asked: revision(asked)?, oldest: revision(floor)? })
    }

    /// Many objects at one state.
    pub(super) async fn range(&self, request: &RangeRequest) -> Result<RangePage, StoreError> {
        self.range_for(Party::of_range(&request.scope), request).await
    }

    /// As [`Inner::range`], when it is the turn of a party.
    pub(super) async fn range_for(&self, party: Party, request: &RangeRequest) -> Result<RangePage, StoreError> {
        let page = self.page(party, request).await;
        let damaged = match &page {
            Ok(page) => page.damaged.clone(),
            Err(StoreError::Damaged { key, why }) => vec![Damaged { key: key.clone(), why: *why }],
            Err(_) => Vec::new(),
        };
        self.note_all(&damaged, &request.scope).await;
        page
    }

    async fn page(&self, party: Party, request: &RangeRequest) -> Result<RangePage, StoreError> {
        let mut reader = Reader {
            inner: self,
            request,
            at: 0,
            objects: Vec::new(),
            passed: Passed::default(),
            malformed: Vec::new(),
            unnoted: 0,
            bytes: 0,
            page: page_of(request, Amount::default(), request.each.map(|bytes| Amount { objects: 1, bytes })),
            indexed: INDEXED,
        };
        if let Some(asked) = request.at {
            reader.at = self.state(asked).await?;
        }
        let turn = self.readers.turn(party).await;
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
            tracing::warn!(count = reader.unnoted, "further keys name no object: the next reads name them");
        }
        let end = end?;
        if reader.at == 0 {
            reader.at = self.fresh().await?;
        }
        drop(turn);
        self.reach(reader.at).await?;
        let (more, remaining) = match end {
            End::Reached => (false, None),
            End::Full(remaining) => (true, remaining),
        };
        let revision = revision(layout.numbering.boundary(reader.at))?;
        let last = reader.last_read().cloned();
        let Reader { objects, passed, .. } = reader;
        let (damaged, unnamed) = passed.finish(more);
        Ok(RangePage { revision, objects, damaged, unnamed, last, more, remaining })
    }

    /// The transaction of a revision whose state is asked for.
    async fn state(&self, asked: ResourceVersion) -> Result<i64, StoreError> {
        self.happened(asked).await?;
        self.hub.marks().check_kept(asked.get())?;
        Ok(self.layout.numbering.transaction(asked.get()))
    }
}

/// The revision at which etcd answered.
fn revision_of(response: &RangeResponse) -> i64 {
    response.header.as_ref().map_or(0, |header| header.revision)
}

/// How a part of a read ended.
enum End {
    Reached,
    /// A bound cut it; so many follow, where that is known.
    Full(Option<u64>),
}

struct Reader<'a> {
    inner: &'a Inner,
    request: &'a RangeRequest,
    /// The revision of etcd's that is read; 0 until the first answer tells.
    at: i64,
    objects: Vec<StoredObject>,
    passed: Passed,
    /// Keys that were found to name no object, of which nobody knows yet.
    malformed: Vec<Vec<u8>>,
    /// How many more of them there are.
    unnoted: usize,
    bytes: usize,
    page: i64,
    /// Objects that an index names which are read at once: fewer once an answer was too large.
    indexed: usize,
}

impl Reader<'_> {
    fn is_at_limit(&self) -> bool {
        self.request.limit.is_some_and(|limit| self.read() >= limit)
    }

    fn is_full(&self) -> bool {
        self.is_at_limit()
            || (self.request.bytes.is_some_and(|bytes| self.bytes >= bytes) && self.last_read().is_some())
    }

    /// Whether a further page would add little to a slice, which may be shorter than asked for.
    fn is_enough(&self) -> bool {
        self.request.bytes.is_some_and(|bytes| self.bytes >= bytes / 8 * 7)
            && self.request.labels.is_everything()
            && self.last_read().is_some()
    }

    /// Where to go on from.
    fn last_read(&self) -> Option<&ObjectKey> {
        self.passed.last().or_else(|| self.objects.last().map(|object| &object.key))
    }

    /// A page of a range, at the state that is read; a smaller one when it would be too large.
    async fn next(&mut self, from: Vec<u8>, to: Vec<u8>, keys_only: bool) -> Result<RangeResponse, StoreError> {
        loop {
            match self.inner.ask(from.clone(), to.clone(), self.page, self.at, keys_only).await {
                Ok(page) => {
                    if self.at == 0 {
                        self.at = revision_of(&page);
                    }
                    return Ok(page);
                }
                Err(Fault::LargeAnswer) if self.page > 1 => self.page /= 2,
                Err(Fault::Compacted) => return Err(self.inner.forgotten(self.at).await?),
                Err(fault) => return Err(self.inner.read_fault(fault)),
            }
        }
    }

    /// Reads the objects whose keys begin with `prefix`.
    async fn segment(&mut self, prefix: Vec<u8>) -> Result<End, StoreError> {
        let (mut from, to) = range_of(prefix);
        if let Some(last) = &self.request.after {
            from = from.max(after(self.inner.layout.object(last)));
        }
        if from >= to {
            return Ok(End::Reached);
        }
        loop {
            let page = self.next(from, to.clone(), false).await?;
            let (mut size, count) = (0, page.kvs.len());
            for (taken, kv) in page.kvs.iter().enumerate() {
                if self.is_full() {
                    return Ok(End::Full(self.remaining(&page, taken)));
                }
                size += kv.value.len();
                self.take(kv)?;
            }
            match page.kvs.last().filter(|_| page.more) {
                None => return Ok(End::Reached),
                Some(_) if self.is_full() || self.is_enough() => return Ok(End::Full(self.remaining(&page, count))),
                Some(last) => from = after(last.key.to_vec()),
            }
            let taken = Amount { objects: self.read(), bytes: self.bytes };
            let like = if self.request.labels.is_everything() { taken } else { Amount { objects: count, bytes: size } };
            self.page = page_of(self.request, taken, Some(like));
        }
    }

    /// Objects that were read, damaged ones among them.
    fn read(&self) -> usize {
        self.objects.len() + self.passed.objects()
    }

    /// How many follow after so many of a page were taken, where that is cheap to know.
    fn remaining(&self, page: &RangeResponse, taken: usize) -> Option<u64> {
        let whole = self.is_at_limit()
            && matches!(self.request.scope, RangeScope::Cluster(..) | RangeScope::Namespace(..))
            && self.request.labels.is_everything();
        whole.then(|| u64::try_from(page.count).unwrap_or(0).saturating_sub(taken as u64))
    }

    fn take(&mut self, kv: &KeyValue) -> Result<(), StoreError> {
        // What is taken is checked then: only a selector has to know before.
        let matches = match self.request.labels.is_everything() {
            true => Ok(true),
            false => Stored::check(self.inner.layout.address_in(&kv.key), &kv.value)
                .and_then(|stored| stored.matches(&self.request.labels)),
        };
        match matches.map(|matches| matches.then(|| self.inner.layout.stored(kv))) {
            Ok(None) => Ok(()),
            Ok(Some(Ok(object))) => {
                self.bytes += object.record.body().len();
                self.passed.took();
                self.objects.push(object);
                Ok(())
            }
            Ok(Some(Err(StoreError::Damaged { why, .. }))) | Err(why) => self.pass(&kv.key, kv.value.len(), why),
            Ok(Some(Err(error))) => Err(error),
        }
    }

    /// Goes past an object that cannot be read, where that is asked for.
    fn pass(&mut self, key: &[u8], len: usize, why: Damage) -> Result<(), StoreError> {
        let layout = &self.inner.layout;
        let found = match layout.parse(key) {
            Some(key) => Damaged { key, why },
            None => self.inner.foreign(key),
        };
        if found.why == Damage::Key && why != Damage::Missing {
            self.come_across(key);
        }
        if self.request.on_damage == OnDamage::Fail {
            return Err(found.into());
        }
        self.bytes += len;
        self.passed.add(found);
        Ok(())
    }

    /// Keeps a key that names no object to note it, when nobody knows of it.
    fn come_across(&mut self, key: &[u8]) {
        if !self.inner.damage.is_news(&self.inner.foreign(key)) {
            return;
        }
        match self.malformed.len() < NOTED {
            true => self.malformed.push(key.to_vec()),
            false => self.unnoted += 1,
        }
    }

    /// Reads a logical cluster resource by resource, leaping over what lies between.
    async fn everything(&mut self, cluster: LogicalClusterId) -> Result<End, StoreError> {
        let layout = &self.inner.layout;
        let (mut from, to) = range_of(layout.under(b'o', &[]));
        if let Some(last) = &self.request.after {
            from = layout.resource(&last.resource, None, None);
        }
        while let Some(resource) = self.next_resource(from, to.clone()).await? {
            match self.segment(layout.resource(&resource, Some(cluster), None)).await? {
                End::Reached => {}
                End::Full(_) => return Ok(End::Full(None)),
            }
            (_, from) = range_of(layout.resource(&resource, None, None));
            // Full with the last object of a resource: whether more follow is seen at the next one.
            if self.is_full() {
                return Ok(if self.next_resource(from, to).await?.is_some() { End::Full(None) } else { End::Reached });
            }
        }
        Ok(End::Reached)
    }

    /// The first resource from a key on.
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
                    None => self.come_across(&kv.key),
                }
            }
            let Some(last) = found.kvs.last().filter(|_| found.more) else { return Ok(None) };
            from = after(last.key.to_vec());
            // Where one names no object, many may.
            limit = KEYS;
        }
    }

    /// Reads the objects that an index names. Only the latest state has indexes.
    async fn index(&mut self, prefix: Option<Vec<u8>>) -> Result<End, StoreError> {
        let Some(prefix) = prefix else { return Ok(End::Reached) };
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
                        return Ok(End::Full(None));
                    }
                    match kv {
                        Some(kv) => self.take(&kv)?,
                        None => self.pass(key, 0, Damage::Missing)?,
                    }
                }
                left = rest;
            }
            match page.kvs.last().filter(|_| page.more) {
                None => return Ok(End::Reached),
                Some(_) if self.is_full() => return Ok(End::Full(None)),
                Some(last) => from = after(last.key.to_vec()),
            }
        }
    }

    /// What the first of these keys hold at the state that is read: as many as go into one answer.
    async fn objects_at(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<KeyValue>>, StoreError> {
        loop {
            let keys = &keys[..keys.len().min(self.indexed)];
            match self.ask_for(keys).await.map(looked) {
                Ok(found) if found.len() == keys.len() => return Ok(found),
                Ok(_) => return Err(backend(failed("etcd answered with less than it was asked for"))),
                Err(Fault::LargeAnswer) if keys.len() > 1 => self.indexed = keys.len() / 2,
                Err(Fault::Compacted) => return Err(self.inner.forgotten(self.at).await?),
                Err(fault) => return Err(self.inner.read_fault(fault)),
            }
        }
    }

    async fn ask_for(&self, keys: &[Vec<u8>]) -> Result<TxnResponse, Fault> {
        let looks = keys.iter().map(|key| {
            let mut operation = look(key.clone());
            if let Some(Request::RequestRange(range)) = &mut operation.request {
                range.revision = self.at;
            }
            operation
        });
        let request = TxnRequest { success: nested(0, looks.collect()), ..TxnRequest::default() };
        let found = self.inner.client.read(request, READ_PATIENCE).await?;
        debug_assert!(at(&found) >= self.at, "etcd answers at the latest state or later");
        Ok(found)
    }
}

/// Objects, and the bytes of them all.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    objects: usize,
    bytes: usize,
}

/// How many objects to ask for when so much was taken, of sizes like these: as many as are still wanted, since the rest would be read for
/// nothing, but no more than a page should have.
fn page_of(request: &RangeRequest, taken: Amount, like: Option<Amount>) -> i64 {
    // Who selects wants few of those that are read.
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
    fn pages_have_what_is_wanted_and_are_no_larger_than_they_should_be() {
        const KIB: usize = 1 << 10;
        let all = RangeRequest::all(RangeScope::All);
        let slices = RangeRequest { bytes: Some(256 * KIB), ..all.clone() };
        let limited = RangeRequest { limit: Some(100), ..all.clone() };
        let selected = LabelSelector::parse("app=web").unwrap();
        let amount = |objects, bytes| Amount { objects, bytes };
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
                "of those that are selected nobody knows how many",
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
