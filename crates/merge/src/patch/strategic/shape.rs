//! Parts of the kind table that a strategic merge patch reads.

use super::Failure;
use portolan_kinds::{FieldKind, KindTable, Type, TypeId};

/// The shape of an object.
#[derive(Clone, Copy)]
pub(super) enum PatchShape<'t> {
    /// Known fields.
    Message(&'t KindTable, &'t Type),
    /// Free keys: kube-apiserver merges no objects and lists there.
    Map,
    /// No schema: objects are merged, lists replaced.
    Unknown,
}

/// The shape of a field.
pub(super) struct FieldShape<'t> {
    /// Shape of the object, or of the elements of a list.
    pub(super) value: PatchShape<'t>,
    /// An object is replaced, not merged.
    pub(super) replace: bool,
    /// A list is merged, not replaced.
    pub(super) merge: bool,
    /// The key of a list of objects.
    pub(super) merge_key: Option<&'t str>,
}

impl<'t> PatchShape<'t> {
    pub(super) fn of_type(table: &'t KindTable, id: TypeId) -> Self {
        match table.get(id) {
            Type { special: Some(_), .. } => Self::Unknown,
            message => Self::Message(table, message),
        }
    }

    fn of_kind(table: &'t KindTable, kind: &'t FieldKind) -> Self {
        match kind {
            FieldKind::Message(id) => Self::of_type(table, *id),
            FieldKind::Map(_) => Self::Map,
            FieldKind::List(elements) => Self::of_kind(table, elements),
            FieldKind::Scalar(_) | FieldKind::Special(_) => Self::Unknown,
        }
    }

    /// Returns the shape of a field that both sides have.
    ///
    /// # Errors
    /// Fails as kube-apiserver does if its type has no such field.
    pub(super) fn field(self, name: &str) -> Result<FieldShape<'t>, Failure> {
        let free = FieldShape { value: Self::Unknown, replace: false, merge: false, merge_key: None };
        match self {
            Self::Unknown => Ok(free),
            Self::Map => Err(Failure::NoStruct),
            Self::Message(table, message) => match message.field(name) {
                Some(field) => Ok(FieldShape {
                    value: Self::of_kind(table, &field.kind),
                    replace: field.patch.replace,
                    merge: field.patch.merge,
                    merge_key: field.merge_key.as_deref(),
                }),
                None if message.preserve_unknown => Ok(free),
                None => Err(Failure::NoField(short(&message.name).to_owned(), name.to_owned())),
            },
        }
    }

    /// Returns the name of the type in messages.
    pub(super) fn name(self) -> String {
        match self {
            Self::Message(_, message) => message.name.to_string(),
            Self::Map => "map".into(),
            Self::Unknown => "unknown".into(),
        }
    }
}

/// Returns Go's name of a type.
fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
