//! Field selectors: `metadata.name=a,status.phase!=Running`. Each kind has few fields that can be selected by.

mod labels;
mod parse;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use portolan_types::Status;
use serde_json::Value;

use self::labels::Label;
use portolan_kinds::Kind;

/// Maximum of bytes in a selector.
const MAX_TEXT: usize = 64 * 1024;

/// Terms of a field selector as the client wrote them, sorted by their text, which is the order of the checks. They are
/// not checked against a kind yet.
#[derive(Clone, Debug, Default)]
pub struct FieldTerms(Vec<FieldTerm>);

#[derive(Clone, Debug)]
struct FieldTerm {
    field: String,
    value: String,
    equal: bool,
}

impl FieldTerms {
    /// Parses the text of `fieldSelector=`. Operators are `=`, `==` and `!=`; terms are joined by `,`; in values a
    /// backslash escapes `,`, `=` and `\`. A term of neither field nor value selects everything.
    ///
    /// # Errors
    /// 400 for wrong syntax.
    pub fn parse(text: &str) -> Result<Self, Status> {
        if text.len() > MAX_TEXT {
            return Err(Status::bad_request(format!("field selector is longer than {MAX_TEXT} bytes")));
        }
        let mut terms: Vec<&str> = parse::terms(text).filter(|term| !term.is_empty()).collect();
        terms.sort_unstable();
        let written = terms.into_iter().map(|term| {
            let (field, equal, value) = parse::term(term)
                .ok_or_else(|| Status::bad_request(format!("invalid selector: '{text}'; can't understand '{term}'")))?;
            let value = parse::unescape(value).map_err(|error| Status::bad_request(error.to_string()))?;
            Ok(FieldTerm { field: field.to_owned(), value, equal })
        });
        let says_something = |written: &Result<FieldTerm, Status>| {
            written.as_ref().map_or(true, |written| !written.field.is_empty() || !written.value.is_empty())
        };
        written.filter(says_something).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the value that a field must have.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|term| term.equal && term.field == field).map(|term| term.value.as_str())
    }

    /// Returns the selector of objects of a kind.
    ///
    /// # Errors
    /// 400 for fields that the kind cannot be selected by.
    pub fn of(self, kind: &Kind) -> Result<FieldSelector, Status> {
        let known = |FieldTerm { field, value, equal }| {
            let label = labels::lookup(kind, &field).map_err(|error| Status::bad_request(error.to_string()))?;
            Ok(Term { label, value, equal })
        };
        self.0.into_iter().map(known).collect::<Result<_, _>>().map(|terms| FieldSelector { terms })
    }
}

/// A field selector of a kind. All terms must hold; none matches everything.
#[derive(Clone, Debug, Default)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

#[derive(Clone, Debug)]
struct Term {
    label: Label,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Parses the text of `fieldSelector=` for a kind.
    ///
    /// # Errors
    /// As [`FieldTerms::parse`] and [`FieldTerms::of`].
    pub fn parse(kind: &Kind, text: &str) -> Result<Self, Status> {
        FieldTerms::parse(text)?.of(kind)
    }

    /// Returns true if the selector matches everything.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns the name, if only an object of that name can match.
    pub fn exact_name(&self) -> Option<&str> {
        self.terms.iter().find(|term| term.equal && matches!(term.label, Label::Name)).map(|term| term.value.as_str())
    }

    /// Returns the namespace, when only objects of that namespace can match.
    pub fn exact_namespace(&self) -> Option<&str> {
        let is_namespace = |term: &&Term| term.equal && matches!(term.label, Label::Namespace);
        self.terms.iter().find(is_namespace).map(|term| term.value.as_str())
    }

    /// Returns true if an object of this name satisfies every term on its name and namespace; `None` if other fields
    /// decide. A cluster-scoped object has an empty namespace.
    pub fn matches_name(&self, namespace: &str, name: &str) -> Option<bool> {
        let mut all = true;
        for term in &self.terms {
            let value = match term.label {
                Label::Name => name,
                Label::Namespace => namespace,
                _ => {
                    all = false;
                    continue;
                }
            };
            if (value == term.value) != term.equal {
                return Some(false);
            }
        }
        all.then_some(true)
    }

    /// Returns true if an object satisfies every term. A missing field has kube-apiserver's value for it: zero.
    pub fn matches(&self, object: &Value) -> bool {
        let holds = |term: &Term| {
            let value: Cow<'_, str> = term.label.value(object);
            (value == term.value.as_str()) == term.equal
        };
        self.terms.iter().all(holds)
    }
}
