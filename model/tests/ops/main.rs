//! The document operations over real engines: every scenario runs over every engine listed at the end.

mod bulk;
mod catalog;
mod changes;
mod checking;
mod conflicts;
mod costs;
mod feed;
mod listing;
mod local;
mod merging;
mod oracle;
mod reading;
mod support;
mod unknown;
mod writing;

/// All scenarios, each once, handed to the macro that makes tests of them for an engine.
macro_rules! scenarios {
    ($suite:ident, $engine:ident, $fresh:expr) => {
        $suite! { $engine, $fresh,
            writing::a_document_is_written_read_changed_and_deleted,
            writing::the_conflict_matrix,
            writing::recreating_goes_on_from_the_winning_tombstone,
            writing::a_deletion_without_revision_only_of_what_never_was,
            writing::losing_branches_are_extended_and_may_win,
            writing::deleting_the_winner_crowns_the_next,
            writing::a_tombstone_keeps_its_body,
            writing::branches_are_stemmed_to_the_limit,
            writing::bad_edits_are_refused_and_write_nothing,
            writing::an_edit_may_make_a_revision_that_came_without_its_ancestors,
            writing::both_formats_read_back_what_was_written,
            costs::edits_read_what_the_rfc_allows,
            costs::a_thousand_branches_cost_no_more,
            costs::reading_a_document_is_one_round_trip,
            merging::known_revisions_change_nothing,
            merging::any_order_of_arrival_gives_the_same_tree,
            merging::random_edits_agree_with_the_oracle,
            merging::a_replicated_deletion_of_the_winner_uncovers_its_sibling,
            merging::short_and_long_histories_join,
            merging::identifiers_that_are_not_hashes,
            unknown::committed_and_then_unknown,
            unknown::not_committed_and_unknown,
            unknown::databases_are_created_and_dropped_once,
            unknown::ids_are_swept_when_they_are_old,
            bulk::results_come_in_order_and_failures_stay_alone,
            bulk::edits_of_one_document_follow_each_other,
            bulk::large_batches_take_several_transactions,
            bulk::a_document_at_the_limit_is_written,
            changes::each_document_once_in_order,
            changes::feeds_go_on_where_they_stopped,
            changes::styles_documents_and_filters,
            listing::ranges_limits_and_skips,
            listing::asking_by_id,
            listing::long_listings_go_on,
            local::local_documents,
            local::settings,
            catalog::databases_are_created_listed_and_dropped,
            catalog::late_writers_never_reach_a_successor,
            catalog::a_layer_is_marked_and_others_are_refused,
            conflicts::writers_of_different_documents_never_conflict,
            conflicts::one_of_two_writers_of_a_document_wins,
            reading::leaves_by_revision,
            reading::what_is_asked_for_beside_the_body,
            reading::revs_diff_names_what_is_missing,
            feed::waiters_wake_once_for_each_change,
            feed::dropping_the_database_ends_all_waiting,
            feed::waiters_share_one_watch,
            checking::sound_databases_pass,
            checking::planted_damage_is_found,
        }
    };
}

macro_rules! suite {
    ($engine:ident, $fresh:expr, $($module:ident :: $scenario:ident,)*) => {
        mod $engine {
            $(
                #[tokio::test]
                async fn $scenario() {
                    let (engine, _kept) = $fresh;
                    crate::$module::$scenario(engine).await;
                }
            )*
        }
    };
}

scenarios!(suite, mem, (engine_mem::MemDatabase::new(), ()));
scenarios!(suite, sled, crate::support::sled());
scenarios!(suite, redb, crate::support::redb());
