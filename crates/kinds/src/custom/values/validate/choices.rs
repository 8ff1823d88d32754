//! `allOf`, `anyOf`, `oneOf` and `not`. If no choice fits, the errors of the one that fits best are reported.

use super::{
    super::result::{Fault, Outcome},
    Node,
};
use crate::custom::schema::Schema;

impl<'v> Node<'v> {
    pub(super) fn check_choices(self, outcome: &mut Outcome) {
        let checks = self.checks();
        self.check_any(&checks.any_of, outcome);
        self.check_one(&checks.one_of, outcome);
        self.check_all(&checks.all_of, outcome);
        if checks.not.as_deref().is_some_and(|schema| self.by(schema).is_valid()) {
            self.whole(outcome, "must not validate the schema (not)");
        }
        outcome.matches += 1;
    }

    /// Validates the same value by another schema, without forgiving old errors.
    fn by(self, schema: &'v Schema) -> Outcome {
        Node { schema, pair: None, ..self }.check()
    }

    fn whole(self, outcome: &mut Outcome, text: &str) {
        if self.may_report() {
            let path = self.path.to_string();
            outcome.add(&path, Fault::Whole, format!("{path:?} {text}"));
        }
    }

    fn check_any(self, any: &'v [Schema], outcome: &mut Outcome) {
        let mut best: Option<Outcome> = None;
        for schema in any {
            let one = self.by(schema);
            let is_valid = one.is_valid();
            if is_valid || best.as_ref().is_none_or(|best| one.matches > best.matches) {
                best = Some(one);
            }
            if is_valid {
                break;
            }
        }
        let Some(best) = best else { return };
        if !best.is_valid() {
            self.whole(outcome, "must validate at least one schema (anyOf)");
        }
        outcome.merge(best);
    }

    fn check_one(self, one_of: &'v [Schema], outcome: &mut Outcome) {
        if one_of.is_empty() {
            return;
        }
        let (mut good, mut valid, mut bad): (Option<Outcome>, usize, Option<Outcome>) = (None, 0, None);
        for schema in one_of {
            let one = self.by(schema);
            if one.is_valid() {
                valid += 1;
                good.get_or_insert(one);
            } else if valid == 0 && bad.as_ref().is_none_or(|bad| one.matches > bad.matches) {
                bad = Some(one);
            }
        }
        match (valid, good) {
            (1, Some(good)) => outcome.merge(good),
            (0, _) => {
                self.whole(outcome, "must validate one and only one schema (oneOf). Found none valid");
                bad.into_iter().for_each(|bad| outcome.merge(bad));
            }
            (many, _) => {
                let text = format!("must validate one and only one schema (oneOf). Found {many} valid alternatives");
                self.whole(outcome, &text);
            }
        }
    }

    fn check_all(self, all: &'v [Schema], outcome: &mut Outcome) {
        let mut valid = 0;
        for schema in all {
            let one = self.by(schema);
            valid += usize::from(one.is_valid());
            outcome.merge(one);
        }
        if valid < all.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            self.whole(outcome, &format!("must validate all the schemas (allOf){none}"));
        }
    }
}
