//! Correct and broken histories for the checkers. Each broken history has one fault. The right checker reports it, and no other checker
//! does. Unusual but correct histories pass.
//!
//! Times are written as in a history's file, or in the short forms of `history`.

mod gone;
mod latches;
mod pools;
mod queues;
mod readers;
mod tokens;

use wheellock_tests::history::{Checker, History, check};

/// Returns the checkers that complain without an excuse. Each checker appears once.
fn complaints(text: &str) -> Vec<Checker> {
    let mut found: Vec<Checker> = check(&history(text))
        .into_iter()
        .filter(|verdict| verdict.excuse.is_none())
        .map(|verdict| verdict.checker)
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns a history under the usual terms. Leases last up to 600 ms, the response timeout is 1 s, and wake-ups take at most 200 ms. Two
/// short forms are in milliseconds. `@250` is a time, and `=600` is a duration.
fn history(text: &str) -> History {
    let mut whole = String::from("0 0 0 0 - setup 600000000 1000000000 200000000\n");
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words = line.split(' ').map(|word| match word.strip_prefix(['@', '=']) {
            Some(millis) => (millis.parse::<f64>().expect("milliseconds") * 1e6).round().to_string(),
            None => word.to_owned(),
        });
        whole += &words.collect::<Vec<_>>().join(" ");
        whole.push('\n');
    }
    History::merge(History::parse(&whole).unwrap())
}

/// A acquires at 10 ms, works, and releases at 100 ms. Each test adds the rest.
const A: &str = "@10 1 1 1 l invoked acquire true =600 - -
    @12 1 1 1 l granted a:1 @600
    @13 1 1 1 l entered 1
    @100 1 1 1 l releasing
    @101 1 1 1 l released
    ";

/// A holds the lock with a watchdog lease, and the hold has not ended.
const A_HOLDS: &str = "@10 1 1 1 l invoked acquire true =600 - -
    @12 1 1 1 l granted a:1 @600
    ";

fn broken(text: &str, by: Checker) {
    assert_eq!(complaints(text), [by], "{text}\n{:#?}", check(&history(text)));
}

fn right(text: &str) {
    assert_eq!(complaints(text), [], "{text}\n{:#?}", check(&history(text)));
}

#[test]
fn b01_two_holders_at_once() {
    let other = "@50 2 1 1 l invoked acquire true =600 - -
        @60 2 1 1 l granted b:1 @640
        @120 2 1 1 l releasing
        @121 2 1 1 l released";
    broken(&format!("{A}{other}"), Checker::Exclusion);
}

#[test]
fn b02_next_grant_precedes_release() {
    let other = "@50 2 1 1 l invoked acquire true =600 - -
        @99.9 2 1 1 l granted b:1 @640
        @120 2 1 1 l releasing
        @121 2 1 1 l released";
    broken(&format!("{A}{other}"), Checker::Exclusion);
}

#[test]
fn b03_overlap_found_behind_short_hold() {
    let text = format!(
        "{A_HOLDS}
        @200 1 1 1 l moved @800
        @400 1 1 1 l moved @1000
        @500 1 1 1 l moved @1100
        @900 2 1 1 l invoked try true =600 - -
        @901 2 1 1 l granted b:1 @1490
        @910 2 1 1 l dropped
        @1000 1 1 1 l releasing
        @1001 1 1 1 l released"
    );
    broken(&text, Checker::Exclusion);
}

#[test]
fn b04_witness_contradicts_valid_guard() {
    broken(&format!("{A}@50 1 1 1 l overlap 2"), Checker::Witness);
}

#[test]
fn b05_lossless_fault_excuses_no_double_grant() {
    let text = format!(
        "{A}@40 0 0 0 - begins down -
        @45 0 0 0 - ends down
        @50 2 1 1 l invoked acquire true =600 - -
        @60 2 1 1 l granted b:1 @640
        @120 2 1 1 l releasing
        @121 2 1 1 l released"
    );
    broken(&text, Checker::Exclusion);
}

#[test]
fn b06_later_data_loss_excuses_nothing() {
    let text = format!(
        "{A}@50 2 1 1 l invoked acquire true =600 - -
        @60 2 1 1 l granted b:1 @640
        @70 0 0 0 - begins forgot -
        @75 0 0 0 - ends forgot
        @120 2 1 1 l releasing
        @121 2 1 1 l released"
    );
    broken(&text, Checker::Exclusion);
}

#[test]
fn b07_a_release_wakes_nobody() {
    let text = format!(
        "{A}@50 2 1 1 l invoked acquire true =600 - -
        @500 2 1 1 l granted b:1 @1000
        @510 2 1 1 l releasing
        @511 2 1 1 l released"
    );
    broken(&text, Checker::WakeUps);
}

#[test]
fn b08_a_dropped_guard_wakes_nobody() {
    let text = format!(
        "{A_HOLDS}@100 1 1 1 l dropped
        @50 2 1 1 l invoked try-for true =600 @450 -
        @450.5 2 1 1 l not-granted"
    );
    broken(&text, Checker::WakeUps);
}

#[test]
fn b09_woken_waiter_leaves_next_asleep() {
    let text = format!(
        "{A}@50 2 1 1 l invoked try-for true =600 @150 -
        @150.3 2 1 1 l not-granted
        @60 2 2 2 l invoked acquire true =600 - -
        @600 2 2 2 l granted b:2 @1100
        @601 2 2 2 l releasing
        @602 2 2 2 l released"
    );
    broken(&text, Checker::WakeUps);
}

#[test]
fn b10_dead_holder_is_succeeded_late() {
    let text = format!(
        "{A_HOLDS}@1 1 0 0 - started
        @100 1 0 0 - killed
        @50 2 1 1 l invoked acquire true =600 - -
        @2000 2 1 1 l granted b:1 @2500
        @2001 2 1 1 l releasing
        @2002 2 1 1 l released"
    );
    broken(&text, Checker::WakeUps);
}

#[test]
fn b11_wait_exceeds_deadline() {
    let text = format!(
        "{A_HOLDS}@100 1 1 1 l moved @900
        @50 2 1 1 l invoked try-for true =600 @150 -
        @650 2 1 1 l not-granted
        @700 1 1 1 l releasing
        @701 1 1 1 l released"
    );
    broken(&text, Checker::Liveness);
}

#[test]
fn b12_a_wait_never_ends() {
    broken("@50 2 1 1 l invoked acquire true =600 - -\n@51 2 0 0 - begins flushed -", Checker::Liveness);
}

#[test]
fn b13_wait_outlasts_last_fault() {
    let text = "@50 2 1 1 l invoked acquire true =600 - -
        @60 0 0 0 - begins silent -
        @100 0 0 0 - ends silent
        @100 0 0 0 - healed
        @9000 2 1 1 l failed maybe-executed late
        @9001 0 0 0 - begins silent -";
    // The error itself would be explained only by a fault at that time.
    assert_eq!(complaints(text), [Checker::Liveness, Checker::Honesty]);
    broken(&text.replace("failed maybe-executed late", "cancelled"), Checker::Liveness);
}

#[test]
fn b14_a_release_hangs() {
    broken(
        &format!("{A_HOLDS}@100 1 1 1 l releasing\n@400 1 1 1 l moved @900\n@2000 1 1 1 l released"),
        Checker::Liveness,
    );
}

#[test]
fn b15_a_process_vanishes() {
    broken("@5 1 0 0 - started\n@6 2 0 0 - started\n@7 2 0 0 - finished", Checker::Liveness);
}

#[test]
fn b16_free_lock_reported_held() {
    broken("@50 2 1 1 l invoked try true =600 - -\n@51 2 1 1 l not-granted", Checker::Honesty);
    let long_after = format!("{A}@5000 2 1 1 l invoked try true =600 - -\n@5001 2 1 1 l not-granted");
    broken(&long_after, Checker::Honesty);
}

#[test]
fn b17_wait_ends_before_deadline() {
    let text = format!(
        "{A_HOLDS}@50 2 1 1 l invoked try-for true =600 @150 -
        @140 2 1 1 l not-granted
        @500 1 1 1 l releasing
        @501 1 1 1 l released"
    );
    broken(&text, Checker::Honesty);
}

#[test]
fn b18_an_error_without_a_cause() {
    for outcome in ["not-sent", "rejected", "maybe-executed"] {
        let text = format!("@50 2 1 1 l invoked try true =600 - -\n@51 2 1 1 l failed {outcome} why");
        broken(&text, Checker::Honesty);
    }
    broken(&format!("{A_HOLDS}@100 1 1 1 l releasing\n@101 1 1 1 l unconfirmed why"), Checker::Honesty);
}

#[test]
fn b19_lost_without_a_cause() {
    for reason in ["expired", "not-owner"] {
        let text = format!(
            "{A_HOLDS}@100 1 1 1 l lost {reason} @600
            @101 1 1 1 l releasing
            @102 1 1 1 l already-lost"
        );
        broken(&text, Checker::Honesty);
    }
    // The watchdog should have renewed this lease.
    let text = format!("{A_HOLDS}@590 1 1 1 l lost expired @600\n@591 1 1 1 l dropped");
    broken(&text, Checker::Honesty);
}

#[test]
fn b20_release_reports_loss_without_cause() {
    broken(&format!("{A_HOLDS}@100 1 1 1 l releasing\n@101 1 1 1 l already-lost"), Checker::Honesty);
}

#[test]
fn b21_unexecuted_acquire_holds_lock() {
    for outcome in ["not-sent", "rejected"] {
        let text = format!(
            "@40 0 0 0 - begins cut -
            @41 0 0 0 - ends cut
            @50 2 1 1 l invoked try true =600 - b:1
            @51 2 1 1 l failed {outcome} why
            @60 0 0 0 l holder b:1"
        );
        broken(&text, Checker::Honesty);
    }
}

#[test]
fn b22_refused_acquire_holds_lock() {
    let text = format!(
        "{A}@50 2 1 1 l invoked try true =600 - b:1
        @51 2 1 1 l not-granted
        @60 0 0 0 l holder b:1"
    );
    broken(&text, Checker::Honesty);
}

#[test]
fn b23_double_grant_unreported_after_renewal() {
    let text = "@10 1 1 1 l invoked acquire true =600 - -
        @12 1 1 1 l granted a:1 @600
        @40 0 0 0 - begins forgot -
        @41 0 0 0 - ends forgot
        @50 2 1 1 l invoked acquire true =600 - -
        @60 2 1 1 l granted b:1 @640
        @200 1 1 1 l moved @790
        @590 2 1 1 l dropped
        @595 1 1 1 l releasing
        @596 1 1 1 l released";
    broken(text, Checker::Honesty);
    // The complaint remains if the second hold was short.
    let short = text.replace("@590 2 1 1 l dropped", "@61 2 1 1 l dropped");
    broken(&short, Checker::Honesty);
    // With many servers, a server that joins late replaces a server that forgot, unless another client still holds the lock.
    right(&format!("@1 0 0 0 - majority\n{short}"));
    broken(&format!("@1 0 0 0 - majority\n{text}"), Checker::Honesty);
}

#[test]
fn b24_something_is_left_behind() {
    for what in ["keys%20left", "channels%20left", "waiters"] {
        broken(&format!("{A}@900 0 0 0 - probe {what} 1 0"), Checker::Leaks);
    }
}

#[test]
fn b25_expired_guard_claims_lock() {
    let text = format!(
        "{A_HOLDS}@601 1 1 1 l claimed @600
        @601.1 1 1 1 l dropped"
    );
    broken(&text, Checker::Validity);
}

#[test]
fn b26_lost_guard_claims_lock() {
    let text = "@10 1 1 1 l invoked acquire false =600 - -
        @12 1 1 1 l granted a:1 @600
        @580 1 1 1 l lost expired @600
        @585 1 1 1 l claimed @1200
        @590 1 1 1 l dropped";
    broken(text, Checker::Validity);
}

#[test]
fn b27_loss_is_reported_late() {
    let text = "@10 1 1 1 l invoked acquire false =600 - -
        @12 1 1 1 l granted a:1 @600
        @650 1 1 1 l lost expired @600
        @651 1 1 1 l dropped";
    broken(text, Checker::Validity);
}

#[test]
fn b28_loss_is_never_reported() {
    let text = "@10 1 1 1 l invoked acquire false =600 - -
        @12 1 1 1 l granted a:1 @600
        @1500 1 1 1 l releasing
        @1501 1 1 1 l already-lost";
    broken(text, Checker::Validity);
}

#[test]
fn b29_a_stale_write_is_accepted() {
    let text = format!("{A}@50 1 1 1 l wrote 2 0 true\n@60 1 1 1 l wrote 1 2 true");
    broken(&text, Checker::Validity);
}

#[test]
fn b30_release_succeeds_after_expiry() {
    let text = "@10 1 1 1 l invoked acquire false =600 - -
        @12 1 1 1 l granted a:1 @600
        @601 1 0 0 - stalled @3000
        @3000 1 1 1 l releasing
        @3001 1 1 1 l released";
    broken(text, Checker::Honesty);
}

#[test]
fn b31_lock_stays_after_release() {
    broken(&format!("{A}@101.1 0 0 0 l holder a:1\n@400 0 0 0 l holder a:1"), Checker::Leaks);
    broken(&format!("{A_HOLDS}@100 1 1 1 l dropped\n@500 0 0 0 l holder a:1"), Checker::Leaks);
    let killed_at =
        |at| format!("{A_HOLDS}@100 1 1 1 l dropped\n@{at} 1 0 0 - killed\n@500 0 0 0 l holder a:1");
    broken(&killed_at(400), Checker::Leaks);
    broken(&format!("{A}@101.1 1 0 0 - killed\n@400 0 0 0 l holder a:1"), Checker::Leaks);
    // The process may have been killed before it sent anything.
    right(&killed_at(101));
}

#[test]
fn b32_cancelled_acquire_keeps_lock() {
    let text = "@50 2 1 1 l invoked acquire true =600 - b:1
        @51 2 1 1 l cancelled
        @400 0 0 0 l holder b:1";
    broken(text, Checker::Leaks);
}

#[test]
fn right_early_timeout_wakes_no_waiter() {
    let text = format!(
        "@1 1 0 0 - started
        {A_HOLDS}@100 1 0 0 - killed
        @50 2 1 1 l invoked try-for true =600 @110 -
        @110.1 2 1 1 l not-granted
        @60 2 2 2 l invoked acquire true =600 - -
        @610 2 2 2 l granted b:1 @1200
        @620 2 2 2 l dropped"
    );
    right(&text);
}

#[test]
fn right_one_after_the_other() {
    let text = format!(
        "{A}@50 2 1 1 l invoked acquire true =600 - -
        @100.4 2 1 1 l granted b:1 @690
        @101 2 1 1 l dropped
        @110 1 0 0 - finished"
    );
    right(&text);
    right(A);
    right("");
}

/// A process learns late of a jump of the server's clock. It shortens a lease that was granted after the jump.
#[test]
fn b63_only_clock_jump_shortens_lease() {
    let text = "@100 0 0 0 - begins clock -
        @200 0 0 0 - ends clock
        @1600 0 0 0 - begins forgot -
        @1601 0 0 0 - ends forgot
        @2336 1 1 1 l invoked acquire false =600 - -
        @2337 1 1 1 l granted a:1 @2928
        @2365 1 1 1 l lost expired @2190
        @2366 1 1 1 l dropped";
    right(text);
    broken(&text.replace("clock", "slow"), Checker::Validity);
}

#[test]
fn right_data_loss_without_overlap() {
    let text = format!(
        "{A}@90 0 0 0 - begins forgot -
        @91 0 0 0 - ends forgot
        @50 2 1 1 l invoked acquire true =600 - -
        @100 2 1 1 l granted b:1 @640
        @110 2 1 1 l dropped"
    );
    right(&text);
}

#[test]
fn right_forgotten_holder_is_notified_soon() {
    let text = "@10 1 1 1 l invoked acquire true =600 - -
        @12 1 1 1 l granted a:1 @600
        @40 0 0 0 - begins forgot -
        @41 0 0 0 - ends forgot
        @50 2 1 1 l invoked acquire true =600 - -
        @60 2 1 1 l granted b:1 @640
        @210 1 1 1 l lost not-owner @600
        @211 1 1 1 l releasing
        @212 1 1 1 l already-lost
        @300 2 1 1 l dropped";
    right(text);
    let verdicts = check(&history(text));
    assert_eq!(verdicts.len(), 1, "counted all the same: {verdicts:?}");
}

/// Simulated fleets found this with seed 11584. The reply was on its way when the server lost its data.
#[test]
fn right_forgotten_grant_has_late_reply() {
    let text = "@30 2 1 1 l invoked acquire true =600 - -
        @40 0 0 0 - begins forgot -
        @41 0 0 0 - ends forgot
        @50 1 1 1 l invoked acquire true =600 - -
        @60 1 1 1 l granted a:1 @640
        @70 2 1 1 l granted b:1 @620
        @90 2 1 1 l dropped
        @120 1 1 1 l releasing
        @121 1 1 1 l released";
    right(text);
    broken(&text.replace("forgot", "cut"), Checker::Exclusion);
    broken(&text.replace("@30 2", "@45 2"), Checker::Exclusion);
    let told_late = text
        .replace("@90 2 1 1 l dropped", "@200 2 1 1 l moved @790")
        .replace("@120", "@595")
        .replace("@121", "@596");
    broken(&format!("{told_late}\n@650 2 1 1 l dropped"), Checker::Honesty);
}

/// Simulated fleets found this with seed 15365. Both holders were granted the lock in one moment, and one of them was told of the loss.
#[test]
fn right_data_loss_notifies_one_holder() {
    let text = "@10 1 1 1 l invoked acquire true =600 - -
        @20 2 1 1 l invoked acquire true =600 - -
        @30 0 0 0 - begins forgot -
        @31 0 0 0 - ends forgot
        @40 1 1 1 l granted a:1 @632
        @40 2 1 1 l granted b:1 @632
        @42 1 1 1 l lost not-owner @632
        @200 2 1 1 l moved @790
        @590 2 1 1 l dropped";
    right(text);
    let untold =
        text.replace("@42 1 1 1 l lost not-owner @632", "@200 1 1 1 l moved @790\n@589 1 1 1 l dropped");
    broken(&untold, Checker::Honesty);
}

/// Simulated fleets found this with seed 13819. The server may have lost a hold before a second task requests its hand-over.
#[test]
fn right_lost_hold_is_handed_over() {
    let text = "@10 1 1 1 l invoked acquire true =600 - -
        @20 1 1 1 l granted a:1 @600
        @30 0 0 0 - begins forgot -
        @31 0 0 0 - ends forgot
        @40 1 2 2 l invoked acquire true =600 - -
        @41 1 1 1 l releasing
        @41 1 1 1 l released
        @41 1 2 2 l granted a:2 @600
        @42 1 2 2 l releasing
        @45 1 2 2 l already-lost";
    right(text);
    broken(&text.replace("granted a:2 @600", "granted a:2 @630"), Checker::Honesty);
}

#[test]
fn right_forgotten_extension_expires_early() {
    let text = "@10 1 1 1 l invoked acquire false =600 - -
        @12 1 1 1 l granted a:1 @600
        @40 0 0 0 - begins forgot -
        @41 0 0 0 - ends forgot
        @105 1 1 1 l lost expired @100
        @106 1 1 1 l dropped";
    right(text);
    // The server forgot nothing.
    broken(&text.replace("forgot", "cut"), Checker::Validity);
    // The lease was never longer.
    broken(&text.replace("@600", "@100"), Checker::Validity);
}

#[test]
fn right_the_same_owner_holds_twice() {
    let text = format!(
        "{A}@20 1 1 2 l invoked again true =600 - a:1
        @21 1 1 2 l granted a:1 @620
        @30 1 1 2 l releasing
        @31 1 1 2 l released
        @25 2 1 1 l invoked acquire true =600 - -
        @101.5 2 1 1 l granted b:1 @690
        @102 2 1 1 l dropped"
    );
    right(&text);
}

#[test]
fn right_resumed_holder_learns_of_loss() {
    let text = format!(
        "{A_HOLDS}@100 1 0 0 - stopped
        @50 2 1 1 l invoked acquire true =600 - -
        @612 2 1 1 l granted b:1 @1200
        @613 2 1 1 l entered 2
        @650 2 1 1 l wrote 2 0 true
        @660 2 1 1 l dropped
        @1900 1 0 0 - continued
        @1901 1 1 1 l disclaimed
        @1902 1 1 1 l wrote 1 2 false
        @1903 1 1 1 l lost expired @600
        @1904 1 1 1 l releasing
        @1905 1 1 1 l already-lost"
    );
    right(&text);
}

/// Process 0 is the campaign itself, which watches the CPUs. The thread of the timer that ends the wait may run on the stopped CPU.
#[test]
fn right_stalled_cpu_delays_timeout() {
    let late = format!(
        "{A_HOLDS}@50 2 1 1 l invoked try-for true =600 @404 -
        @698 2 1 1 l not-granted
        @700 1 1 1 l releasing
        @701 1 1 1 l released"
    );
    broken(&late, Checker::Liveness);
    broken(&format!("{late}\n@300 0 0 0 - stalled @403"), Checker::Liveness);
    broken(&format!("{late}\n@410 1 0 0 - stalled @690"), Checker::Liveness);
    right(&format!("{late}\n@410 0 0 0 - stalled @690"));
}

#[test]
fn right_killed_holder_succeeded_within_lease() {
    let text = format!(
        "@1 1 0 0 - started
        {A_HOLDS}@100 1 0 0 - killed
        @100.2 1 1 1 l claimed @600
        @50 2 1 1 l invoked acquire true =600 - -
        @610 2 1 1 l granted b:1 @1200
        @620 2 1 1 l dropped"
    );
    right(&text);
}

#[test]
fn right_errors_while_server_is_down() {
    let text = "@40 0 0 0 - begins down -
        @50 2 1 1 l invoked acquire true =600 - b:1
        @60 2 1 1 l failed not-sent refused
        @70 2 1 2 l invoked acquire true =600 - -
        @1070 2 1 2 l failed maybe-executed late
        @1100 0 0 0 - ends down
        @1300 2 1 3 l invoked try true =600 - -
        @1301 2 1 3 l failed not-sent refused
        @1500 2 1 4 l invoked try true =600 - b:1
        @1501 2 1 4 l granted b:1 @2000
        @1502 0 0 0 l holder b:1
        @1503 2 1 4 l dropped";
    right(text);
}

#[test]
fn right_cancelled_acquire_may_hold_lock() {
    let text = "@50 2 1 1 l invoked acquire true =600 - -
        @51 2 1 1 l cancelled
        @51.5 3 1 1 l invoked try true =600 - -
        @52 3 1 1 l not-granted";
    right(text);
}

#[test]
fn right_timed_out_wait_holds_briefly() {
    let text = format!(
        "{A}@50 2 1 1 l invoked try-for true =600 @101.2 b:1
        @101.3 2 1 1 l not-granted
        @101.4 0 0 0 l holder b:1
        @101.5 3 1 1 l invoked try true =600 - -
        @102 3 1 1 l not-granted"
    );
    right(&text);
}

#[test]
fn right_waiter_polls_despite_lost_messages() {
    let text = format!(
        "@5 0 0 0 - begins deaf -
        {A}@50 2 1 1 l invoked acquire true =600 - -
        @700 2 1 1 l granted b:1 @1200
        @701 0 0 0 - ends deaf
        @710 2 1 1 l dropped"
    );
    right(&text);
    // The waiter must send a request in the end.
    let text = text.replace("@700 ", "@5900 ").replace("@701 ", "@5901 ").replace("@710 ", "@5910 ");
    broken(&text.replace("@1200", "@6400"), Checker::WakeUps);
}

#[test]
fn right_renewals_extend_validity() {
    let text = format!(
        "{A_HOLDS}@300 1 1 1 l moved @890
        @500 1 1 1 l claimed @890
        @550 1 1 1 l moved @1140
        @800 1 1 1 l claimed @1140
        @900 1 1 1 l releasing
        @901 1 1 1 l released
        @100 2 1 1 l invoked acquire true =600 - -
        @901.5 2 1 1 l granted b:1 @1490
        @910 2 1 1 l dropped"
    );
    right(&text);
}

/// If the server had forgotten a hold before its release, the release notifies no waiter. A waiter sends a request when the lease that it
/// knows of ends.
#[test]
fn b50_forgotten_hold_delays_waiter_until_expiry() {
    let text = "@10 1 1 1 l invoked acquire false =2000 - -
        @12 1 1 1 l granted a:1 @1980
        @20 2 1 1 l invoked acquire true =600 - -
        @40 0 0 0 - begins forgot -
        @41 0 0 0 - ends forgot
        @1000 1 1 1 l dropped
        @2010 2 1 1 l granted b:1 @2600
        @2020 2 1 1 l releasing
        @2021 2 1 1 l released";
    right(text);
    broken(&text.replace("forgot", "down"), Checker::WakeUps);
    let late = [("@2010", "@2300"), ("@2020", "@2320"), ("@2021", "@2321")];
    broken(&late.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)), Checker::WakeUps);
    // Another process holds the lock meanwhile.
    let of_another = "@900 3 1 1 l invoked acquire false =2000 - -
        @901 3 1 1 l granted c:1 @2880
        @2290 3 1 1 l releasing
        @2291 3 1 1 l released\n";
    right(&late.iter().fold(format!("{of_another}{text}"), |text, (from, to)| text.replace(from, to)));
}

/// B holds the lock for a long time after the faults are over.
#[test]
fn b49_wait_continues_on_free_lock() {
    let text = "@10 2 1 1 l invoked acquire true =4000 - -
        @12 2 1 1 l granted b:1 @4000
        @20 1 1 1 l invoked acquire true =600 - -
        @100 0 0 0 - healed
        @3900 2 1 1 l releasing
        @3901 2 1 1 l released
        @3905 1 1 1 l granted a:1 @4500
        @3910 1 1 1 l releasing
        @3911 1 1 1 l released";
    right(text);
    let free = text.replace("@3900", "@300").replace("@3901", "@301");
    assert_eq!(complaints(&free), [Checker::WakeUps, Checker::Liveness]);
    // The held lock is another lock.
    broken(&text.replace("2 1 1 l", "2 1 1 another"), Checker::Liveness);
}

#[test]
fn right_stale_write_rejected_after_loss() {
    let text = "@10 1 1 1 l invoked acquire true =600 - -
        @12 1 1 1 l granted a:1 @600 7
        @40 0 0 0 - begins forgot -
        @41 0 0 0 - ends forgot
        @50 2 1 1 l invoked acquire true =600 - -
        @60 2 1 1 l granted b:1 @640 8
        @70 2 1 1 l wrote 8 0 true
        @80 1 1 1 l wrote 7 8 false
        @210 1 1 1 l lost not-owner @600
        @211 1 1 1 l releasing
        @212 1 1 1 l already-lost
        @300 2 1 1 l dropped";
    right(text);
    broken(&text.replace("7 8 false", "7 8 true"), Checker::Validity);
}

/// B was granted the lock before the server lost it, and the reply came late. A held the lock by then and has lost nothing.
#[test]
fn right_forgotten_holder_enters_late() {
    let text = format!(
        "@5 2 1 1 l invoked acquire true =600 - -
        @8 0 0 0 - begins forgot -
        @9 0 0 0 - ends forgot
        {A}@30 2 1 1 l granted b:1 @598
        @31 2 1 1 l entered 2
        @32 1 1 1 l overlap 2
        @34 2 1 1 l dropped"
    );
    right(&text);
    let lost_before = text.replace("@8 0", "@3 0").replace("@9 0", "@4 0");
    assert_eq!(complaints(&lost_before), [Checker::Exclusion, Checker::Witness]);
}
