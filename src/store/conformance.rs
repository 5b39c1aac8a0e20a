//! What every store must do, stated once: a function for a promise, each with the interleaving that breaks it where the
//! promise is not kept. Run on SQLite by every `cargo test`, and with `--include-ignored` on the MySQL or MariaDB server of
//! `BATCH_SEND_TEST_MYSQL` under both forms of claim. Two stores of one stage share nothing but the database, as two processes
//! would; what is dropped between two calls is a run that was killed there.

mod stage;

mod answers;
mod chaos;
mod desk;
mod hands;
mod pace;
mod purge;
mod suppression;
mod survey;
mod tasks;

macro_rules! promises {
    ($($file:ident: $($promise:ident),+ $(,)?;)+) => {
        mod sqlite {
            $($(#[test]
            fn $promise() {
                super::$file::$promise(&super::stage::Stage::sqlite());
            })+)+
        }

        mod mysql_skip_locked {
            $($(#[test]
            #[ignore = "needs BATCH_SEND_TEST_MYSQL"]
            fn $promise() {
                super::$file::$promise(&super::stage::Stage::mysql(crate::store::ClaimForm::SkipLocked));
            })+)+
        }

        mod mysql_update {
            $($(#[test]
            #[ignore = "needs BATCH_SEND_TEST_MYSQL"]
            fn $promise() {
                super::$file::$promise(&super::stage::Stage::mysql(crate::store::ClaimForm::Update));
            })+)+
        }
    };
}

promises! {
    hands:
        claims_of_two_stores_never_overlap,
        a_claim_takes_at_most_so_many_in_the_order_of_id,
        an_empty_task_gives_an_empty_claim,
        each_claim_has_a_fresh_token,
        begin_takes_only_what_bears_our_token,
        begin_takes_nothing_whose_claim_has_ended,
        begin_takes_nothing_whose_status_changed,
        begin_counts_the_attempt_and_moves_the_end_of_the_claim,
        begin_settles_in_the_same_commit,
        release_needs_no_lease_and_gives_back_only_what_was_not_begun,
        release_leaves_what_another_run_has_claimed_since,
        refused_targets_fail_with_the_reason,
        a_refused_target_in_doubt_becomes_unknown,
        refuse_leaves_what_is_not_ours,
        recover_gives_back_what_was_claimed_and_not_begun,
        recover_makes_unknown_what_was_begun,
        recover_leaves_live_claims_alone,
        recover_needs_no_lease_and_no_pending_task,
        recover_finds_what_was_claimed_while_its_task_was_cancelled,
        recover_of_one_task_leaves_the_others,
        crashes_count_in_a_row_until_something_is_sent,
        recover_pauses_what_has_expired;
    answers:
        an_answer_is_written,
        settling_twice_is_settling_once,
        a_settle_needs_no_lease,
        an_attempt_that_is_returned_was_none,
        returned_leaves_a_target_alone_that_was_not_begun,
        an_answer_of_a_fenced_attempt_changes_nothing_and_is_told,
        an_answer_that_contradicts_a_person_is_told,
        without_a_key_a_retry_in_doubt_becomes_unknown,
        answers_of_several_claims_do_not_cross,
        late_answers_settle_what_recover_gave_up,
        a_late_not_accepted_leaves_doubt_unknown,
        a_late_answer_that_knows_nothing_changes_nothing,
        accepted_wins_from_failed_pending_and_retry,
        accepted_under_another_token_is_an_audited_duplicate,
        an_answer_for_a_target_that_is_gone_is_fenced_and_an_acceptance_is_audited,
        a_late_answer_keeps_a_finished_task_finished_and_its_counts_true,
        the_window_does_not_slide,
        the_window_is_checked_at_begin,
        doubt_is_remembered_over_a_deferral,
        certainty_ends_the_window,
        a_message_that_differs_is_not_sent_in_doubt,
        without_a_key_nothing_in_doubt_is_sent,
        recover_repeats_only_inside_the_window,
        any_text_survives_a_settle;
    tasks:
        the_second_taker_is_told_who_holds,
        a_lease_is_taken_after_its_end_and_its_holder_is_told,
        a_lease_taken_at_the_same_moment_goes_to_one,
        pause_cancel_and_expiry_halt_a_lease,
        a_pause_and_resume_in_between_halts_too,
        a_task_that_is_not_to_be_worked_on_says_why,
        force_passes_the_holder_the_schedule_and_a_standing_pause_and_nothing_else,
        force_is_stopped_by_a_pause_after_its_start,
        force_never_closes_and_takes_nothing_from_the_holder,
        no_lease_on_a_schema_of_another_version,
        due_goes_by_priority_then_by_the_least_recently_served,
        due_skips_what_is_not_to_be_worked_on,
        due_skips_tasks_with_nothing_to_do_now,
        due_finds_what_only_needs_closing,
        promote_takes_only_what_is_due,
        a_stray_is_paused_when_nobody_served_it_for_long,
        a_stray_that_is_served_elsewhere_is_never_paused,
        a_stray_that_was_resumed_is_waited_for_anew,
        pause_needs_the_lease,
        a_late_close_does_not_undo_a_resume,
        close_finishes_only_what_has_nothing_open,
        close_without_the_lease_does_nothing,
        close_of_a_paused_task_leaves_it_paused,
        what_is_made_open_before_a_close_keeps_it_open,
        what_is_made_open_after_a_close_reopens_it,
        close_and_requeue_at_once_lose_nothing,
        a_target_committed_after_the_close_is_found,
        a_target_added_long_after_the_close_is_shown_and_found_when_asked_for,
        a_task_without_targets_is_waited_for_then_paused;
    pace:
        the_clock_is_the_databases,
        slots_of_two_stores_never_overlap_and_leave_no_gap,
        slots_are_exact_to_the_microsecond,
        the_first_slot_is_at_once_and_the_next_a_span_later,
        idle_time_is_not_saved_up,
        a_slot_beyond_the_horizon_is_not_taken,
        a_channel_whose_rate_is_used_up_is_due_and_a_held_one_is_not,
        a_hold_moves_the_slots_and_never_nearer,
        a_held_channel_is_not_due_until_its_hold_ends,
        holds_double_up_to_most_and_start_anew_after_a_quiet_time,
        a_hold_never_shortens_another;
    suppression:
        who_is_suppressed_is_not_begun,
        who_is_suppressed_after_the_claim_is_not_begun,
        in_doubt_and_suppressed_is_unknown,
        letters_and_blanks_make_no_difference,
        an_application_suppresses_with_plain_sql,
        a_begin_of_which_all_are_suppressed_settles_all_the_same,
        suppression_leaves_what_is_not_ours,
        repeated_suppressions_are_merged_and_the_first_stays,
        a_suppression_that_does_not_fit_is_refused_and_not_cut,
        a_suppression_ends_for_its_own_channel_alone,
        suppressions_are_listed_in_order,
        acts_on_suppressions_are_audited;
    desk:
        migrate_twice_is_migrate_once,
        migrate_at_once_makes_one_installation,
        migrate_waits_for_live_leases,
        migrate_refuses_a_newer_database,
        migrate_refuses_a_file_that_was_changed,
        migrate_takes_version_1_along_with_its_rows,
        tables_are_dropped_and_made_again,
        a_task_is_created_as_a_draft,
        a_relative_time_is_counted_by_the_database,
        repeats_are_merged_and_the_first_stays,
        what_is_too_long_is_refused_and_not_cut,
        add_reopens_a_finished_task_and_refuses_a_cancelled_one,
        every_turn_starts_from_its_own_statuses_only,
        turns_leave_their_traces,
        cancel_ends_a_task_with_nothing_in_flight,
        cancel_leaves_no_doubt_behind,
        targets_are_listed_in_the_order_of_id,
        an_error_of_each_ends_the_list,
        a_snapshot_is_of_one_moment,
        a_snapshot_tells_what_a_report_needs,
        a_snapshot_is_of_one_task,
        peek_shows_what_is_left_and_claims_nothing,
        one_target_is_shown_whatever_its_status,
        counts_add_up,
        a_finished_task_answers_from_what_close_froze,
        targets_are_looked_up_by_id_and_by_recipient,
        resolve_settles_only_what_is_unknown,
        resolve_recovers_first,
        resolve_as_retry_keeps_the_key_and_the_token,
        a_verdict_in_a_finished_task_changes_its_counts,
        requeue_gives_failed_targets_a_new_key,
        requeue_opens_only_those_that_are_named,
        a_cancelled_task_opens_nothing;
    purge:
        only_what_ended_long_ago_is_purged,
        a_purge_takes_a_task_whole_and_leaves_the_others,
        unknown_targets_keep_their_task_unless_they_are_meant,
        a_condemned_task_is_opened_by_nobody,
        what_is_opened_before_a_purge_is_left_alone,
        what_comes_while_a_task_is_purged_stays,
        a_task_that_is_opened_by_hand_while_it_is_purged_loses_no_more,
        a_cancelled_task_goes_with_what_was_not_sent,
        a_purge_that_was_killed_is_gone_on_with,
        a_purge_waits_for_what_is_about_to_be_committed,
        a_purge_locks_nothing_of_another_task;
    survey:
        a_course_tells_since_when_something_is_due,
        a_course_tells_who_was_started_resumed_or_paused_since,
        a_course_tells_a_lease_that_was_lost_and_who_is_at_work,
        a_course_tells_what_the_channel_lets_through,
        a_rate_is_told_of_what_a_run_holds,
        details_of_a_task_add_up,
        details_tell_the_commonest_reasons,
        details_tell_the_latest_of_the_audit;
    chaos:
        whatever_is_killed_nothing_is_sent_twice_or_lost;
}
