//! Bound on the bytes of physical clusters that one request holds.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use portolan_types::{Reason, Status};

use crate::limits::MemoryCharge;

/// Bytes that a request may hold, shared by the answers of all its physical clusters.
#[derive(Clone)]
pub(super) struct ByteBudget(Arc<BudgetState>);

struct BudgetState {
    used: AtomicUsize,
    most: usize,
    /// Charge of the request. It stays at the highest use.
    charge: MemoryCharge,
    /// Bytes that are charged for each byte.
    weight: usize,
}

/// Bytes of a budget that one answer holds, given back on drop.
pub(super) struct HeldBytes {
    budget: ByteBudget,
    bytes: usize,
}

impl ByteBudget {
    pub(super) fn new(most: usize, weight: usize, charge: MemoryCharge) -> Self {
        Self(Arc::new(BudgetState { used: AtomicUsize::new(0), most, charge, weight }))
    }

    /// Returns an empty part of the budget.
    pub(super) fn hold(&self) -> HeldBytes {
        HeldBytes { budget: self.clone(), bytes: 0 }
    }
}

impl HeldBytes {
    /// Adds bytes.
    ///
    /// # Errors
    /// 413 if the budget of the request is used up, 429 if that of its tenant is.
    pub(super) fn grow(&mut self, more: usize) -> Result<(), Status> {
        let BudgetState { used, most, charge, weight } = &*self.budget.0;
        self.bytes += more;
        let now = used.fetch_add(more, Ordering::Relaxed) + more;
        if now > *most {
            let why = format!("the physical clusters answered more than {most} bytes: use limit or a selector");
            return Err(Status::new(Reason::RequestEntityTooLarge, why));
        }
        charge.grow_to(now.saturating_mul(*weight))
    }

    /// Gives bytes back.
    pub(super) fn shrink(&mut self, less: usize) {
        let less = less.min(self.bytes);
        self.bytes -= less;
        self.budget.0.used.fetch_sub(less, Ordering::Relaxed);
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
