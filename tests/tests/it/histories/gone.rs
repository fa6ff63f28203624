//! Histories of keys that ended owners have left behind. Such keys may be in the way for a limited time.

use super::{Checker, broken, right};

/// A and B read, and B reads for longer. A writer that came meanwhile was told of B's lease. B leaves, and A dies.
#[test]
fn b57_writer_polls_at_known_lease_end() {
    let text = "@1 0 0 0 - setup =1200 =1000 =200
        @10 1 1 1 l invoked acquire true =600 - - shared
        @12 1 1 1 l granted a:1 @610
        @20 2 1 1 l invoked acquire false =1200 - - shared
        @22 2 1 1 l granted b:1 @1200
        @30 3 1 1 l invoked acquire true =600 - -
        @100 2 1 1 l releasing
        @101 2 1 1 l released
        @200 1 0 0 - killed
        @1230 3 1 1 l granted c:1 @1800
        @1240 3 1 1 l dropped";
    right(text);
    broken(&text.replace("@1230", "@1450").replace("@1240", "@1460"), Checker::WakeUps);
    let told_of_no_other = text.replace("b:1 @1200", "b:1 @500");
    broken(&told_of_no_other.replace("false =1200", "false =500"), Checker::WakeUps);
}

/// B's request came late. The lock is then read for a lease that no client knows of.
#[test]
fn b59_late_reader_outlasts_releasing_reader() {
    let text = "@1 0 0 0 - setup =1200 =1000 =200
        @5 2 1 1 l invoked acquire false =1200 - - shared
        @6 0 0 0 - begins slow -
        @20 2 1 1 l failed maybe-executed late
        @21 0 0 0 - ends slow
        @600 1 1 1 l invoked acquire true =300 - - shared
        @602 1 1 1 l granted a:1 @895
        @610 3 1 1 l invoked acquire true =600 - -
        @700 1 1 1 l releasing
        @701 1 1 1 l released
        @1225 3 1 1 l granted c:1 @1800
        @1230 3 1 1 l dropped";
    right(text);
    broken(&text.replace("@1225", "@1430").replace("@1230", "@1440"), Checker::WakeUps);
    broken(&text.replace("failed maybe-executed late", "failed rejected late"), Checker::WakeUps);
    // Of several late requests the last request counts.
    let earlier = "@4 4 1 1 l invoked acquire false =1200 - - shared
        @10 4 1 1 l failed maybe-executed late";
    let granted_later = text.replace("@1225", "@1415").replace("@1230", "@1425");
    right(&format!("{granted_later}\n{earlier}"));
    let is_last = granted_later.replace("failed maybe-executed late", "failed rejected late");
    broken(&format!("{is_last}\n{earlier}"), Checker::WakeUps);
}

/// A server takes over that still knows a writer as a waiter. The writer's process repeats its release, unless the process was shut down.
#[test]
fn b58_failover_lets_gone_writer_block_readers() {
    let text = "@1 0 0 0 - setup =1200 =1000 =200
        @800 2 1 1 l invoked acquire true =600 - - shared
        @802 2 1 1 l granted b:1 @1400
        @850 1 1 1 l invoked acquire true =600 - -
        @900 0 0 0 - begins replaced -
        @1000 2 1 1 l releasing
        @1001 2 1 1 l released
        @1002 1 1 1 l granted a:1 @1600
        @1010 1 1 1 l releasing
        @1011 1 1 1 l released
        @1100 1 0 0 - shut-down
        @1200 0 0 0 - ends replaced
        @1900 2 1 2 l invoked acquire true =600 - - shared
        @6800 2 1 2 l granted b:2 @7400
        @6810 2 1 2 l dropped";
    right(text);
    broken(&text.replace("@1100 1 0 0 - shut-down\n", ""), Checker::Turns);
    broken(
        &text.replace("@6800", "@7500").replace("@6810", "@7600").replace("@7400", "@8100"),
        Checker::Turns,
    );
}

/// A majority has confirmed a release. The third server was silent, and receives the release after another caller's request.
#[test]
fn b60_server_missing_release_refuses() {
    let text = "@1 0 0 0 - setup =1200 =1000 =200
        @1 0 0 0 - majority
        @25 2 1 1 l invoked acquire false =1200 - -
        @45 2 1 1 l granted b:1 @1211
        @77 0 0 0 - begins silent -
        @83 2 1 1 l releasing
        @103 2 1 1 l released
        @208 1 1 1 l invoked try-for true =600 @410 -
        @294 0 0 0 - ends silent
        @508 1 1 1 l not-granted";
    right(text);
    broken(&text.replace("@1 0 0 0 - majority\n", ""), Checker::Honesty);
    broken(&text.replace("@77", "@183"), Checker::Honesty);
}

/// A lock that A held was lost, and B was granted it before A died. No hold ends with A's lease.
#[test]
fn b61_lost_lease_end_frees_nothing() {
    let text = "@1 0 0 0 - setup =6000 =1000 =200
        @10 1 1 1 l invoked acquire false =3000 - -
        @12 1 1 1 l granted a:1 @3000
        @20 0 0 0 - begins forgot -
        @21 0 0 0 - ends forgot
        @30 2 1 1 l invoked acquire false =6000 - -
        @32 2 1 1 l granted b:1 @6000
        @40 3 1 1 l invoked acquire true =600 - -
        @2000 1 0 0 - killed
        @5800 2 1 1 l releasing
        @5801 2 1 1 l released
        @5803 3 1 1 l granted c:1 @6400
        @5810 3 1 1 l dropped";
    right(text);
    let alone: Vec<&str> = text.lines().filter(|line| !line.contains(" 2 1 1 ")).collect();
    broken(&alone.join("\n"), Checker::WakeUps);
}

/// One of three servers was silent and one refused. Neither of two callers had more than one server.
#[test]
fn b64_single_attempt_splits_majority() {
    let text = "@1 0 0 0 - setup =1200 =1000 =200
        @1 0 0 0 - majority
        @73 0 0 0 - begins silent -
        @231 2 1 1 l invoked try-for true =600 @299 -
        @287 1 1 1 l invoked try true =600 - -
        @507 0 0 0 - ends silent
        @527 1 1 1 l not-granted
        @527 2 1 1 l not-granted";
    right(text);
    broken(&text.replace("@1 0 0 0 - majority\n", ""), Checker::Honesty);
}

/// A silent server had granted a lock, and the reply was lost. If callers request several locks at once, no caller is recorded as waiting.
#[test]
fn b65_timed_out_acquire_held_unnoticed() {
    let text = "@1 0 0 0 - setup =1200 =1000 =200
        @89 2 2 1 l invoked try true =600 - -
        @93 1 1 1 l invoked try true =600 @457 -
        @109 2 2 1 l granted #0:1 @681
        @115 2 2 1 l releasing
        @135 2 2 1 l released
        @151 0 0 0 - begins silent -
        @274 2 2 2 l invoked try true =600 - -
        @457 1 1 1 l not-granted
        @534 0 0 0 - ends silent
        @554 2 2 2 l not-granted";
    right(text);
    let alone: Vec<&str> = text.lines().filter(|line| !line.contains(" 1 1 1 ")).collect();
    broken(&alone.join("\n"), Checker::Honesty);
}

/// The lock was granted, the reply was lost, and the server lost its data. The request was repeated when another caller had the lock.
#[test]
fn b66_refused_acquire_held_until_data_loss() {
    let text = "@1 0 0 0 - setup =1200 =1000 =200
        @89 4 2 1 l invoked try true =600 - -
        @102 3 1 1 l invoked try true =600 - -
        @122 3 1 1 l not-granted
        @126 0 0 0 - begins forgot -
        @132 0 0 0 - ends forgot
        @165 3 1 2 l invoked try true =600 - -
        @201 4 2 1 l not-granted
        @212 3 1 2 l granted #0:2 @757
        @235 3 1 2 l dropped";
    right(text);
    broken(&text.replace("forgot", "silent"), Checker::Honesty);
}
