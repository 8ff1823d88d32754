//! Which type may stand for which, and what the unknown ones turn out to be.

use crate::types::Type;
use std::sync::Arc;

/// What has been found out about types not known at first.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    found: Vec<Option<Type>>,
    /// What was there before, for taking back an attempt that failed.
    trail: Vec<(usize, Option<Type>)>,
}

impl Bindings {
    /// A type that is not known yet.
    pub(super) fn fresh(&mut self) -> Type {
        self.found.push(None);
        Type::Var(self.found.len() - 1)
    }

    fn get(&self, one: &Type) -> Option<&Type> {
        match one {
            Type::Var(number) => self.found.get(*number)?.as_ref(),
            _ => None,
        }
    }

    fn bind(&mut self, variable: &Type, to: Type) {
        if let Type::Var(number) = variable {
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

    /// Whether `from` may stand for `to`; what that tells about unknown types is kept if so.
    pub(super) fn assignable(&mut self, from: &Type, to: &Type) -> bool {
        self.attempt(|bindings| bindings.fits(from, to))
    }

    /// The same for two lists of types at once.
    pub(super) fn assignable_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        self.attempt(|bindings| bindings.fit_all(from, to))
    }

    fn fit_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        from.len() == to.len() && from.iter().zip(to).all(|(from, to)| self.fits(from, to))
    }

    fn fits(&mut self, from: &Type, to: &Type) -> bool {
        if matches!(to, Type::Var(_)) {
            match self.substitutes(from, to) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if matches!(from, Type::Var(_)) {
            return self.substitutes(to, from).0;
        }
        if from.is_dyn_or_error() || to.is_dyn_or_error() {
            return true;
        }
        match (from, to) {
            (Type::Null, other) | (other, Type::Null) => other.is_nullable(),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(one), Type::List(other)) => self.fits(one, other),
            (Type::Map(key, value), Type::Map(other_key, other_value)) => {
                self.fits(key, other_key) && self.fits(value, other_value)
            }
            (Type::Opaque(name, parameters), Type::Opaque(other, others)) => {
                name == other && self.fit_all(parameters, others)
            }
            (one, other) => one == other,
        }
    }

    /// Whether `one` can be what `variable` is, and whether that was known before.
    fn substitutes(&mut self, one: &Type, variable: &Type) -> (bool, bool) {
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

    /// Whether a variable is nowhere within a type.
    fn is_free_of(&self, variable: &Type, within: &Type) -> bool {
        if variable == within {
            return false;
        }
        match within {
            Type::Var(_) => self.get(within).is_none_or(|found| self.is_free_of(variable, found)),
            Type::List(one) | Type::Type(Some(one)) => self.is_free_of(variable, one),
            Type::Map(key, value) => self.is_free_of(variable, key) && self.is_free_of(variable, value),
            Type::Opaque(_, parameters) => parameters.iter().all(|parameter| self.is_free_of(variable, parameter)),
            _ => true,
        }
    }

    /// The type with all that was found out put in; with `to_dyn`, what was not is dynamic.
    pub(super) fn resolve(&self, one: &Type, to_dyn: bool) -> Type {
        match one {
            Type::Var(_) => match self.get(one) {
                Some(found) => self.resolve(found, to_dyn),
                None if to_dyn => Type::Dyn,
                None => one.clone(),
            },
            _ => map_inner(one, &mut |inner| self.resolve(inner, to_dyn)),
        }
    }
}

/// The type with `change` applied to the types within it.
pub(super) fn map_inner(one: &Type, change: &mut dyn FnMut(&Type) -> Type) -> Type {
    match one {
        Type::List(inner) => Type::list(change(inner)),
        Type::Map(key, value) => Type::map(change(key), change(value)),
        Type::Opaque(name, parameters) => Type::Opaque(name.clone(), parameters.iter().map(change).collect()),
        Type::Type(Some(inner)) => Type::Type(Some(Arc::new(change(inner)))),
        other => other.clone(),
    }
}

/// The more general of two types that fit each other.
pub(super) fn most_general(one: &Type, other: &Type) -> Type {
    if is_less_specific(one, other) { one.clone() } else { other.clone() }
}

fn is_less_specific(one: &Type, other: &Type) -> bool {
    if one.is_dyn() || matches!(one, Type::Var(_) | Type::Param(_)) {
        return true;
    }
    if other.is_dyn() || matches!(other, Type::Var(_) | Type::Param(_)) {
        return false;
    }
    match (one, other) {
        (Type::List(one), Type::List(other)) => is_less_specific(one, other),
        (Type::Map(key, value), Type::Map(other_key, other_value)) => {
            is_less_specific(key, other_key) && is_less_specific(value, other_value)
        }
        (Type::Opaque(name, parameters), Type::Opaque(other, others)) => {
            name == other
                && parameters.len() == others.len()
                && parameters.iter().zip(others.iter()).all(|(one, other)| is_less_specific(one, other))
        }
        (Type::Type(_), Type::Type(_)) => true,
        (one, other) => one == other,
    }
}
