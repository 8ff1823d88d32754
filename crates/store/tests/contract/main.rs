//! Contract suite of the store, run on every engine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod accounts;
mod clusters;
mod damage;
mod durability;
mod histories;
mod into_etcd;
mod model;
mod reads;
mod scene;
mod upstream;
mod watches;
mod writes;

/// Runs each case on each engine.
macro_rules! on_every_engine {
    ($($part:ident: $($case:ident),+;)+) => {
        on_every_engine!(@engine memory MEMORY, $($part: $($case),+;)+);
        on_every_engine!(@engine redb REDB, $($part: $($case),+;)+);
        on_every_engine!(@engine sled SLED, $($part: $($case),+;)+);
        // One after the other (`--test-threads=1`): a compaction removes the history of all.
        on_every_engine!(@engine etcd Etcd
            #[ignore = "needs an etcd: cargo xtask e2e --suite etcd"], $($part: $($case),+;)+);
    };
    (@engine $engine:ident $variant:ident $(#[$ignored:meta])?, $($part:ident: $($case:ident),+;)+) => {
        on_every_engine!(@module $engine $variant [$(#[$ignored])?] $($part: $($case),+;)+);
    };
    (@module $engine:ident $variant:ident $ignored:tt $($part:ident: $($case:ident),+;)+) => {
        mod $engine {
            $($(on_every_engine!(@case $variant $ignored $part $case);)+)+
        }
    };
    (@case $variant:ident [$(#[$ignored:meta])?] $part:ident $case:ident) => {
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                $(#[$ignored])?
                async fn $case() {
                    crate::$part::$case(crate::scene::ContractScene::new(crate::scene::EngineSubject::$variant)).await;
                }
    };
}

on_every_engine! {
    writes: a_write_happens_when_what_it_expects_holds, of_many_who_create_one_name_one_wins,
        of_many_who_change_one_object_each_succeeds_once, a_transaction_happens_all_or_not_at_all,
        what_is_checked_has_to_be_as_it_was_read,
        an_object_that_has_to_live_may_be_written, each_write_has_its_own_revision, a_transaction_has_bounds, a_write_whose_caller_left_still_happens,
        helpers_try_again_when_somebody_was_faster, a_closed_store_takes_no_write;
    reads: selectors_limits_and_counts, a_large_list_is_read_whole, pages_show_one_state, slices_show_one_state,
        indexes_follow_the_latest_state, unknown_revisions_are_refused, rare_objects_are_found_across_pages,
        a_continuation_whose_state_is_gone_is_told_and_can_go_on_at_the_latest;
    histories: every_state_and_every_watch_equals_the_model, compaction_leaves_what_is_above_its_floor,
        the_last_so_many_revisions_are_kept;
    watches: a_list_and_its_watch_have_no_hole, a_watcher_that_fell_off_the_ring_misses_nothing,
        a_watcher_that_fell_behind_the_floor_is_told, progress_goes_on_while_nothing_matches,
        a_transaction_is_delivered_in_one_piece, a_dropped_wait_loses_nothing, closing_ends_every_watch, a_name_that_is_used_again_is_another_object;
    upstream: a_name_that_begins_like_another_is_no_part_of_it, counts_follow_what_is_written_and_deleted,
        what_is_checked_before_a_deletion_is_checked_of_what_is_deleted, watchers_that_never_read_hold_up_nobody,
        what_a_watch_has_come_to_is_never_ahead_of_what_it_brings,
        a_compaction_at_a_deletion_loses_neither_it_nor_its_revision;
    accounts: a_logical_cluster_grows_up_to_its_limits, bytes_are_counted_as_they_are_stored,
        what_is_below_counts_for_all_ancestors, of_many_at_once_as_many_are_written_as_fit,
        what_is_full_can_be_deleted_and_does_not_grow_meanwhile;
    clusters: a_deleted_cluster_is_gone_for_good, deleting_a_large_cluster_is_seen_by_watchers;
}
