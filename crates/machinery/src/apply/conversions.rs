//! Objects in the versions of their owners.
//!
//! The versions of a custom resource may be a webhook's to convert, and nothing here asks anybody. Who comes to an object that is
//! not converted yet ends there and says what is wanted; the caller has it converted, and begins anew with what is known by then.

use parking_lot::Mutex;
use portolan_types::{Reason, Status, object::Object};
use serde_json::Value;

use super::managers;
use crate::{
    conversion::{from_storage, to_storage},
    custom::Conversion,
    kinds::{Kind, KindTable},
};

/// Most bytes, as JSON, that are kept converted for one write: what an object of the largest size needs for a few versions.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// What is known of one write's objects in other versions. Empty at first.
#[derive(Debug, Default)]
pub struct Conversions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: Vec<(Wanted, Result<Value, String>)>,
    bytes: usize,
    wanted: Option<Wanted>,
}

/// An object that a webhook has to convert before a write can go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The object, in its own version.
    pub object: Value,
    /// The `apiVersion` that it is wanted in.
    pub to: String,
}

/// Why nothing is known of an object in another version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stuck {
    /// A webhook has to be asked: [`Conversions::take_wanted`].
    Unconverted,
    /// It cannot be converted, or is not what it should be then.
    Failed(String),
}

impl Stuck {
    /// Says what was tried.
    pub(super) fn while_it(self, tried: &str) -> Self {
        match self {
            Self::Failed(why) => Self::Failed(format!("{tried}: {why}")),
            Self::Unconverted => Self::Unconverted,
        }
    }
}

/// A webhook has to be asked first: see [`Conversions::take_wanted`].
#[derive(Debug, thiserror::Error)]
#[error("an object is not converted yet")]
pub struct Unconverted;

impl From<Unconverted> for Status {
    fn from(unconverted: Unconverted) -> Self {
        Self::internal(unconverted.to_string())
    }
}

/// Why a configuration was not applied.
#[derive(Debug)]
pub enum Unapplied {
    /// What the client is told.
    Refused(Status),
    /// A webhook has to be asked first.
    Unconverted,
}

impl From<Status> for Unapplied {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

impl From<Stuck> for Unapplied {
    fn from(stuck: Stuck) -> Self {
        match stuck {
            Stuck::Failed(why) => Self::Refused(Status::new(Reason::Unknown, why)),
            Stuck::Unconverted => Self::Unconverted,
        }
    }
}

impl From<Unapplied> for Status {
    fn from(unapplied: Unapplied) -> Self {
        match unapplied {
            Unapplied::Refused(status) => status,
            Unapplied::Unconverted => Unconverted.into(),
        }
    }
}

impl Conversions {
    /// Forgets everything, where the write begins anew with another state of the object.
    pub fn clear(&self) {
        *self.0.lock() = State::default();
    }

    /// What the last attempt could not go on without.
    pub fn take_wanted(&self) -> Option<Wanted> {
        self.0.lock().wanted.take()
    }

    /// Takes what has come of a [`Wanted`]: the object, or why it cannot be converted.
    pub fn learn(&self, wanted: Wanted, converted: Result<Value, String>) {
        let mut state = self.0.lock();
        let sizes = [Some(&wanted.object), converted.as_ref().ok()];
        state.bytes += sizes.into_iter().flatten().map(|object| object.to_string().len()).sum::<usize>();
        state.known.push((wanted, converted));
    }

    /// An object that is `from` as one that is `to`, both versions of one resource. Nobody owns the record of owners: it is left out.
    pub(super) fn between(
        &self,
        table: &KindTable,
        (from, to): (&Kind, &Kind),
        object: &Value,
    ) -> Result<Value, Stuck> {
        let mut object = object.clone();
        if managers::managed_fields(&object).is_some() {
            managers::set_managed_fields(&mut object, None);
        }
        match table.conversion() {
            None => Ok(from_storage(to, to_storage(from, object))),
            Some(conversion) => self.custom(conversion, (from, to), object),
        }
    }

    fn custom(&self, conversion: &Conversion, (from, to): (&Kind, &Kind), mut object: Value) -> Result<Value, Stuck> {
        let (from, kind) = (from.group_version().to_string(), &*from.gvk.kind);
        let to = to.group_version().to_string();
        conversion.check(&from, &to).map_err(Stuck::Failed)?;
        let is_empty = object.as_object().is_some_and(Object::is_empty);
        object["kind"] = kind.into();
        // Of nothing no webhook is asked, as upstream.
        if conversion.webhook().is_none() || is_empty {
            object["apiVersion"] = to.into();
            return Ok(object);
        }
        object["apiVersion"] = from.into();
        self.asked(Wanted { object, to })
    }

    fn asked(&self, wanted: Wanted) -> Result<Value, Stuck> {
        let mut state = self.0.lock();
        if let Some((_, converted)) = state.known.iter().find(|(known, _)| *known == wanted) {
            return converted.clone().map_err(Stuck::Failed);
        }
        if state.bytes > MAX_BYTES {
            return Err(Stuck::Failed(format!(
                "owners wrote in too many versions: more than {MAX_BYTES} bytes of them"
            )));
        }
        state.wanted = Some(wanted);
        Err(Stuck::Unconverted)
    }
}
