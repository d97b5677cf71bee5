//! The list of all scenarios, by subject. Each is listed once. One that is not listed is dead code, and the compiler
//! reports it.

use crate::Scenario;

/// Passes the list to another macro of this crate: `(its arguments) "subject" module { names }…`.
#[doc(hidden)]
#[macro_export]
macro_rules! __scenarios {
    ($callback:ident $arguments:tt) => {
        $crate::$callback! {
            $arguments
            "Databases" catalog {
                databases_are_created_listed_and_dropped,
                late_writers_never_reach_a_successor,
                a_layer_is_marked_and_others_are_refused,
                a_format_that_changes_in_use_is_noticed,
                a_handle_in_the_background_is_of_the_same_store,
            }
            "Stores whose versions went back (RFC 003, 'Incarnation')" adopting {
                a_store_whose_versions_went_back_is_refused_and_adopted,
                an_adoption_that_ended_midway_is_continued,
                a_server_that_runs_while_its_store_goes_back_notices,
                only_a_store_of_ours_is_adopted,
            }
            "Backups and restores" restoring {
                a_restored_database_is_seen_when_it_is_complete,
                what_is_read_at_one_version_belongs_together,
            }
            "The servers' configuration" configuration {
                settings_are_shared_watched_and_removed,
                bad_settings_are_refused,
                one_setting_is_the_first_of_its_section,
            }
            "Events of databases" events {
                each_database_has_its_last_events_in_order,
                events_follow_a_database_to_another_store,
                watchers_of_events_wake_for_each,
                who_reads_on_misses_no_event,
                only_the_last_drops_are_kept,
                edits_pay_nothing_for_events,
            }
            "Edits (RFC 001, 'Update Path'; RFC 004)" writing {
                a_document_is_written_read_changed_and_deleted,
                revisions_are_those_that_couchdb_makes,
                edits_of_what_is_no_live_leaf_conflict,
                recreating_goes_on_from_the_winning_tombstone,
                a_deletion_without_revision_only_of_what_never_was,
                losing_branches_are_extended_and_may_win,
                deleting_the_winner_lets_the_next_win,
                a_tombstone_keeps_its_body,
                branches_are_stemmed_to_the_limit,
                bad_edits_are_refused_and_write_nothing,
                an_edit_may_make_a_revision_that_came_without_its_ancestors,
                both_formats_read_back_what_was_written,
                paths_too_long_for_a_key_are_packed,
            }
            "Replicated edits (RFC 001, `new_edits=false`)" merging {
                known_revisions_change_nothing,
                any_order_of_arrival_gives_the_same_tree,
                random_edits_agree_with_the_oracle,
                a_replicated_deletion_of_the_winner_uncovers_its_sibling,
                short_and_long_histories_join,
                histories_join_within_a_batch_in_any_order,
                a_longer_history_that_comes_later_reaches_the_branches_it_belongs_to,
                a_leaf_that_turns_out_to_be_an_ancestor_is_joined,
                a_lowered_limit_is_shown_at_once_and_rows_are_stemmed,
                stemming_loses_no_edit,
                revisions_need_not_be_hashes,
            }
            "Reads (RFC 004, 'CRUD Operations')" reading {
                leaves_are_read_by_their_revisions,
                histories_conflicts_and_sequences_are_read_beside_the_body,
                revs_diff_names_what_is_missing,
            }
            "The numbers before sequences" numbers {
                numbers_count_edits_never_fall_and_stay,
                numbers_of_writers_side_by_side_never_fall,
                rows_that_count_edits_go_with_their_sequences,
                numbers_move_with_their_database,
            }
            "The edits since a time" times {
                no_edit_since_a_time_is_missing_and_few_are_older,
                a_clock_that_is_behind_hides_no_edit,
                a_document_that_changes_all_the_time_leaves_the_times_of_the_others,
            }
            "Changes (RFC 003)" changes {
                rows_of_the_feed_are_those_of_the_rfc,
                a_feed_has_each_document_once_in_order,
                feeds_go_on_where_they_stopped,
                a_long_feed_goes_on_past_old_read_versions,
                feeds_have_styles_documents_and_filters,
            }
            "Waiting feeds" feed {
                waiters_wake_once_for_each_change,
                dropping_the_database_ends_all_waiting,
                waiters_share_one_watch,
                waiters_poll_a_store_without_watches,
                a_write_costs_as_much_with_any_number_of_waiting_feeds,
                feeds_that_share_reads_agree_with_a_plain_reader,
                a_shared_read_that_nobody_ends_is_ended_by_the_next,
                a_shared_read_that_began_before_a_change_is_not_the_last,
                feeds_of_a_dropped_database_share_nothing,
            }
            "Streams and consumers of the feed" consuming {
                the_feed_is_a_stream_that_may_go_on,
                two_consumers_of_one_name_share_the_feed,
                rows_that_another_consumer_has_consumed_are_left,
                a_consumer_that_ends_anywhere_is_gone_on_with,
                what_a_consumer_does_at_an_unknown_result_happens_once,
                a_place_goes_where_its_database_goes,
                a_place_moves_only_with_its_effects,
            }
            "Listings" listing {
                listings_keep_to_ranges_limits_and_skips,
                listings_of_given_ids_come_in_the_order_asked_for,
                long_listings_go_on,
            }
            "Batches" bulk {
                results_come_in_order_and_failures_stay_alone,
                sequences_follow_the_order_of_the_edits,
                edits_of_one_document_follow_each_other,
                large_batches_take_several_transactions,
                a_document_at_the_limit_is_written,
            }
            "Sizes" sizes {
                what_reads_many_bodies_ends_a_batch_at_its_bytes,
                what_is_too_slow_is_read_by_halves,
                a_write_that_is_too_slow_is_done_by_halves,
                one_edit_that_is_too_large_for_the_store_is_a_document_too_large,
                a_full_database_takes_deletions_and_purges_alone,
                a_thousand_leaves_of_a_document_are_one_edit,
                a_hundred_thousand_revisions_of_a_document_are_compared,
            }
            "Damage" damage {
                a_damaged_revision_stops_no_other_document,
                damage_anywhere_else_stops_no_other_document_either,
                what_a_later_version_wrote_is_named_and_left_alone,
            }
            "Conflicts at the store" conflicts {
                writers_of_different_documents_never_conflict,
                one_of_two_writers_of_a_document_wins,
                of_writers_that_create_a_document_one_wins,
            }
            "Unknown commit results (RFC 003, option 3)" unknown {
                a_write_of_unknown_result_that_was_committed_is_done_once,
                a_write_of_unknown_result_that_was_not_committed_is_done_again,
                databases_are_created_and_dropped_once,
                whoever_writes_clears_ids_that_have_expired,
                a_clock_that_is_ahead_clears_no_id_that_decides,
                an_id_that_may_have_expired_decides_nothing,
                a_write_of_unknown_result_is_still_done_by_halves,
            }
            "Edits in the caller's own transaction" transacting {
                edits_of_several_databases_commit_with_rows_of_the_callers,
                a_refused_edit_refuses_the_whole_transaction,
                documents_that_are_read_do_not_change_before_the_commit,
                transactions_of_unknown_result_happen_once,
                money_is_moved_once_through_faults,
                a_loop_that_knows_no_documents_may_have_edits,
            }
            "Conflicts of documents, and typed documents" resolving {
                documents_with_conflicts_are_listed,
                conflicts_are_ended_in_one_transaction,
                documents_are_values_of_a_type,
                values_keep_the_attachments_of_their_documents,
            }
            "Layouts of bodies that change in use" rewriting {
                bodies_are_rewritten_while_they_are_read_and_edited,
                a_rewriting_is_gone_on_with_by_another_server,
                rewriting_and_edits_lose_nothing_through_faults,
                a_layout_changes_while_its_database_moves,
                a_layout_changes_there_and_back_while_its_database_moves,
                what_cannot_be_rewritten_stays,
            }
            "Relocation (RFC 003, 'Incarnation')" relocating {
                a_database_that_moves_arrives_as_it_was,
                a_relocation_copies_in_the_background_until_writers_wait_for_it,
                a_relocation_and_a_build_outlast_a_cluster_without_room,
                what_stands_in_the_way_of_a_relocation_is_said,
                differences_are_found_before_the_target_is_published,
                databases_move_on_and_come_back,
                indexes_are_built_anew_where_their_database_moved,
            }
            "Interrupted relocations" interrupted {
                a_run_that_ends_anywhere_is_gone_on_with,
                a_run_that_ends_anywhere_is_gone_on_with_through_faults,
                branches_may_be_stemmed_while_their_database_moves,
                abandoning_a_relocation_leaves_nothing_behind,
                of_two_runs_of_a_relocation_the_later_goes_on,
                a_run_that_is_overtaken_anywhere_leaves_no_edit_behind,
                a_failure_behind_the_fence_opens_the_source_again,
                writers_at_work_lose_nothing_while_their_database_moves,
            }
            "Attachments" attachments {
                attachments_are_written_inline_and_read_back,
                stubs_stand_for_what_the_replaced_leaf_has,
                a_content_is_stored_once_and_goes_with_the_last_that_has_it,
                replicated_attachments_keep_what_they_came_with,
                attachments_are_put_and_deleted_by_name,
            }
            "Uploads of attachments" uploads {
                large_contents_are_staged_and_read_in_pieces,
                bad_uploads_are_refused_and_leave_nothing,
                uploads_that_nobody_names_are_swept,
                uploads_that_are_dropped_give_their_space_back,
                uploads_through_faults_are_stored_once,
                the_last_of_two_writers_removes_the_content,
                damage_to_contents_is_found_and_what_nobody_has_is_removed,
                damaged_contents_are_never_returned_whole,
                contents_with_the_same_md5_are_two,
            }
            "Races for uploads" upload_races {
                an_upload_is_swept_or_named_and_never_both,
                an_upload_is_discarded_or_named_and_never_both,
            }
            "Limits and damage of attachments" contents {
                contents_that_cannot_be_read_refuse_their_edits_alone,
                attachments_whose_list_cannot_be_read_stay,
                a_bad_stub_of_attachments_fails_large_batches_before_they_are_written,
                contents_that_come_again_have_parts_of_their_own,
                attachments_beside_a_large_body_fit,
                attachments_count_as_many_bytes_as_they_unpack_to,
                attachments_have_limits_of_number_and_of_names,
                attachments_that_are_replaced_while_they_are_read_are_read_again,
                uploads_that_failed_stay_failed,
                uploads_are_swept_behind_rows_that_cannot_be_read,
            }
            "Parts of documents (RFC 004)" parts {
                parts_are_what_stands_in_the_whole,
                parts_read_only_the_rows_below_their_paths,
            }
            "Patches" patching {
                a_patch_makes_what_a_put_of_the_result_makes,
                patches_that_do_not_fit_change_nothing,
                a_leaf_whose_hash_is_no_text_is_patched,
                of_patches_at_the_same_time_none_is_lost,
                a_patch_of_unknown_result_is_applied_once,
            }
            "Economy" economy {
                a_thousand_updates_and_a_delete_leave_two_rows,
                an_update_reads_as_much_with_any_number_of_branches,
                a_first_revision_is_read_by_its_body_alone,
            }
            "Collections of what nobody names" collecting {
                what_is_collected_comes_back_on_every_way_of_writing,
                what_is_named_again_must_be_condemned_anew,
                what_cannot_go_as_one_document_stays,
                an_edit_beside_any_step_has_what_it_names,
                a_collection_that_ends_after_any_step_is_gone_on_with,
                an_edit_may_name_more_than_a_transaction_revives,
                an_edit_may_name_thousands_in_the_trash,
                small_documents_with_many_rows_are_revived_in_several_transactions,
                what_is_revived_is_new_to_whoever_has_its_tombstone,
                what_follows_a_tombstone_is_followed,
                who_purges_a_document_purges_it_from_the_trash,
                a_document_is_taken_once_whatever_else_is_left_of_it,
                large_documents_are_collected_one_by_one,
                what_cannot_be_revived_is_told_and_stops_no_edit,
                a_page_of_unreadable_rows_is_not_the_end_of_the_trash,
                a_damaged_document_ends_no_collection,
                a_list_that_cannot_be_read_ends_the_collection_that_runs,
                a_full_store_ends_a_collection_which_says_what_it_did,
                what_is_deleted_beside_its_condemnation_stays_in_the_trash,
                an_edit_that_is_refused_takes_nothing_out_of_the_trash,
                a_trash_moves_with_its_database,
                only_a_collected_database_pays_for_it,
            }
            "The end of a collection's trash" emptying {
                what_every_client_has_passed_leaves_the_trash,
                what_may_be_needed_stays_in_the_trash,
                a_period_begins_anew_with_what_it_rests_on,
                a_full_store_still_gives_back_what_is_due,
                text_that_left_the_trash_is_asked_for_and_written_again,
                a_later_deletion_of_ended_text_is_not_undone,
                an_edit_beside_the_end_of_a_text_is_before_or_after_it,
            }
            "Bodies of replaced revisions" replaced {
                replaced_revisions_are_read_if_they_are_kept,
                replaced_revisions_end_with_the_setting,
                what_is_too_old_cannot_be_read_and_is_removed,
                a_purge_takes_replaced_revisions_with_it,
                only_a_database_that_keeps_revisions_pays_for_it,
                replaced_revisions_move_with_their_database,
                a_sweep_never_takes_what_an_edit_makes_a_leaf,
                every_kept_revision_is_read_and_no_other,
                what_does_not_fit_is_written_in_several_transactions_or_not_kept,
            }
            "Conflict policies" policies {
                the_greatest_revision_is_left_in_every_order,
                edits_extend_the_only_leaf_and_a_tombstone_stays,
                a_policy_costs_edits_nothing,
                rows_of_another_policy_are_found_and_put_right,
                a_policy_moves_with_its_database,
            }
            "Partitioned databases" partitions {
                ids_are_checked_wherever_they_are_written,
                partitions_cost_edits_nothing_and_questions_their_rows,
                views_of_a_partition_are_those_of_a_database_of_its_own,
                a_partitioned_database_moves_as_one,
            }
            "Purges" purging {
                purged_leaves_go_and_the_others_stay,
                a_purge_of_deleted_documents_leaves_what_is_alive,
                what_is_purged_leaves_nothing_but_its_purge,
                a_purge_of_unknown_result_is_done_once,
                a_uuid_belongs_to_one_purge,
                the_oldest_purges_are_forgotten,
                large_purges_take_several_transactions,
                of_a_purge_and_an_edit_at_the_same_time_one_comes_first,
                a_purge_of_damaged_rows_leaves_them,
                documents_purged_while_they_are_copied_do_not_arrive,
                databases_without_purges_pay_nothing_for_them,
            }
            "Jobs (RFC 007)" jobs {
                jobs_are_added_accepted_and_finished,
                jobs_come_by_priority_and_schedule,
                waiters_for_jobs_wake,
                a_job_is_taken_over_when_its_servers_lease_is_out,
                a_transaction_that_began_before_a_takeover_cannot_commit,
                what_a_server_gives_back_is_pending_at_once,
                a_thousand_idle_jobs_commit_nothing,
                stores_without_jobs_have_no_rows_of_them,
                unknown_results_neither_lose_a_job_nor_run_it_twice,
                a_takeover_between_two_attempts_of_a_renewal_is_noticed,
                a_lease_that_is_renewed_during_a_takeover_holds,
                a_takeover_that_breaks_off_is_gone_on_with,
                a_job_whose_server_ended_waits_longer_each_time,
                one_job_at_a_time_has_a_name,
                jobs_that_cannot_be_read_hold_nothing_up,
            }
            "Races for jobs" job_races {
                random_histories_of_jobs_agree_with_the_oracle,
                of_two_runs_of_a_job_one_alone_writes,
                servers_at_work_at_the_same_time_do_each_job,
            }
            "Searches by selector (RFC 006)" finding {
                random_searches_agree_with_a_scan,
                a_callers_transaction_maintains_indexes,
            }
            "Indexes (RFC 006, RFC 008)" indexes {
                random_edits_and_indexes_agree_with_a_scan,
                an_index_is_built_beside_writers,
                an_edit_of_a_design_document_makes_and_removes_indexes,
                a_database_keeps_so_many_indexes_and_no_more,
                an_index_in_an_unknown_format_refuses_writes,
                faults_of_indexes_are_found_and_mended,
                a_repair_of_a_document_mends_its_rows,
                indexes_cost_what_they_keep_and_nothing_elsewhere,
                index_pages_keep_to_ranges_and_limits,
                documents_read_beside_others_are_of_the_same_moment,
                definitions_are_read_once,
            }
            "What a build of an index reads, and when" index_builds {
                a_build_reads_the_rows_of_its_fields,
                a_build_reads_bodies_of_every_layout,
                a_build_reads_the_next_batch_while_one_is_written,
                what_was_read_ahead_is_dropped_where_the_ground_has_moved,
                builds_that_read_ahead_agree_beside_writers_and_each_other,
            }
            "Validation (`validate_doc_update`)" validating {
                functions_get_the_documents_as_couchdb_gives_them,
                all_design_documents_with_functions_are_asked_and_no_others,
                a_refused_edit_writes_nothing_and_leaves_the_others,
                each_way_to_write_asks_who_writes,
                a_program_that_cannot_ask_writes_design_documents_only,
                selectors_refuse_what_they_do_not_match,
                a_verdict_holds_for_the_parent_and_the_functions_at_the_commit,
                rules_that_change_before_the_commit_refuse_the_edit,
                no_edit_gets_past_a_function_that_was_there_before_it,
                a_write_of_unknown_result_is_validated_and_done_once,
                databases_without_functions_pay_nothing,
                the_list_of_functions_is_checked_and_mended_and_moves_along,
                ids_of_functions_have_a_bound,
                where_the_last_write_wins_the_function_sees_what_is_replaced,
            }
            "Jobs that build indexes" index_jobs {
                an_index_comes_with_its_job_and_the_job_ends_with_the_build,
                the_job_goes_with_the_last_index_that_is_to_be_built,
                a_build_is_in_the_background_until_somebody_waits_for_it,
                a_build_that_nobody_is_at_is_asked_for_once,
            }
            "Local documents and settings" local {
                local_documents_have_no_history_and_are_in_no_feed,
                settings_are_kept_and_bad_ones_are_refused,
            }
            "Costs (the performance tables of RFC 001, RFC 003 and RFC 004)" costs {
                every_transaction_of_a_database_has_its_tag,
                edits_read_what_the_rfc_allows,
                documents_without_attachments_pay_nothing_for_those_of_others,
                what_is_pending_costs_no_multiple_of_the_answer,
                a_thousand_branches_cost_no_more,
                reading_a_document_reads_its_rows,
                reading_a_conflicted_document_reads_no_other_branch,
                listing_local_documents_reads_no_bodies,
                a_feed_reads_its_rows_and_revisions_only_where_there_are_several,
            }
            "Views (RFC 008, RFC 012)" views {
                random_views_agree_with_a_scan,
                updates_of_a_group_beside_each_other_and_writers,
                an_update_that_is_taken_over_goes_on_where_the_first_stopped,
                a_grouped_reduction_reads_nodes_and_not_rows,
                map_functions_run_beside_each_other,
                purges_reach_views_also_when_they_are_forgotten,
                a_document_that_is_purged_while_it_is_mapped_has_no_rows,
                all_purges_reach_views_when_there_are_many,
                purges_reach_views_whose_rows_take_several_transactions,
                keys_that_do_not_exist_end_a_page,
                a_document_that_a_repair_removes_has_no_rows_in_views,
                a_batch_ends_at_the_bytes_that_are_emitted,
                a_document_whose_nodes_do_not_fit_stops_no_other,
                documents_that_break_a_map_function_are_noted,
                a_view_that_emits_too_much_leaves_the_others_their_rows,
                rows_bring_their_documents_or_those_they_name,
                groups_are_removed_and_built_anew,
                damaged_views_are_found,
                view_rows_that_belong_to_nothing_are_removed,
                a_repair_leaves_view_rows_that_a_later_version_wrote,
                a_view_is_tried_on_the_documents_that_changed_last,
            }
            "Documents that a view leaves out" left_out {
                queries_name_the_documents_that_a_view_leaves_out,
                a_query_of_a_partition_names_the_documents_there,
                a_document_that_cannot_be_read_is_left_out_of_all_views,
                damage_to_rows_of_left_out_documents_is_found,
            }
            "The checker" checking {
                sound_databases_pass,
                planted_damage_is_found,
                planted_damage_is_repaired,
                a_repair_leaves_what_a_later_version_wrote,
                a_document_that_a_repair_leaves_stays_in_the_feed,
                what_earlier_repairs_moved_is_kept,
            }
        }
    };
}

/// Runs the whole suite on an engine: one `#[test]` for each scenario.
///
/// The argument is an expression that makes the [`Harness`](conformance::Harness), as for [`conformance::suite!`].
/// Several suites in one file need a module each.
///
/// ```ignore
/// model_suite::suite!(MemHarness);
/// ```
#[macro_export]
macro_rules! suite {
    ($harness:expr) => {
        $crate::__scenarios! { __tests ($crate::run, $harness) }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __list {
    (() $($subject:literal $module:ident { $($name:ident,)* })*) => {
        const SCENARIOS: &[Scenario] = &[$($(
            Scenario {
                name: stringify!($name),
                subject: $subject,
                play: |stage| Box::pin($crate::scenarios::$module::$name(stage)),
            },
        )*)*];
    };
}

__scenarios! { __list () }

/// Every scenario, in the order of the subjects.
pub fn scenarios() -> &'static [Scenario] {
    SCENARIOS
}
