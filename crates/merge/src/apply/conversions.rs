//! Objects in the versions of their owners.
//!
//! The conversion of a custom resource may need a webhook, and this module does no IO. A write that needs a missing
//! conversion ends and names it; the caller has the object converted, and starts the write again with the known
//! conversions.

use parking_lot::Mutex;
use portolan_types::{Reason, Status, object::Object};
use serde_json::Value;

use super::managers;
use portolan_codec::conversion::{from_storage, to_storage};
use portolan_kinds::{Kind, KindTable, custom::Conversion};

/// Maximum of bytes, as JSON, of converted objects per write: enough for a few versions of an object of the largest
/// size.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Cache of one write's objects in other versions. Empty at first.
#[derive(Debug, Default)]
pub struct Conversions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: Vec<(MissingConversion, Result<Value, String>)>,
    bytes: usize,
    wanted: Option<MissingConversion>,
}

/// An object that a webhook has to convert before a write can continue.
#[derive(Clone, Debug, PartialEq)]
pub struct MissingConversion {
    /// The object, in its own version.
    pub object: Value,
    /// The `apiVersion` that it is wanted in.
    pub to: String,
}

/// Reason why an object is not known in another version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnavailableVersion {
    /// A webhook must convert it: [`Conversions::take_wanted`].
    Unconverted,
    /// It cannot be converted, or the result is invalid.
    Failed(String),
}

impl UnavailableVersion {
    /// Adds the attempted step to the reason.
    pub(super) fn while_it(self, tried: &str) -> Self {
        match self {
            Self::Failed(why) => Self::Failed(format!("{tried}: {why}")),
            Self::Unconverted => Self::Unconverted,
        }
    }
}

/// A webhook must convert it first: see [`Conversions::take_wanted`].
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
    /// Refusal that the client gets.
    Refused(Status),
    /// A webhook must convert it first.
    Unconverted,
}

impl From<Status> for Unapplied {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

impl From<UnavailableVersion> for Unapplied {
    fn from(stuck: UnavailableVersion) -> Self {
        match stuck {
            UnavailableVersion::Failed(why) => Self::Refused(Status::new(Reason::Unknown, why)),
            UnavailableVersion::Unconverted => Self::Unconverted,
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
    /// Forgets everything, where the write begins again with another state of the object.
    pub fn clear(&self) {
        *self.0.lock() = State::default();
    }

    /// Returns the conversion that the last attempt lacked.
    pub fn take_wanted(&self) -> Option<MissingConversion> {
        self.0.lock().wanted.take()
    }

    /// Records the result of a [`MissingConversion`]: the object, or the reason why it cannot be converted.
    pub fn learn(&self, wanted: MissingConversion, converted: Result<Value, String>) {
        let mut state = self.0.lock();
        let sizes = [Some(&wanted.object), converted.as_ref().ok()];
        state.bytes += sizes.into_iter().flatten().map(|object| object.to_string().len()).sum::<usize>();
        state.known.push((wanted, converted));
    }

    /// Converts an object from the version `from` to `to`, both of one resource. `managedFields` is left out, because
    /// no manager owns it.
    pub(super) fn between(
        &self,
        table: &KindTable,
        (from, to): (&Kind, &Kind),
        object: &Value,
    ) -> Result<Value, UnavailableVersion> {
        let mut object = object.clone();
        if managers::managed_fields(&object).is_some() {
            managers::set_managed_fields(&mut object, None);
        }
        match table.conversion() {
            None => Ok(from_storage(to, to_storage(from, object))),
            Some(conversion) => self.custom(conversion, (from, to), object),
        }
    }

    fn custom(
        &self,
        conversion: &Conversion,
        (from, to): (&Kind, &Kind),
        mut object: Value,
    ) -> Result<Value, UnavailableVersion> {
        let (from, kind) = (from.group_version().to_string(), &*from.gvk.kind);
        let to = to.group_version().to_string();
        conversion.check(&from, &to).map_err(UnavailableVersion::Failed)?;
        let is_empty = object.as_object().is_some_and(Object::is_empty);
        object["kind"] = kind.into();
        // An empty object is converted without the webhook, as in kube-apiserver.
        if conversion.webhook().is_none() || is_empty {
            object["apiVersion"] = to.into();
            return Ok(object);
        }
        object["apiVersion"] = from.into();
        self.find_or_convert(MissingConversion { object, to })
    }

    fn find_or_convert(&self, wanted: MissingConversion) -> Result<Value, UnavailableVersion> {
        let mut state = self.0.lock();
        if let Some((_, converted)) = state.known.iter().find(|(known, _)| *known == wanted) {
            return converted.clone().map_err(UnavailableVersion::Failed);
        }
        if state.bytes > MAX_BYTES {
            return Err(UnavailableVersion::Failed(format!(
                "owners wrote in too many versions: more than {MAX_BYTES} bytes of them"
            )));
        }
        state.wanted = Some(wanted);
        Err(UnavailableVersion::Unconverted)
    }
}
