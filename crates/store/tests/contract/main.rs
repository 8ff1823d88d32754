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
    writes: a_write_happens_when_what_it_expects_holds, one_of_many_concurrent_creates_succeeds,
        each_concurrent_update_of_an_object_succeeds_once, a_transaction_happens_all_or_not_at_all,
        checked_objects_must_be_unchanged,
        an_object_that_has_to_live_may_be_written, each_write_has_its_own_revision, a_transaction_has_bounds, a_write_whose_caller_left_still_happens,
        helpers_retry_after_a_conflict, a_closed_store_takes_no_write;
    reads: selectors_limits_and_counts, a_large_list_is_read_whole, pages_show_one_state, slices_show_one_state,
        indexes_follow_the_latest_state, unknown_revisions_are_refused, rare_objects_are_found_across_pages,
        an_expired_continue_token_is_reported_and_can_continue_at_the_latest_revision;
    histories: every_state_and_every_watch_equals_the_model, compaction_keeps_states_above_its_floor,
        the_last_so_many_revisions_are_kept;
    watches: a_list_and_its_watch_have_no_hole, a_watcher_that_fell_off_the_ring_misses_nothing,
        a_watcher_behind_the_floor_gets_an_expired_error, progress_goes_on_while_nothing_matches,
        a_transaction_is_delivered_in_one_piece, a_dropped_wait_loses_nothing, closing_ends_every_watch, a_name_that_is_used_again_is_another_object;
    upstream: a_name_with_a_common_prefix_is_not_matched, counts_follow_writes_and_deletes,
        preconditions_of_a_deletion_hold_for_the_deleted_state, stalled_watchers_delay_no_other,
        the_progress_of_a_watch_is_never_ahead_of_its_events,
        a_compaction_at_a_deletion_loses_neither_it_nor_its_revision;
    accounts: a_logical_cluster_grows_up_to_its_limits, bytes_are_counted_as_they_are_stored,
        usage_counts_for_all_ancestors, of_many_at_once_as_many_are_written_as_fit,
        a_full_logical_cluster_can_be_deleted_and_does_not_grow;
    clusters: a_deleted_cluster_is_gone_for_good, deleting_a_large_cluster_is_seen_by_watchers;
}
