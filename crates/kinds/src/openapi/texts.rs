//! Sources of descriptions.

use std::collections::HashMap;

use super::Texts;

/// No descriptions.
pub struct NoTexts;

impl Texts for NoTexts {
    fn text(&self, _type_name: &str, _field: Option<&str>) -> Option<&str> {
        None
    }
}

const OWN: [&str; 3] = [
    include_str!("../../data/portolan-texts.json"),
    include_str!("../../data/apis-texts.json"),
    include_str!("../../data/tenancy-texts.json"),
];
/// Entry of the fields that all of our own kinds have.
const COMMON: &str = "*";
/// Key of the description of the type itself, beside those of its fields.
const ITSELF: &str = "";

/// Descriptions of Portolan's and kcp's kinds.
pub struct OwnTexts(HashMap<String, HashMap<String, String>>);

impl OwnTexts {
    /// Reads them.
    pub fn read() -> Self {
        let read = |text| serde_json::from_str::<HashMap<_, _>>(text).expect("a test reads this data");
        Self(OWN.into_iter().flat_map(read).collect())
    }
}

impl Texts for OwnTexts {
    fn text(&self, type_name: &str, field: Option<&str>) -> Option<&str> {
        let own = self.0.get(type_name)?;
        let common = || field.and_then(|field| self.0.get(COMMON)?.get(field));
        own.get(field.unwrap_or(ITSELF)).or_else(common).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KindTable, Type};

    fn own_types() -> impl Iterator<Item = &'static Type> {
        let types = KindTable::builtin().types().map(|(_, own)| own);
        types.filter(|own| ["dev.portolan.", "io.kcp.", "dev.pinniped."].iter().any(|ours| own.name.starts_with(ours)))
    }

    #[test]
    fn every_field_of_our_own_kinds_is_described() {
        let texts = OwnTexts::read();
        for own in own_types() {
            let fields = own.fields.iter().map(|field| Some(&*field.name));
            for field in fields.chain([None]) {
                assert!(texts.text(&own.name, field).is_some(), "{} {field:?}", own.name);
            }
        }
    }

    #[test]
    fn nothing_else_is_described() {
        let OwnTexts(texts) = OwnTexts::read();
        for (name, fields) in texts.iter().filter(|(name, _)| *name != COMMON) {
            let own = own_types().find(|own| *own.name == **name).unwrap_or_else(|| panic!("there is no type {name}"));
            for text in fields.keys().filter(|text| *text != ITSELF) {
                assert!(own.fields.iter().any(|field| *field.name == **text), "{name} has no field {text}");
            }
        }
    }
}
