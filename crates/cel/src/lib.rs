//! CEL with budgets.
