//! Macros, and the tree that each expands to.

use super::parser::ExpressionParser;
use super::quantifiers::{self, Build};
use super::{CallExpr, Comprehension, Expr, ExprKind, Literal, operator};
use std::sync::Arc;

/// Returns the expansion of a global call, or the call itself if it is not a macro.
pub(super) fn global(parser: &mut ExpressionParser<'_>, offset: usize, function: &str, mut args: Vec<Expr>) -> Expr {
    if function == "has" && args.len() == 1 {
        let arg = args.remove(0);
        return has(parser, offset, arg);
    }
    parser.node(offset, ExprKind::Call(CallExpr { function: function.into(), target: None, args }))
}

/// Returns the expansion of a method call, or the call itself if it is not a macro.
pub(super) fn member(
    parser: &mut ExpressionParser<'_>,
    offset: usize,
    function: &str,
    target: Expr,
    args: Vec<Expr>,
) -> Expr {
    let mut build = Build { parser, offset };
    let expanded = match (function, args.len()) {
        ("all" | "exists" | "exists_one", 2 | 3) | ("existsOne", 3) => {
            quantifiers::quantifier(&mut build, function, &target, &args)
        }
        ("map", 2 | 3) => quantifiers::map(&mut build, &target, &args),
        ("filter", 2) => quantifiers::filter(&mut build, &target, &args),
        ("transformList", 3 | 4) => quantifiers::transform_list(&mut build, &target, &args),
        ("transformMap" | "transformMapEntry", 3 | 4) => {
            quantifiers::transform_map(&mut build, function, &target, &args)
        }
        ("optMap" | "optFlatMap", 2) => opt_map(&mut build, function, &target, &args),
        ("sortBy", 2) => sort_by(&mut build, &target, &args),
        _ => {
            return parser.node(
                offset,
                ExprKind::Call(CallExpr { function: function.into(), target: Some(Box::new(target)), args }),
            );
        }
    };
    expanded.unwrap_or_else(|problem| parser.problem(problem.offset, problem.message))
}

fn has(parser: &mut ExpressionParser<'_>, offset: usize, arg: Expr) -> Expr {
    match arg.kind {
        ExprKind::Select { operand, field, .. } => {
            parser.node(offset, ExprKind::Select { operand, field, test_only: true })
        }
        _ => {
            let place = parser.offset(arg.id);
            parser.problem(place, "invalid argument to has() macro")
        }
    }
}

/// `target.hasValue() ? optional.of(bind(var, target.value(), expr)) : optional.none()`
fn opt_map(build: &mut Build<'_, '_>, function: &str, target: &Expr, args: &[Expr]) -> quantifiers::Expanded {
    let ExprKind::Ident(name) = &args[0].kind else {
        return Err(build.wrong(&args[0], format!("{function}() variable name must be a simple identifier")));
    };
    let present = build.member_call("hasValue", target.clone(), Vec::new());
    let copy = build.copy(target);
    let value = build.member_call("value", copy, Vec::new());
    let bound = bind(build, "#unused", name, value, args[1].clone());
    let bound = if function == "optMap" { build.call("optional.of", vec![bound]) } else { bound };
    let none = build.call("optional.none", Vec::new());
    Ok(build.call(operator::CONDITIONAL, vec![present, bound, none]))
}

/// Builds a comprehension over nothing, which only names `value`.
fn bind(build: &mut Build<'_, '_>, unused: &str, name: &Arc<str>, value: Expr, result: Expr) -> Expr {
    let fold = Comprehension {
        range: build.list(Vec::new()),
        var: unused.into(),
        var2: None,
        accu: name.clone(),
        init: value,
        condition: build.literal(Literal::Bool(false)),
        step: build.ident(name),
        result,
    };
    build.node(ExprKind::Comprehension(Box::new(fold)))
}

fn sort_by(build: &mut Build<'_, '_>, target: &Expr, args: &[Expr]) -> quantifiers::Expanded {
    let sortable = match target.kind {
        ExprKind::List(_) | ExprKind::Ident(_) | ExprKind::Comprehension(_) | ExprKind::Call(_) => true,
        ExprKind::Select { test_only, .. } => !test_only,
        ExprKind::Missing | ExprKind::Literal(_) | ExprKind::Map(_) | ExprKind::Struct { .. } => false,
    };
    if !sortable {
        let message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
        return Err(build.wrong(target, message.to_owned()));
    }
    let input: Arc<str> = "@__sortBy_input__".into();
    let range = build.ident(&input);
    let keys = quantifiers::map(build, &range, args)?;
    let sorted = build.ident(&input);
    let sorted = build.member_call("@sortByAssociatedKeys", sorted, vec![keys]);
    Ok(bind(build, "#unused", &input, target.clone(), sorted))
}
