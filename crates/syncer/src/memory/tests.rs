use super::*;

const MIB: u64 = 1 << 20;

fn memory(budget: &Arc<SyncMemoryBudget>, workspace: u64) -> Arc<RegistrationMemory> {
    let workspace = if workspace == 0 { LogicalClusterId::ROOT } else { LogicalClusterId::new(1000 + workspace) };
    RegistrationMemory::new(budget.clone(), workspace, SyncLimits { objects: 10, bytes: 50 * MIB })
}

#[test]
fn a_hundred_registrations_of_one_workspace_take_no_more_than_its_share() {
    let budget = Arc::new(SyncMemoryBudget::new(400 * MIB));
    let hostile: Vec<_> = (0..100).map(|_| memory(&budget, 1).held()).collect();
    let results: Vec<_> = hostile.into_iter().map(|mut charge| charge.resize(10 * MIB).map(|()| charge)).collect();
    let taken = results.iter().filter(|result| result.is_ok()).count();
    assert_eq!((taken, budget.used()), (15, 150 * MIB));
    let refused = results.iter().find_map(|result| result.as_ref().err()).copied();
    assert_eq!(refused, Some(MemoryExcess::Workspace { bytes: 150 * MIB }));
    let mut neighbor = memory(&budget, 2).held();
    assert_eq!(neighbor.resize(75 * MIB), Ok(()), "another workspace may take half of what is left");
    drop(results);
    assert_eq!(budget.used(), 75 * MIB, "what is dropped is returned");
}

#[test]
fn a_quarter_of_the_budget_stays_for_root() {
    let budget = Arc::new(SyncMemoryBudget::new(400 * MIB));
    let mut tenants: Vec<_> = (1..=4).map(|workspace| memory(&budget, workspace).held()).collect();
    let shares = [150 * MIB, 75 * MIB, 37 * MIB, 19 * MIB];
    for (charge, share) in tenants.iter_mut().zip(shares) {
        assert!(matches!(charge.resize(share + MIB), Err(MemoryExcess::Workspace { .. })));
        assert_eq!(charge.resize(share), Ok(()), "each further workspace finds room");
    }
    let (mut first, mut second) = (memory(&budget, 0).held(), memory(&budget, 0).held());
    assert_eq!((first.resize(60 * MIB), second.resize(59 * MIB)), (Ok(()), Ok(())));
    assert_eq!(second.grow(1), Err(MemoryExcess::Server));
    tenants.truncate(1);
    assert_eq!(second.resize(190 * MIB), Ok(()), "root may take what is left");
    assert_eq!(tenants[0].resize(MIB), Ok(()), "what is there can shrink, whatever others take");
}

#[test]
fn bytes_that_arrive_count_in_the_budget_and_have_a_bound_of_their_own() {
    let budget = Arc::new(SyncMemoryBudget::new(400 * MIB));
    let memory = memory(&budget, 1);
    let (mut held, mut text, mut tree) = (memory.held(), memory.arriving(), memory.arriving());
    assert_eq!((held.resize(40 * MIB), text.resize(30 * MIB)), (Ok(()), Ok(())));
    assert!(matches!(tree.resize(21 * MIB), Err(MemoryExcess::Registration(_))));
    assert_eq!((tree.resize(20 * MIB), budget.used(), memory.bytes_arriving()), (Ok(()), 90 * MIB, 50 * MIB));
    assert_eq!(held.resize(101 * MIB), Err(MemoryExcess::Workspace { bytes: 150 * MIB }));
    drop((text, tree));
    assert_eq!((budget.used(), memory.bytes_arriving()), (40 * MIB, 0));
    assert_eq!(memory.check(110 * MIB), Ok(()));
    assert!(memory.check(111 * MIB).is_err());
}
