//! Assignability of types, and inference of unknown ones.

use crate::types::CelType;
use std::sync::Arc;

/// Inferred types of type variables.
#[derive(Debug, Default)]
pub(super) struct TypeBindings {
    found: Vec<Option<CelType>>,
    /// Previous values, to undo a failed attempt.
    trail: Vec<(usize, Option<CelType>)>,
}

impl TypeBindings {
    /// Creates a type variable.
    pub(super) fn fresh(&mut self) -> CelType {
        self.found.push(None);
        CelType::Var(self.found.len() - 1)
    }

    fn get(&self, one: &CelType) -> Option<&CelType> {
        match one {
            CelType::Var(number) => self.found.get(*number)?.as_ref(),
            _ => None,
        }
    }

    fn bind(&mut self, variable: &CelType, to: CelType) {
        if let CelType::Var(number) = variable {
            let before = self.found[*number].replace(to);
            self.trail.push((*number, before));
        }
    }

    fn attempt(&mut self, attempt: impl FnOnce(&mut Self) -> bool) -> bool {
        self.trail.clear();
        if attempt(self) {
            return true;
        }
        while let Some((number, before)) = self.trail.pop() {
            self.found[number] = before;
        }
        false
    }

    /// Returns true if `from` is assignable to `to`, and then keeps the inferred types.
    pub(super) fn assignable(&mut self, from: &CelType, to: &CelType) -> bool {
        self.attempt(|bindings| bindings.fits(from, to))
    }

    /// Unifies two lists of types at once.
    pub(super) fn assignable_all(&mut self, from: &[CelType], to: &[CelType]) -> bool {
        self.attempt(|bindings| bindings.fit_all(from, to))
    }

    fn fit_all(&mut self, from: &[CelType], to: &[CelType]) -> bool {
        from.len() == to.len() && from.iter().zip(to).all(|(from, to)| self.fits(from, to))
    }

    fn fits(&mut self, from: &CelType, to: &CelType) -> bool {
        if matches!(to, CelType::Var(_)) {
            match self.substitutes(from, to) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if matches!(from, CelType::Var(_)) {
            return self.substitutes(to, from).0;
        }
        if from.is_dyn_or_error() || to.is_dyn_or_error() {
            return true;
        }
        match (from, to) {
            (CelType::Null, other) | (other, CelType::Null) => other.is_nullable(),
            (CelType::Type(_), CelType::Type(_)) => true,
            (CelType::List(one), CelType::List(other)) => self.fits(one, other),
            (CelType::Map(key, value), CelType::Map(other_key, other_value)) => {
                self.fits(key, other_key) && self.fits(value, other_value)
            }
            (CelType::Opaque(name, parameters), CelType::Opaque(other, others)) => {
                name == other && self.fit_all(parameters, others)
            }
            (one, other) => one == other,
        }
    }

    /// Returns true if `one` can be the value of `variable`, and true if that was already known.
    fn substitutes(&mut self, one: &CelType, variable: &CelType) -> (bool, bool) {
        if one == variable {
            return (true, true);
        }
        let Some(known) = self.get(variable).cloned() else {
            let free = self.is_free_of(variable, one);
            if free {
                self.bind(variable, one.clone());
            }
            return (free, false);
        };
        if *one == known {
            return (true, true);
        }
        if !self.fits(one, &known) {
            return (false, true);
        }
        let general = most_general(one, &known);
        if self.is_free_of(variable, &general) {
            self.bind(variable, general);
        }
        (true, true)
    }

    /// Returns true if a variable does not occur in a type.
    fn is_free_of(&self, variable: &CelType, within: &CelType) -> bool {
        if variable == within {
            return false;
        }
        match within {
            CelType::Var(_) => self.get(within).is_none_or(|found| self.is_free_of(variable, found)),
            CelType::List(one) | CelType::Type(Some(one)) => self.is_free_of(variable, one),
            CelType::Map(key, value) => self.is_free_of(variable, key) && self.is_free_of(variable, value),
            CelType::Opaque(_, parameters) => parameters.iter().all(|parameter| self.is_free_of(variable, parameter)),
            _ => true,
        }
    }

    /// Returns the type with all inferred types substituted. With `to_dyn`, types that were not inferred are dynamic.
    pub(super) fn resolve(&self, one: &CelType, to_dyn: bool) -> CelType {
        match one {
            CelType::Var(_) => match self.get(one) {
                Some(found) => self.resolve(found, to_dyn),
                None if to_dyn => CelType::Dyn,
                None => one.clone(),
            },
            _ => map_inner(one, &mut |inner| self.resolve(inner, to_dyn)),
        }
    }
}

/// Returns the type with `change` applied to its parameters.
pub(super) fn map_inner(one: &CelType, change: &mut dyn FnMut(&CelType) -> CelType) -> CelType {
    match one {
        CelType::List(inner) => CelType::list(change(inner)),
        CelType::Map(key, value) => CelType::map(change(key), change(value)),
        CelType::Opaque(name, parameters) => CelType::Opaque(name.clone(), parameters.iter().map(change).collect()),
        CelType::Type(Some(inner)) => CelType::Type(Some(Arc::new(change(inner)))),
        other => other.clone(),
    }
}

/// Returns the more general of two compatible types.
pub(super) fn most_general(one: &CelType, other: &CelType) -> CelType {
    if is_less_specific(one, other) { one.clone() } else { other.clone() }
}

fn is_less_specific(one: &CelType, other: &CelType) -> bool {
    if one.is_dyn() || matches!(one, CelType::Var(_) | CelType::Param(_)) {
        return true;
    }
    if other.is_dyn() || matches!(other, CelType::Var(_) | CelType::Param(_)) {
        return false;
    }
    match (one, other) {
        (CelType::List(one), CelType::List(other)) => is_less_specific(one, other),
        (CelType::Map(key, value), CelType::Map(other_key, other_value)) => {
            is_less_specific(key, other_key) && is_less_specific(value, other_value)
        }
        (CelType::Opaque(name, parameters), CelType::Opaque(other, others)) => {
            name == other
                && parameters.len() == others.len()
                && parameters.iter().zip(others.iter()).all(|(one, other)| is_less_specific(one, other))
        }
        (CelType::Type(_), CelType::Type(_)) => true,
        (one, other) => one == other,
    }
}
