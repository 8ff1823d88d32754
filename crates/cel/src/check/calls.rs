//! Overload resolution of calls.

use super::{TypeChecker, constant_text, is_junction, unify};
use crate::functions::{self, Overload};
use crate::syntax::{CallExpr, Expr, ExprKind, Id, operator};
use crate::types::CelType;
use std::collections::HashMap;

impl TypeChecker<'_> {
    pub(super) fn check_call(&mut self, expr: &mut Expr) {
        let id = expr.id;
        let ExprKind::Call(call) = &mut expr.kind else { return };
        if &*call.function == operator::OPT_SELECT {
            return self.check_optional_select(id, call);
        }
        call.args.iter_mut().for_each(|arg| self.check(arg));
        self.unqualify(call);
        if let Some(target) = &mut call.target {
            self.check(target);
        }
        match functions::find(&call.function, self.environment.mutation) {
            Some(overloads) => self.resolve_overload(id, call, overloads),
            None => {
                let function = call.function.clone();
                self.undeclared(id, &function);
            }
        }
    }

    /// `sets.contains(a, b)` has no target: its function has a dot in its name.
    fn unqualify(&self, call: &mut CallExpr) {
        let Some(prefix) = call.target.as_deref().and_then(Expr::qualified_name) else { return };
        let name = format!("{prefix}.{}", call.function);
        if functions::find(&name, self.environment.mutation).is_some() {
            call.function = name.strip_prefix('.').unwrap_or(&name).into();
            call.target = None;
        }
    }

    fn check_optional_select(&mut self, id: Id, call: &mut CallExpr) {
        let [operand, field] = call.args.as_mut_slice() else { return };
        let Some(name) = constant_text(field).map(str::to_owned) else { return };
        let found = self.field(id, operand, &name, true);
        let found = self.bindings.resolve(&found, false);
        self.types.insert(id, found);
        self.types.insert(field.id, CelType::String);
        let overload = functions::find(operator::OPT_SELECT, false).and_then(|overloads| overloads.first());
        self.overloads.insert(id, overload.into_iter().collect());
    }

    fn resolve_overload(&mut self, id: Id, call: &CallExpr, overloads: &'static [Overload]) {
        if is_junction(&call.function) {
            return self.check_junction(id, call, overloads);
        }
        let args: Vec<CelType> =
            call.target.as_deref().into_iter().chain(&call.args).map(|arg| self.type_of(arg)).collect();
        let mut result: Option<CelType> = None;
        let mut matching = Vec::new();
        for overload in overloads.iter().filter(|overload| overload.member == call.target.is_some()) {
            let (candidates, outcome) = self.instantiate(overload);
            if !self.bindings.assignable_all(&args, &candidates) {
                continue;
            }
            matching.push(overload);
            let outcome = self.bindings.resolve(&outcome, false);
            result = Some(match result {
                None => outcome,
                Some(known) if known.is_dyn() || known == outcome => known,
                Some(_) => CelType::Dyn,
            });
        }
        match result {
            Some(found) => {
                self.types.insert(id, found);
                self.overloads.insert(id, matching);
            }
            None => self.no_overload(id, call, &args),
        }
    }

    fn no_overload(&mut self, id: Id, call: &CallExpr, args: &[CelType]) {
        let args: Vec<String> = args.iter().map(|arg| self.bindings.resolve(arg, true).to_string()).collect();
        let signature = match (&call.target, args.split_first()) {
            (Some(_), Some((target, args))) => format!("{target}.({})", args.join(", ")),
            _ => format!("({})", args.join(", ")),
        };
        self.problem(id, format!("found no matching overload for '{}' applied to '{signature}'", call.function));
        self.types.insert(id, CelType::Error);
    }

    fn check_junction(&mut self, id: Id, call: &CallExpr, overloads: &'static [Overload]) {
        let mut fits = true;
        for arg in &call.args {
            let found = self.type_of(arg);
            if !self.bindings.assignable(&found, &CelType::Bool) {
                self.mismatch(arg.id, &CelType::Bool, &found);
                fits = false;
            }
        }
        self.types.insert(id, if fits { CelType::Bool } else { CelType::Error });
        self.overloads.insert(id, overloads.iter().take(1).collect());
    }

    /// Returns the argument types and the result of an overload, with a fresh type variable for each parameter.
    fn instantiate(&mut self, overload: &Overload) -> (Vec<CelType>, CelType) {
        let mut known = HashMap::new();
        let args = overload.args.iter().map(|arg| self.replace(arg, &mut known)).collect();
        (args, self.replace(&overload.result, &mut known))
    }

    fn replace(&mut self, one: &CelType, known: &mut HashMap<String, CelType>) -> CelType {
        match one {
            CelType::Param(name) => known.entry(name.to_string()).or_insert_with(|| self.bindings.fresh()).clone(),
            _ => unify::map_inner(one, &mut |inner| self.replace(inner, known)),
        }
    }
}
