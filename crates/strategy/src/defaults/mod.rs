//! Defaults: values that the server fills in where a client sends none.
//!
//! Defaults that hold for every object of a type are in the kind table. This module has the walk that applies them, and
//! defaults that depend on other fields as functions per type. All of them are idempotent.

mod core;
#[cfg(test)]
mod tests;
mod workloads;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use portolan_types::{Status, quantity::Quantity};
use serde_json::{Map, Value};

use portolan_codec::{conversion, decode::zero};
use portolan_kinds::{Field, FieldKind, Kind, KindTable, Special, Type, TypeId};

/// The fields of a message, as defaulting functions change them.
type Fields = Map<String, Value>;
/// Function that fills in fields which depend on other fields of a message.
type Function = fn(&mut Fields);

/// Fills in all defaults of `object`, in place. Idempotent.
///
/// # Errors
/// 413 when the defaults of a definition take more room than any object that is sent.
pub fn apply(table: &KindTable, kind: &Kind, object: &mut Value) -> Result<(), Status> {
    if let Some(content) = &kind.content {
        return content.fill(object);
    }
    if let Some(fields) = object.as_object_mut() {
        Defaulting { table, known: DefaultingTable::get() }.message(kind.schema, fields);
    }
    conversion::pass_through(kind, object);
    Ok(())
}

struct Defaulting<'t> {
    table: &'t KindTable,
    known: &'static DefaultingTable,
}

impl Defaulting<'_> {
    fn message(&self, id: TypeId, fields: &mut Fields) {
        if self.known.nothing_below.contains(&id) {
            return;
        }
        let schema = self.table.get(id);
        self.known.amounts.get(&id).into_iter().flatten().for_each(|name| round_amounts(fields, name));
        for field in &schema.fields {
            self.fill(field, fields);
        }
        if let Some(own) = self.known.functions.get(&id) {
            own(fields);
        }
        for (name, value) in fields.iter_mut() {
            if let Some(field) = schema.field(name)
                && let Some(below) = field.kind.message()
            {
                self.below(below, &field.kind, value);
            }
        }
    }

    /// Fills in the table's default, or the empty object that Go writes for a struct.
    fn fill(&self, field: &Field, fields: &mut Fields) {
        if let Some(default) = &field.default {
            let missing =
                fields.get(&*field.name).is_none_or(|value| !field.pointer && is_unset(value) || value.is_null());
            if missing {
                fields.insert((*field.name).to_owned(), default.clone());
            }
        } else if matches!(field.kind, FieldKind::Message(_))
            && !field.pointer
            && !field.omitzero
            && !fields.contains_key(&*field.name)
        {
            fields.insert((*field.name).to_owned(), zero(self.table, &field.kind));
        }
    }

    fn below(&self, id: TypeId, kind: &FieldKind, value: &mut Value) {
        match (kind, value) {
            (FieldKind::Message(_), Value::Object(fields)) => self.message(id, fields),
            (FieldKind::List(element), Value::Array(items)) => {
                items.iter_mut().for_each(|item| self.below(id, element, item));
            }
            (FieldKind::Map(element), Value::Object(entries)) => {
                entries.values_mut().for_each(|entry| self.below(id, element, entry));
            }
            _ => {}
        }
    }
}

/// Defaulting functions of the built-in types, computed once.
struct DefaultingTable {
    functions: HashMap<TypeId, Function>,
    /// Fields that hold amounts of resources, by their names (`core/v1.ResourceList`).
    amounts: HashMap<TypeId, Vec<Arc<str>>>,
    /// Types that neither have a default nor any below them.
    nothing_below: HashSet<TypeId>,
}

impl DefaultingTable {
    fn get() -> &'static Self {
        static KNOWN: OnceLock<DefaultingTable> = OnceLock::new();
        KNOWN.get_or_init(|| {
            let table = KindTable::builtin();
            let named = core::FUNCTIONS.iter().chain(workloads::FUNCTIONS);
            let functions = named.filter_map(|(name, function)| Some((table.type_named(name)?, *function))).collect();
            let core = table.types().filter(|(_, schema)| schema.name.starts_with("io.k8s.api.core.v1."));
            let amounts = core.map(|(id, schema)| (id, amounts(schema))).filter(|(_, names)| !names.is_empty());
            let mut known = DefaultingTable { functions, amounts: amounts.collect(), nothing_below: HashSet::new() };
            known.nothing_below = table.types().map(|(id, _)| id).filter(|id| !known.matters(table, *id)).collect();
            known
        })
    }

    fn matters(&self, table: &KindTable, id: TypeId) -> bool {
        let (mut seen, mut open) = (HashSet::new(), vec![id]);
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            let has_default = |field: &Field| field.default.is_some() || is_struct(field);
            let is_known = self.functions.contains_key(&id) || self.amounts.contains_key(&id);
            if is_known || table.get(id).fields.iter().any(has_default) {
                return true;
            }
            open.extend(table.get(id).fields.iter().filter_map(|field| field.kind.message()));
        }
        false
    }
}

/// Returns the fields of a type that hold amounts of resources.
fn amounts(schema: &Type) -> Vec<Arc<str>> {
    let of_quantities = |kind: &FieldKind| match kind {
        FieldKind::Map(element) => **element == FieldKind::Special(Special::Quantity),
        _ => false,
    };
    schema.fields.iter().filter(|field| of_quantities(&field.kind)).map(|field| field.name.clone()).collect()
}

/// Rounds amounts up to thousandths (`SetDefaults_ResourceList`).
fn round_amounts(fields: &mut Fields, name: &str) {
    for amount in fields.get_mut(name).and_then(Value::as_object_mut).into_iter().flat_map(Fields::values_mut) {
        let read = amount.as_str().and_then(|text| text.parse::<Quantity>().ok());
        if let Some(quantity) = read.filter(|quantity| !quantity.is_in_thousandths()) {
            *amount = quantity.in_thousandths().to_string().into();
        }
    }
}

fn is_struct(field: &Field) -> bool {
    matches!(field.kind, FieldKind::Message(_)) && !field.pointer && !field.omitzero
}

/// Returns true for a value that Go treats as missing: null or a zero value.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Sets a pointer field that is not there.
fn default_to(fields: &mut Fields, name: &str, value: impl Into<Value>) {
    if fields.get(name).is_none_or(Value::is_null) {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Sets a plain field that is not there or has its zero value.
fn default_unset(fields: &mut Fields, name: &str, value: impl Into<Value>) {
    if fields.get(name).is_none_or(is_unset) {
        fields.insert(name.to_owned(), value.into());
    }
}

fn text<'a>(fields: &'a Fields, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn is_set(fields: &Fields, name: &str) -> bool {
    fields.get(name).is_some_and(|value| !value.is_null())
}

fn child<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Fields> {
    fields.get_mut(name).and_then(Value::as_object_mut)
}

fn items<'a>(fields: &'a mut Fields, name: &str) -> impl Iterator<Item = &'a mut Fields> {
    fields.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}
