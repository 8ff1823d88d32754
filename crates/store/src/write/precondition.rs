//! Preconditions of writes.

use portolan_types::{ObjectKey, ResourceVersion};

use crate::api::{Expect, StoreError, damage::Damage};

/// Properties of a readable object that a precondition is checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreconditionFacts {
    pub(crate) revision: ResourceVersion,
    pub(crate) created: ResourceVersion,
    pub(crate) is_deleting: bool,
}

/// Checks a precondition against an object, or a damaged one.
pub(crate) fn check(
    key: &ObjectKey,
    expect: Expect,
    found: Option<Result<PreconditionFacts, Damage>>,
) -> Result<(), StoreError> {
    match (expect, found) {
        (Expect::Anything | Expect::Absent, None) | (Expect::Damaged, Some(Err(_))) => Ok(()),
        (Expect::Anything | Expect::Present, Some(Ok(_))) => Ok(()),
        (Expect::At(expected), Some(Ok(met))) if expected == met.revision => Ok(()),
        (Expect::Lives { created, .. }, Some(Ok(met))) if created == met.created && !met.is_deleting => Ok(()),
        (Expect::At(expected) | Expect::Lives { written: expected, .. }, Some(Ok(met))) => {
            Err(conflict(key, expected, met.revision))
        }
        (Expect::Absent, Some(_)) => Err(StoreError::AlreadyExists { key: key.clone() }),
        (Expect::Present | Expect::At(_) | Expect::Lives { .. } | Expect::Damaged, None) => {
            Err(StoreError::NotFound { key: key.clone() })
        }
        (Expect::Damaged, Some(Ok(_))) => Err(StoreError::NotDamaged { key: key.clone() }),
        (Expect::Anything | Expect::Present | Expect::At(_) | Expect::Lives { .. }, Some(Err(why))) => {
            Err(StoreError::Damaged { key: key.clone(), why })
        }
    }
}

fn conflict(key: &ObjectKey, expected: ResourceVersion, actual: ResourceVersion) -> StoreError {
    StoreError::Conflict { key: key.clone(), expected, actual }
}
