//! Making tables, from data files and at run time.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use portolan_types::{GroupVersionKind, GroupVersionResource};

use super::{
    Field, FieldKind, Kind, KindTable, ListType, MapType, PatchStrategy, PlacedDefault, Scalar, Special, Subresource,
    Type, TypeId, Wire, WireTarget,
    file::{File, FileField, FileKind, FileType},
    kind_table::resource_order,
};

/// Fault of a data file or of added kinds.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file is not in the format of the table.
    #[error("the kind table cannot be read")]
    Format(#[from] serde_json::Error),
    /// A type is named which is not in the table.
    #[error("{user} names the type {name}, which is not in the table")]
    UnknownType {
        /// Kind that names it.
        user: String,
        /// The missing type.
        name: String,
    },
    /// A type is defined twice.
    #[error("the type {0} is defined twice")]
    DuplicateType(String),
    /// A word of the format is unknown.
    #[error("{user} says {word}, which means nothing")]
    UnknownWord {
        /// Kind that declares it.
        user: String,
        /// The word.
        word: String,
    },
}

/// Collects types and kinds for a [`KindTable`].
///
/// [`TableBuilder::over`] starts from a finished table: new types may refer to its types (`ObjectMeta`), and the new
/// table serves both. So each custom resource can have a small table of its own, shared by all that serve it.
#[derive(Default)]
pub struct TableBuilder {
    base: Option<&'static KindTable>,
    version: Arc<str>,
    words: BTreeSet<Arc<str>>,
    types: Vec<Type>,
    names: BTreeMap<Arc<str>, TypeId>,
    kinds: Vec<Arc<Kind>>,
    objects: Vec<(GroupVersionKind, TypeId)>,
}

impl TableBuilder {
    /// Returns an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a table which also answers for everything in `base`.
    pub fn over(base: &'static KindTable) -> Self {
        Self { base: Some(base), version: base.version.clone(), ..Self::default() }
    }

    /// Returns the id of a type that is already known.
    pub fn type_named(&self, name: &str) -> Option<TypeId> {
        self.names.get(name).copied().or_else(|| self.base?.type_named(name))
    }

    /// Adds a type. The order of its fields does not matter; `wire` may be empty for types without protobuf form.
    ///
    /// # Errors
    /// `DuplicateType`.
    pub fn add_type(&mut self, mut added: Type) -> Result<TypeId, TableError> {
        if self.type_named(&added.name).is_some() {
            return Err(TableError::DuplicateType(added.name.to_string()));
        }
        added.fields.sort_by(|a, b| a.name.cmp(&b.name));
        added.wire.sort_by_key(|wire| wire.number);
        let id = self.next_id();
        self.names.insert(added.name.clone(), id);
        self.types.push(added);
        Ok(id)
    }

    /// Adds a kind.
    pub fn add_kind(&mut self, kind: impl Into<Arc<Kind>>) {
        self.kinds.push(kind.into());
    }

    /// Adds the type of a body that is not a resource, such as a list.
    pub fn add_object(&mut self, gvk: GroupVersionKind, schema: TypeId) {
        self.objects.push((gvk, schema));
    }

    /// Finishes the table.
    pub fn finish(mut self) -> KindTable {
        let sorted = |order: &dyn Fn(&Kind, &Kind) -> Ordering| {
            let mut indices: Vec<u32> = (0..self.kinds.len() as u32).collect();
            indices.sort_by(|a, b| order(&self.kinds[*a as usize], &self.kinds[*b as usize]));
            indices.into_boxed_slice()
        };
        let of_kind = |kind: &Kind| (kind.gvk.group.clone(), kind.gvk.version.clone(), kind.gvk.kind.clone());
        let by_kind = sorted(&|a, b| of_kind(a).cmp(&of_kind(b)));
        let by_resource = sorted(&|a, b| resource_order(a).cmp(&resource_order(b)));
        self.objects.sort();
        self.objects.dedup();
        KindTable {
            base: self.base,
            version: self.version,
            types: self.types.into(),
            by_name: self.names.into_values().collect(),
            kinds: self.kinds.into(),
            by_kind,
            by_resource,
            objects: self.objects.into(),
            conversion: None,
        }
    }

    /// Adds a data file. Its types may refer to each other and to earlier ones.
    pub(super) fn add_file(&mut self, text: &str) -> Result<(), TableError> {
        let file: File<'_> = serde_json::from_str(text)?;
        if !file.version.is_empty() {
            self.version = self.word(&file.version);
        }
        let first = self.types.len();
        for (name, entry) in &file.types {
            let special = entry.special.map(|word| special(name, word)).transpose()?;
            let name = self.word(name);
            let atomic = entry.map == Some("atomic");
            self.add_type(Type { special, atomic, unions: entry.unions.clone(), ..Type::new(name, []) })?;
        }
        for (at, (name, _)) in file.types.iter().enumerate() {
            let mut fields = Vec::new();
            self.fields(&file, name, &mut fields)?;
            fields.sort_by(|a: &Field, b| a.name.cmp(&b.name));
            self.types[first + at].wire = self.wire(name, &file.types[name], &fields)?;
            self.types[first + at].fields = fields.into();
        }
        for object in &file.objects {
            let schema = self.known_type(object.kind, object.schema)?;
            let gvk = self.gvk(object.group, object.version, object.kind);
            self.add_object(gvk, schema);
        }
        for entry in &file.kinds {
            let kind = self.kind(entry)?;
            self.add_kind(kind);
        }
        Ok(())
    }

    /// The JSON view of a type of the file: its fields, those of inlined messages among them.
    fn fields(&mut self, file: &File<'_>, name: &str, out: &mut Vec<Field>) -> Result<(), TableError> {
        let Some(entry) = file.types.get(name) else {
            return Err(TableError::UnknownType { user: "an inlined field".into(), name: name.into() });
        };
        for field in &entry.fields {
            if field.flags.contains('i') {
                self.fields(file, field.kind, out)?;
            } else {
                let place = u16::try_from(out.len()).unwrap_or(u16::MAX);
                let field = Field { place, ..self.field(name, field)? };
                out.push(field);
            }
        }
        Ok(())
    }

    fn wire(&self, name: &str, entry: &FileType<'_>, fields: &[Field]) -> Result<Box<[Wire]>, TableError> {
        let mut wire = Vec::new();
        for field in entry.fields.iter().filter(|field| field.id != 0) {
            let target = if field.flags.contains('i') {
                WireTarget::Inline(self.known_type(name, field.kind)?)
            } else {
                let at = fields.binary_search_by(|own| (*own.name).cmp(field.name));
                WireTarget::Field(at.expect("the fields were made from the same entries") as u32)
            };
            wire.push(Wire { number: field.id, target });
        }
        wire.sort_by_key(|wire| wire.number);
        Ok(wire.into())
    }

    fn field(&mut self, user: &str, entry: &FileField<'_>) -> Result<Field, TableError> {
        let unknown =
            |word: &str| TableError::UnknownWord { user: format!("{user}.{}", entry.name), word: word.into() };
        let mut patch = PatchStrategy::default();
        for word in entry.patch.split(',').filter(|word| !word.is_empty()) {
            match word {
                "merge" => patch.merge = true,
                "retainKeys" => patch.retain_keys = true,
                "replace" => patch.replace = true,
                _ => return Err(unknown(word)),
            }
        }
        let list = match entry.list {
            None | Some("atomic") => ListType::Atomic,
            Some("set") => ListType::Set,
            Some("map") => ListType::Map(entry.keys.iter().map(|key| self.word(key)).collect()),
            Some(word) => return Err(unknown(word)),
        };
        let map = match entry.map {
            None => None,
            Some("atomic") => Some(MapType::Atomic),
            Some("granular") => Some(MapType::Granular),
            Some(word) => return Err(unknown(word)),
        };
        Ok(Field {
            number: entry.id,
            go: entry.go.map(|name| self.word(name)),
            pointer: entry.flags.contains('p'),
            omitempty: entry.flags.contains('o'),
            omitzero: entry.flags.contains('z'),
            required: entry.flags.contains('r'),
            list,
            tells_list: entry.list.is_some(),
            bare: entry.flags.contains('b'),
            map,
            patch,
            merge_key: entry.merge_key.map(|key| self.word(key)),
            default: entry.default.clone(),
            declared: entry.declared.clone(),
            values: entry.values.iter().map(|value| self.word(value)).collect(),
            format: entry.format.map(|format| self.word(format)),
            ..Field::new(self.word(entry.name), self.field_kind(user, entry.kind)?)
        })
    }

    fn field_kind(&self, user: &str, text: &str) -> Result<FieldKind, TableError> {
        if let Some(element) = text.strip_prefix("[]") {
            return Ok(FieldKind::List(Box::new(self.field_kind(user, element)?)));
        }
        if let Some(element) = text.strip_prefix("{}") {
            return Ok(FieldKind::Map(Box::new(self.field_kind(user, element)?)));
        }
        Ok(FieldKind::Scalar(match text {
            "string" => Scalar::String,
            "bool" => Scalar::Bool,
            "int32" => Scalar::Int32,
            "int64" => Scalar::Int64,
            "uint32" => Scalar::Uint32,
            "uint64" => Scalar::Uint64,
            "double" => Scalar::Double,
            "bytes" => Scalar::Bytes,
            "strings" => return Ok(FieldKind::Special(Special::Strings)),
            "any" => return Ok(FieldKind::Special(Special::Any)),
            name => {
                let id = self.known_type(user, name)?;
                return Ok(match self.special_of(id) {
                    Some(special) => FieldKind::Special(special),
                    None => FieldKind::Message(id),
                });
            }
        }))
    }

    fn kind(&mut self, entry: &FileKind<'_>) -> Result<Kind, TableError> {
        let storage = match &entry.storage {
            Some(storage) => (storage.group, storage.version, storage.resource),
            None => (entry.group, entry.version, entry.resource),
        };
        let subresources = entry.subresources.iter().map(|sub| Subresource {
            name: self.word(sub.name),
            gvk: self.gvk(sub.group, sub.version, sub.kind),
            verbs: self.words(&sub.verbs),
        });
        let subresources = subresources.collect();
        let defaults = entry
            .defaults
            .iter()
            .map(|default| PlacedDefault { path: self.words(&default.path), value: default.value.clone() });
        let defaults = defaults.collect();
        Ok(Kind {
            subresources,
            defaults,
            gvk: self.gvk(entry.group, entry.version, entry.kind),
            resource: self.word(entry.resource),
            singular: self.word(entry.singular),
            list_kind: entry.list.map(|list| self.word(list)),
            short_names: self.words(&entry.short_names),
            categories: self.words(&entry.categories),
            namespaced: entry.namespaced,
            served: entry.served,
            verbs: self.words(&entry.verbs),
            content: None,
            is_ending: false,
            schema: self.known_type(entry.kind, entry.schema)?,
            decoded_as: self.known_type(entry.kind, entry.schema)?,
            generation: entry.generation,
            unconditional_update: entry.unconditional_update,
            create_on_update: entry.create_on_update,
            storage: GroupVersionResource {
                group: self.word(storage.0),
                version: self.word(storage.1),
                resource: self.word(storage.2),
            },
        })
    }

    fn known_type(&self, user: &str, name: &str) -> Result<TypeId, TableError> {
        self.type_named(name).ok_or_else(|| TableError::UnknownType { user: user.into(), name: name.into() })
    }

    fn special_of(&self, id: TypeId) -> Option<Special> {
        let below = self.base.map_or(0, KindTable::type_count);
        match (id.0 as usize).checked_sub(below) {
            Some(own) => self.types[own].special,
            None => self.base.and_then(|base| base.get(id).special),
        }
    }

    fn next_id(&self) -> TypeId {
        TypeId((self.base.map_or(0, KindTable::type_count) + self.types.len()) as u32)
    }

    fn gvk(&mut self, group: &str, version: &str, kind: &str) -> GroupVersionKind {
        GroupVersionKind { group: self.word(group), version: self.word(version), kind: self.word(kind) }
    }

    fn words(&mut self, texts: &[&str]) -> Box<[Arc<str>]> {
        texts.iter().map(|text| self.word(text)).collect()
    }

    /// Returns the table's only copy of a word.
    fn word(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.words.get(text) {
            return known.clone();
        }
        let word: Arc<str> = text.into();
        self.words.insert(word.clone());
        word
    }
}

fn special(user: &str, word: &str) -> Result<Special, TableError> {
    Ok(match word {
        "time" => Special::Time,
        "microTime" => Special::MicroTime,
        "duration" => Special::Duration,
        "quantity" => Special::Quantity,
        "intOrString" => Special::IntOrString,
        "rawExtension" => Special::RawExtension,
        "fieldsV1" => Special::FieldsV1,
        "json" => Special::Json,
        "schemaOrBool" => Special::SchemaOrBool,
        "schemaOrArray" => Special::SchemaOrArray,
        "schemaOrStrings" => Special::SchemaOrStrings,
        _ => return Err(TableError::UnknownWord { user: user.into(), word: word.into() }),
    })
}
