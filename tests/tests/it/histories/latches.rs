//! Histories for the checkers of latches.

use super::{Checker, broken, right};

/// The latch is set to 2. A waits for it, B counts it down twice, and A continues.
const OPENED: &str = "@10 2 1 1 l changes set 2
    @11 0 0 0 l latch 2 0
    @12 2 1 1 l changed 1
    @20 1 1 1 l awaits -
    @400 2 1 2 l changes count-down
    @401 0 0 0 l latch 1 0
    @402 2 1 2 l changed 1
    @500 2 1 3 l changes count-down
    @501 0 0 0 l latch 0 501
    @502 2 1 3 l changed 0
    @503 1 1 1 l passed
    @900 0 0 0 l probe times%20counted%20down 2 1000000
    ";

#[test]
fn right_opening_latch_wakes_waiter() {
    right(OPENED);
    // A latch that was never set is open. So is a latch that opens and is set again while a caller waits.
    right("@10 1 1 1 l awaits -\n@11 1 1 1 l passed");
    right(&OPENED.replace("l latch 0 501", "l latch 3 501"));
    right(
        &OPENED.replace("awaits -", "awaits @450").replace("@503 1 1 1 l passed", "@450 1 1 1 l not-granted"),
    );
}

#[test]
fn b53_wait_ends_before_opening() {
    broken(&OPENED.replace("@503 1 1 1 l passed", "@450 1 1 1 l passed"), Checker::Honesty);
    broken(&OPENED.replace("l latch 0 501", "l latch 1 0"), Checker::Honesty);
}

#[test]
fn b54_wait_continues_after_opening() {
    broken(&OPENED.replace("@503 1", "@720 1"), Checker::WakeUps);
    broken(&OPENED.replace("l latch 0 501", "l latch 3 501").replace("@503 1", "@720 1"), Checker::WakeUps);
    // A late waiter's request may come after the latch is set again.
    let set_again = OPENED.replace("@20 1 1 1", "@490 1 1 1").replace("l latch 0 501", "l latch 3 501");
    right(
        &set_again
            .replace("awaits -", "awaits @800")
            .replace("@503 1 1 1 l passed", "@800 1 1 1 l not-granted"),
    );
    // A waiter that was cut off learns of the opening afterwards.
    let cut = "@300 0 0 0 - begins cut -\n@600 0 0 0 - ends cut\n";
    right(&format!("{}{cut}", OPENED.replace("@503 1", "@1200 1")));
    broken(&format!("{}{cut}", OPENED.replace("@503 1", "@1900 1")), Checker::WakeUps);
}

#[test]
fn b55_latch_wait_ends_at_wrong_time() {
    let without_end = OPENED.replace("@503 1 1 1 l passed", "");
    broken(&without_end, Checker::Liveness);
    right(&format!("@1 1 0 0 - started\n{without_end}@510 1 0 0 - killed"));
    let up_to = |deadline: u64, end: u64| {
        let waits = OPENED.replace("awaits -", &format!("awaits @{deadline}"));
        waits.replace("@503 1 1 1 l passed", &format!("@{end} 1 1 1 l not-granted"))
    };
    right(&up_to(350, 350));
    broken(&up_to(350, 340), Checker::Honesty);
    let late =
        up_to(350, 800).replace("@500 2", "@790 2").replace("@501 0", "@791 0").replace("@502 2", "@792 2");
    broken(&late, Checker::Liveness);
    let failed = OPENED.replace("@503 1 1 1 l passed", "@503 1 1 1 l failed not-sent -");
    broken(&failed, Checker::Honesty);
    right(&format!("{failed}@300 0 0 0 - begins cut -\n@450 0 0 0 - ends cut"));
}

#[test]
fn b56_count_down_not_applied_once() {
    for times in ["1", "3"] {
        broken(&OPENED.replace("down 2", &format!("down {times}")), Checker::Leaks);
    }
    let unsure = format!("@40 1 1 2 l changes count-down\n@41 1 1 2 l cancelled\n{OPENED}");
    right(&unsure);
    right(&unsure.replace("down 2", "down 3"));
    broken(&unsure.replace("down 2", "down 4"), Checker::Leaks);
    let refused = unsure.replace("l cancelled", "l failed rejected -");
    broken(
        &format!("{refused}@30 0 0 0 - begins slow -\n@50 0 0 0 - ends slow").replace("down 2", "down 3"),
        Checker::Leaks,
    );
}
