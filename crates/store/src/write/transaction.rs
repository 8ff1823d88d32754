//! Transaction with encoded objects, ready to be planned.

use std::collections::BTreeSet;

use portolan_types::{LogicalClusterId, ObjectKey};

use crate::{
    api::{
        AccountLimit, Expect, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_CONDITIONS, MAX_TRANSACTION_OBJECTS, StoreError,
        Transaction,
    },
    layout::record::EncodedObject,
    write::gate::WritePurpose,
};

/// Transaction with encoded objects. The caller's thread encodes them.
pub(crate) struct PreparedTransaction {
    pub(crate) accounts: Vec<AccountLimit>,
    pub(crate) checks: Vec<(ObjectKey, Expect)>,
    pub(crate) writes: Vec<PreparedWrite>,
    bytes: usize,
}

pub(crate) struct PreparedWrite {
    pub(crate) key: ObjectKey,
    pub(crate) expect: Expect,
    pub(crate) record: Option<EncodedObject>,
}

impl PreparedTransaction {
    /// # Errors
    /// `TooLarge` for more objects, conditions or bytes than a transaction may have, and for a key that is written
    /// twice.
    pub(crate) fn new(txn: Transaction) -> Result<Self, StoreError> {
        let count = txn.writes.len();
        if count > MAX_TRANSACTION_OBJECTS {
            let what = format!("{count} objects, at most {MAX_TRANSACTION_OBJECTS} are possible");
            return Err(StoreError::TooLarge { what });
        }
        let clusters: BTreeSet<LogicalClusterId> = txn.writes.iter().map(|write| write.key.cluster).collect();
        let conditions = count + txn.checks.len() + clusters.len();
        if conditions > MAX_TRANSACTION_CONDITIONS {
            let what = format!("{conditions} conditions, at most {MAX_TRANSACTION_CONDITIONS} are possible");
            return Err(StoreError::TooLarge { what });
        }
        let mut keys: Vec<&ObjectKey> = txn.writes.iter().map(|write| &write.key).collect();
        keys.sort_unstable();
        if let Some(twice) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(StoreError::TooLarge { what: format!("it writes {} twice", twice[0]) });
        }
        let prepare = |write: crate::api::Write| PreparedWrite {
            key: write.key,
            expect: write.expect,
            record: write.record.map(EncodedObject::new),
        };
        let writes: Vec<PreparedWrite> = txn.writes.into_iter().map(prepare).collect();
        let bytes = writes.iter().map(|write| 64 + write.record.as_ref().map_or(0, EncodedObject::len)).sum();
        if bytes > MAX_TRANSACTION_BYTES {
            let what = format!("{bytes} bytes, at most {MAX_TRANSACTION_BYTES} are possible");
            return Err(StoreError::TooLarge { what });
        }
        Ok(Self { accounts: txn.accounts, checks: txn.checks, writes, bytes })
    }

    /// Links logical clusters to their parents, and writes nothing else.
    pub(crate) fn linking(accounts: Vec<AccountLimit>) -> Self {
        Self { accounts, checks: Vec::new(), writes: Vec::new(), bytes: 0 }
    }

    /// Returns the effect of the transaction on disk space. Deleting an object often begins with changing it, so an
    /// object that is being deleted may be changed until it is gone.
    pub(crate) fn purpose(&self) -> WritePurpose {
        let each = self.writes.iter().map(|write| match &write.record {
            None => WritePurpose::MakeRoom,
            Some(record) if record.header().is_deleting => WritePurpose::Leave,
            Some(_) => WritePurpose::Any,
        });
        each.min().unwrap_or(WritePurpose::MakeRoom)
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}
