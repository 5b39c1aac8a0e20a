//! What every store must do, stated once: a function for a promise, each with the interleaving that breaks it where the
//! promise is not kept. Run on SQLite by every `cargo test`, and with `--include-ignored` on the MySQL or MariaDB server of
//! `BATCH_SEND_TEST_MYSQL` under both forms of claim. Two stores of one stage share nothing but the database, as two processes
//! would; what is dropped between two calls is a run that was killed there.

mod stage;

mod answers;
mod hands;

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
        begin_takes_nothing_twice,
        begin_counts_the_attempt_and_moves_the_end_of_the_claim,
        begin_settles_in_the_same_commit,
        release_needs_no_lease_and_gives_back_only_what_was_not_begun,
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
        answers_of_several_claims_do_not_cross,
        late_answers_settle_what_recover_gave_up,
        a_late_not_accepted_leaves_doubt_unknown,
        a_late_answer_that_knows_nothing_changes_nothing,
        accepted_wins_from_failed_pending_and_retry,
        accepted_under_another_token_is_an_audited_duplicate,
        an_answer_for_a_target_that_is_gone_is_fenced,
        a_late_answer_keeps_a_finished_task_finished_and_its_counts_true,
        the_window_does_not_slide,
        the_window_is_checked_at_begin,
        doubt_is_remembered_over_a_deferral,
        certainty_ends_the_window,
        a_message_that_differs_is_not_sent_in_doubt,
        without_a_key_nothing_in_doubt_is_sent,
        recover_repeats_only_inside_the_window,
        any_text_survives_a_settle;
}
