//! CEL with budgets: the place of the expressions of custom resources, admission policies and cluster selectors. A crate of its
//! own because its parser is slow to build. Nothing evaluates CEL yet, and what needs it is refused with a clear text.
