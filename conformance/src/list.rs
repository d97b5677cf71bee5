//! The list of all scenarios, by clause. A scenario missing here is dead code, which the compiler reports.

use crate::Scenario;

/// Passes the list to another macro of this crate: `(its arguments) "clause" module { names }…`.
#[doc(hidden)]
#[macro_export]
macro_rules! __scenarios {
    ($callback:ident $arguments:tt) => {
        $crate::$callback! {
            $arguments
            "Read version" read_version {
                the_read_version_is_fetched_at_the_first_read_not_at_the_beginning,
                the_first_read_fixes_the_read_version,
                a_get_of_an_own_write_fetches_no_read_version,
                the_read_version_can_be_asked_for_and_stays,
                a_fresh_read_version_is_no_less_than_any_acknowledged_commit,
                a_commit_version_is_greater_than_its_read_version,
                commit_versions_of_successive_transactions_rise,
                reads_at_a_set_version_see_that_version,
                a_version_before_a_commit_does_not_see_it,
                writes_at_a_set_version_conflict_with_what_came_after_it,
                setting_the_read_version_twice_is_2010,
                setting_the_read_version_after_a_read_is_2010,
                setting_the_read_version_after_asking_for_it_is_2010_at_the_commit,
                a_read_version_that_is_not_positive_is_2011,
                a_read_at_a_version_from_the_future_is_1009,
                a_read_older_than_the_window_is_1007,
                a_commit_of_reads_older_than_the_window_is_1007,
                a_version_set_to_one_that_the_window_has_left_is_1007,
                a_transaction_that_began_long_ago_and_read_nothing_is_not_too_old,
                a_reset_takes_a_new_read_version,
            }
            "Isolation" isolation {
                uncommitted_writes_are_seen_by_no_one_else,
                a_transaction_reads_one_version_throughout,
                the_first_committer_wins_and_the_second_is_refused,
                write_skew_is_refused,
                a_phantom_is_refused,
                an_absent_key_that_was_read_conflicts_when_it_appears,
                a_key_that_was_read_conflicts_when_it_is_cleared,
                a_write_of_the_same_value_conflicts_all_the_same,
                a_change_that_was_undone_conflicts_all_the_same,
                a_commit_before_the_read_version_does_not_conflict,
                blind_writes_never_conflict,
                a_read_only_transaction_never_conflicts,
                transactions_on_different_keys_do_not_conflict,
                a_key_and_its_extension_are_different_keys,
                a_refused_transaction_leaves_nothing_behind,
                a_refused_transaction_makes_no_one_else_conflict,
                a_read_of_an_own_write_range_conflicts_with_others_all_the_same,
                a_large_transaction_is_all_there_or_not_at_all,
                counting_on_many_threads_loses_nothing,
                the_sum_is_kept_by_transfers_on_many_threads,
                histories_of_real_threads_have_a_serial_order,
            }
            "Snapshot reads" snapshot {
                a_snapshot_get_adds_no_conflict,
                a_snapshot_range_adds_no_conflict,
                a_snapshot_key_selector_adds_no_conflict,
                snapshot_is_chosen_for_each_read,
                a_serializable_read_after_a_snapshot_read_of_the_same_key_conflicts,
                a_snapshot_read_sees_the_same_version_as_the_others,
                a_snapshot_read_sees_the_own_writes,
                snapshot_ryw_disable_hides_the_own_writes_from_snapshot_reads,
                snapshot_ryw_disable_leaves_serializable_reads_alone,
                snapshot_ryw_disabled_twice_needs_enabling_twice,
                snapshot_reads_allow_the_write_skew_they_are_asked_for,
                a_conflict_range_by_hand_makes_a_snapshot_read_serializable,
            }
            "Conflict ranges" conflict_ranges {
                a_get_conflicts_over_its_key_alone,
                a_range_read_to_its_end_conflicts_over_all_of_it,
                an_empty_range_conflicts_over_all_of_it,
                stopped_range_conflicts_only_over_what_it_returned,
                stopped_reverse_range_conflicts_only_over_what_it_returned,
                a_range_stopped_at_its_own_begin_conflicts_over_that_key,
                a_range_stopped_by_bytes_conflicts_only_over_what_it_returned,
                a_limit_reached_by_the_last_row_leaves_the_rest_free,
                a_range_read_in_batches_conflicts_over_all_of_them,
                a_key_selector_conflicts_over_the_way_to_the_key_it_found,
                a_range_that_begins_before_its_key_conflicts_from_its_first_row,
                a_stopped_reverse_range_conflicts_up_to_the_end_that_it_came_from,
                a_set_conflicts_with_reads_of_its_key_alone,
                a_range_clear_conflicts_over_keys_that_do_not_exist,
                a_clear_of_an_absent_key_conflicts_with_reads_of_it,
                every_atomic_operation_conflicts_with_reads_of_its_key,
                a_read_range_by_hand_conflicts_like_a_read,
                a_write_range_by_hand_conflicts_like_a_write,
                a_write_range_by_hand_alone_gets_a_commit_version,
                a_read_range_by_hand_alone_is_read_only,
                an_empty_range_by_hand_conflicts_with_nothing,
                a_read_range_by_hand_leaves_out_own_writes_made_before_it,
                a_read_range_by_hand_keeps_what_is_written_after_it,
                the_next_write_without_conflict_range_conflicts_with_no_one,
                only_the_next_write_is_without_conflict_range,
                clears_and_atomic_operations_take_the_option_too,
                a_write_without_conflict_range_keeps_the_range_of_an_earlier_write,
            }
            "Read your writes" read_your_writes {
                a_get_sees_the_own_set,
                a_get_sees_the_own_clear,
                a_set_after_a_clear_and_a_clear_after_a_set_are_seen_in_order,
                ranges_see_sets_and_clears_in_both_directions,
                ranges_skip_over_a_cleared_range,
                a_range_clear_ends_before_its_end,
                selectors_count_over_own_writes,
                reads_see_own_atomic_operations_on_stored_values,
                atomic_operations_apply_over_own_sets_and_clears,
                a_key_that_compare_and_clear_removed_is_absent_to_every_read,
                mixed_atomic_operations_on_one_key_apply_in_order,
                a_read_of_a_key_set_before_adds_no_conflict,
                a_read_of_a_key_cleared_before_adds_no_conflict,
                a_read_of_an_own_atomic_operation_conflicts_where_it_read_the_store,
                a_range_over_own_writes_conflicts_between_them,
                a_set_after_the_read_does_not_take_its_conflict_back,
                with_read_your_writes_disabled_no_read_sees_own_writes,
                with_read_your_writes_disabled_reads_conflict_over_own_writes_too,
                read_your_writes_is_disabled_before_the_first_write_or_2000,
                read_your_writes_is_disabled_before_the_first_read_or_2000,
                many_own_writes_among_many_rows_merge_in_order,
            }
            "Atomic operations" atomics {
                add_is_little_endian_and_carries,
                add_wraps,
                add_extends_or_truncates_to_the_operand,
                add_on_nothing_stores_the_operand,
                add_of_an_empty_operand_leaves_an_empty_value,
                bit_and_pads_with_zeros_and_truncates,
                bit_and_tells_an_absent_key_from_an_empty_value,
                bit_or_keeps_the_operand_beyond_the_value,
                bit_xor_keeps_the_operand_beyond_the_value,
                append_if_fits_appends,
                append_that_does_not_fit_changes_nothing,
                max_compares_little_endian_numbers,
                max_extends_or_truncates_to_the_operand,
                min_compares_little_endian_numbers,
                min_extends_or_truncates_to_the_operand,
                min_tells_an_absent_key_from_an_empty_value,
                byte_min_takes_the_lesser_in_byte_order,
                byte_max_takes_the_greater_in_byte_order,
                compare_and_clear_clears_an_equal_value_only,
                operands_of_different_lengths_on_one_key_apply_in_order,
                concurrent_adds_all_count,
                an_atomic_operation_applies_at_the_commit_version,
                an_atomic_operation_that_was_read_conflicts_at_the_commit,
                the_numbers_of_the_operations_are_those_of_foundationdb,
            }
            "Versionstamps" versionstamps {
                a_stamped_key_holds_the_stamp_of_its_transaction,
                a_stamped_value_holds_the_stamp_of_its_transaction,
                the_first_eight_bytes_of_the_stamp_are_the_commit_version,
                all_stamps_of_a_transaction_are_the_same,
                stamped_keys_sort_in_the_order_of_the_commits,
                no_two_transactions_share_a_stamp,
                the_stamp_can_be_asked_for_without_a_stamped_write,
                the_stamp_of_a_read_only_transaction_is_2021,
                the_stamp_of_a_refused_transaction_fails,
                the_stamp_of_a_cancelled_transaction_is_1025,
                the_offset_may_be_anywhere_that_the_stamp_fits,
                a_stamped_value_without_room_for_the_stamp_is_2000,
                a_stamped_key_without_room_for_the_stamp_is_2000,
                read_of_a_pending_versionstamp_is_1036,
                a_range_over_a_pending_stamped_value_is_1036,
                a_selector_onto_a_pending_stamped_value_is_1036,
                reads_beside_a_pending_versionstamp_work,
                where_a_stamped_key_may_come_to_lie_is_1036,
                reads_beside_a_pending_stamped_key_work,
                stamped_keys_below_the_read_version_stay_readable,
                a_commit_after_a_read_of_a_pending_versionstamp_is_1036,
                setting_over_a_pending_versionstamp_stays_unreadable,
                clearing_a_pending_versionstamp_makes_it_readable,
                a_stamped_value_over_an_own_set_takes_its_place,
                bypass_unreadable_reads_the_operand_of_a_pending_stamped_value,
                a_stamped_key_conflicts_with_a_read_of_where_it_came_to_lie,
                stamped_writes_never_conflict_with_each_other,
            }
            "Key selectors" selectors {
                a_selector_names_the_key_that_its_definition_counts_to,
                a_selector_counts_own_keys_like_stored_ones,
                the_four_common_selectors_are_what_their_names_say,
                a_selector_past_the_last_key_gives_the_end_of_the_keyspace,
                a_selector_before_the_first_key_gives_the_empty_key,
                a_selector_above_the_end_of_the_keyspace_is_2004,
                ranges_take_selectors_at_both_ends,
            }
            "Ranges" ranges {
                rows_come_in_the_order_of_their_keys_bytes,
                the_begin_belongs_and_the_end_does_not,
                a_limit_counts_from_the_side_it_is_read_from,
                a_batch_stopped_by_its_limit_says_more,
                a_limit_reached_by_the_last_row_says_more,
                a_range_read_to_its_end_says_no_more,
                going_on_after_each_batch_reads_every_row_once,
                the_limit_holds_over_all_batches,
                a_batch_ends_with_the_row_that_reaches_the_target,
                a_row_larger_than_the_target_comes_all_the_same,
                an_empty_range_has_no_rows,
                an_inverted_range_has_no_rows_and_is_no_error,
                an_inverted_range_adds_no_conflict,
                a_range_with_an_end_above_the_keyspace_is_2004,
                a_range_may_end_where_the_keyspace_does,
                a_prefix_ends_before_the_next_one,
                get_all_reads_every_batch,
            }
            "Watches" watches {
                a_watch_fires_when_the_value_changes,
                a_watch_fires_when_the_key_appears,
                a_watch_fires_when_the_key_is_cleared,
                a_watch_fires_for_atomic_and_stamped_writes,
                a_watch_does_not_fire_for_the_same_value,
                a_watch_does_not_fire_for_other_keys,
                a_watch_is_not_fired_by_the_own_write_it_saw,
                a_watch_is_fired_by_an_own_write_after_it,
                a_watch_fires_for_a_change_between_its_read_and_its_commit,
                all_watches_of_a_key_fire,
                a_watch_outlives_its_transaction,
                a_watch_fails_with_the_error_of_its_commit,
                a_watch_of_a_transaction_that_is_reset_or_dropped_is_1025,
                a_watch_reads_its_key_and_conflicts,
                a_watch_without_read_your_writes_is_1034,
                a_watch_of_a_pending_versionstamp_is_1036_and_the_commit_goes_on,
                a_watch_above_the_keyspace_is_2004,
                too_many_watches_are_1032,
                watches_that_are_gone_make_room,
            }
            "Limits" limits {
                the_longest_key_is_written_and_read,
                a_set_of_a_key_over_the_limit_is_2102,
                an_atomic_operation_on_a_key_over_the_limit_is_2102,
                a_stamped_key_counts_with_its_offset,
                the_longest_value_is_written_and_read,
                a_value_over_the_limit_is_2103,
                an_operand_over_the_limit_is_2103,
                a_read_of_a_key_over_the_limit_finds_nothing,
                a_clear_of_a_key_over_the_limit_does_nothing,
                a_range_clear_may_end_in_keys_over_the_limit,
                a_write_at_or_above_the_end_of_the_keyspace_is_2004,
                a_range_write_beyond_the_end_of_the_keyspace_is_2004,
                a_range_write_may_end_where_the_keyspace_does,
                a_read_at_or_above_the_end_of_the_keyspace_is_2004,
                a_refused_read_leaves_the_transaction_usable,
                an_inverted_range_clear_is_2005,
                an_inverted_conflict_range_is_2005,
                an_empty_range_clear_does_nothing,
                the_first_of_several_wrong_writes_is_the_error,
                a_transaction_over_the_limit_is_2101,
                a_transaction_near_the_limit_commits,
                conflict_ranges_count_towards_the_limit,
                each_write_counts_with_its_conflict_range,
                the_size_so_far_can_be_asked_for,
                a_size_limit_of_ones_own_is_2101,
                a_size_limit_out_of_range_is_2006,
                a_read_only_transaction_is_never_too_large,
                the_empty_key_and_the_empty_value_are_like_any_other,
            }
            "Errors" errors {
                the_errors_that_may_have_committed_are_1021_and_1039,
                the_errors_that_are_retryable_and_not_committed_are_ten,
                an_error_is_retryable_when_one_of_the_other_two_predicates_holds,
                an_error_says_its_name_and_its_number,
            }
            "on_error" on_error {
                a_retryable_error_makes_the_transaction_ready_again,
                an_error_that_is_not_retryable_is_given_back,
                a_transaction_whose_error_was_given_back_is_cancelled,
                on_error_takes_a_new_read_version,
                on_error_forgets_conflict_ranges_and_wrong_writes,
                the_retry_limit_counts_retries_and_gives_the_error_back,
                the_error_beyond_the_retry_limit_is_the_last_one,
                without_a_retry_limit_there_is_none,
                a_reset_starts_the_count_of_retries_anew,
                a_reset_forgets_the_retry_limit,
                options_that_do_not_persist_are_forgotten_by_on_error,
                the_longest_retry_delay_bounds_the_pause,
                a_transaction_that_timed_out_is_1031_everywhere,
                a_timeout_counts_from_the_beginning_over_all_retries,
                a_timeout_of_zero_is_none,
                a_reset_forgets_the_timeout_and_begins_anew,
                on_error_after_an_unknown_result_runs_again,
            }
            "commit_unknown_result" unknown_result {
                the_first_attempt_is_not_maybe_committed,
                an_attempt_after_a_refused_one_is_not_maybe_committed,
                maybe_committed_is_sticky,
                an_unknown_result_that_was_committed_is_seen_by_the_next_attempt,
                a_body_that_looks_first_counts_once,
                a_body_that_does_not_look_counts_twice,
                a_run_that_gives_up_in_doubt_is_1021,
                a_timeout_at_the_commit_is_not_retried,
                the_runner_retries_an_error_of_a_read,
                an_error_of_the_bodys_own_ends_the_run_and_commits_nothing,
                an_error_of_the_store_keeps_its_code_in_the_bodys_error,
                the_runners_options_hold_for_every_attempt,
                an_observer_sees_every_attempt,
                a_counter_under_chaos_ends_exact,
            }
            "Lifecycle" lifecycle {
                a_commit_makes_its_writes_visible,
                a_transaction_that_is_dropped_leaves_nothing,
                clones_speak_of_the_same_transaction,
                the_committed_version_of_a_read_only_transaction_is_minus_one,
                the_committed_version_is_where_the_writes_are_seen,
                before_the_commit_there_is_no_committed_version,
                a_read_after_the_commit_is_2017,
                a_second_commit_is_2017,
                a_write_after_the_commit_is_2017_and_goes_nowhere,
                a_read_while_committing_is_2017,
                a_committed_transaction_can_be_used_again_after_a_reset,
                a_reset_forgets_everything,
                a_cancelled_transaction_answers_1025,
                on_error_of_a_cancelled_transaction_is_1025,
                a_cancelled_transaction_can_be_used_again_after_a_reset,
                a_cancel_after_the_commit_takes_nothing_back,
                a_failed_commit_is_not_used_again_without_on_error,
            }
            "Pipelining" pipelining {
                two_reads_before_an_await_are_one_round_trip,
                a_get_sees_the_transaction_as_it_was_at_the_call,
                a_range_sees_the_transaction_as_it_was_at_the_call,
                reads_issued_together_see_one_version,
                a_read_that_was_issued_and_not_awaited_conflicts,
                reads_may_be_awaited_in_any_order,
                a_read_may_be_awaited_on_another_thread,
                one_transaction_is_read_by_several_threads_at_once,
            }
            "Placement" placement {
                the_estimated_size_of_a_range_is_about_its_size,
                the_estimated_size_of_a_part_is_no_more_than_that_of_the_whole,
                an_empty_range_is_about_nothing,
                split_points_rise_from_begin_to_end,
                split_points_cut_a_large_range_and_leave_a_small_one_whole,
                split_points_beyond_the_keyspace_are_2004,
                estimates_add_no_conflict,
            }
            "Left out" prefix {
                a_prefix_shows_its_own_keys_without_it,
                a_prefix_ends_selectors_at_its_ends,
                a_prefix_keeps_its_writes_inside,
                a_prefix_refuses_its_own_system_keys,
                a_prefix_moves_the_offset_of_a_stamped_key,
                two_prefixes_do_not_conflict,
                the_longest_key_under_a_prefix_is_shorter_by_it,
            }
            "Recorded answers" recorded {
                recorded_tapes_are_answered_as_recorded,
            }
        }
    };
}

/// Runs the whole suite against an engine: an ordinary `#[test]` for each scenario.
///
/// Takes an expression for the [`Harness`](crate::Harness). Several suites in one file need modules of their own.
///
/// ```ignore
/// conformance::suite!(MemHarness);
///
/// mod prefixed {
///     conformance::suite!(conformance::wrappers::prefixed(super::MemHarness));
/// }
/// ```
#[macro_export]
macro_rules! suite {
    ($harness:expr) => {
        $crate::__scenarios! { __tests ($crate::run, $harness) }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    (($run:path, $harness:expr) $($clause:literal $module:ident { $($name:ident,)* })*) => {
        $($(
            #[test]
            fn $name() {
                $run(&$harness, stringify!($name));
            }
        )*)*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __list {
    (() $($clause:literal $module:ident { $($name:ident,)* })*) => {
        /// The clauses of `docs/fdb-semantics.md` that the suite proves, in the order of the page.
        pub const CLAUSES: &[&str] = &[$($clause),*];

        const SCENARIOS: &[Scenario] = &[$($(
            Scenario {
                name: stringify!($name),
                clause: $clause,
                play: |space| Box::pin($crate::scenarios::$module::$name(space)),
            },
        )*)*];
    };
}

__scenarios! { __list () }

/// Every scenario, in the order of the clauses.
pub fn scenarios() -> &'static [Scenario] {
    SCENARIOS
}
