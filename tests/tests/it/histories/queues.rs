//! Histories for the checkers of fair locks.

use super::{A, Checker, broken, right};

/// B came to the queue before C while A held the lock, and B was served after C.
const OVERTAKEN: &str = "@1 0 0 0 - watched
    @11 0 0 0 l served a:1
    @20 2 1 1 l invoked acquire true =600 - -
    @21 0 0 0 l queued b:1
    @30 3 1 1 l invoked acquire true =600 - -
    @31 0 0 0 l queued c:1
    @101 0 0 0 l served c:1
    @102 3 1 1 l granted c:1 @690
    @110 3 1 1 l releasing
    @111 3 1 1 l released
    @112 0 0 0 l served b:1
    @113 2 1 1 l granted b:1 @700
    @120 2 1 1 l releasing
    @121 2 1 1 l released
    ";

#[test]
fn b44_queued_waiter_is_overtaken() {
    let text = format!("{A}{OVERTAKEN}");
    broken(&text, Checker::Order);
    // The waiter that overtakes B was not even in the queue.
    broken(&text.replace("@31 0 0 0 l queued c:1\n", ""), Checker::Order);
    right(&text.replace("@21 0 0 0 l queued b:1", "@32 0 0 0 l queued b:1"));
    // C was served before and released the lock. A request that came late put C into the queue, so C has overtaken no waiter.
    let asked_late = "@102 3 1 1 l granted c:1 @690
    @110 3 1 1 l releasing
    @111 3 1 1 l released";
    let text_of_late =
        text.replace("@101 0 0 0 l served c:1\n", "").replace(asked_late, "@32 3 1 1 l cancelled");
    right(
        &text_of_late
            .replace("@11 0 0 0 l served a:1", "@10.5 0 0 0 l served c:1\n    @11 0 0 0 l served a:1"),
    );
    // Only lost data excuses the overtaking.
    right(&format!("{text}@40 0 0 0 - begins forgot -\n@41 0 0 0 - ends forgot\n"));
    broken(&format!("{text}@40 0 0 0 - begins down -\n@41 0 0 0 - ends down\n"), Checker::Order);
    broken(&format!("{text}@40 2 0 0 - stalled @90\n"), Checker::Order);
}

/// A waiter becomes the head while A holds a fair lock. It finds out within 2 s that A has died.
#[test]
fn b45_dead_fair_holder_is_succeeded_late() {
    let text = "@1 0 0 0 - watched
        @10 1 1 1 l invoked acquire true =600 - -
        @12 1 1 1 l granted a:1 @600
        @20 2 1 1 l invoked acquire true =600 - -
        @50 1 0 0 - killed
        @2500 2 1 1 l granted b:1 @3100
        @2510 2 1 1 l releasing
        @2511 2 1 1 l released";
    right(text);
    broken(&text.replace("@1 0 0 0 - watched", ""), Checker::WakeUps);
    let late = [("@2500", "@2900"), ("@3100", "@3500"), ("@2510", "@2910"), ("@2511", "@2911")];
    broken(&late.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)), Checker::WakeUps);
}

/// A waiter dies together with the holder. Its entry holds the next waiter up, too, but no longer than any other dead waiter's entry.
#[test]
fn b45_holder_and_head_die_together() {
    let text = "@1 0 0 0 - setup =5000 =1000 =200
        @1 0 0 0 - watched
        @10 1 1 1 l invoked acquire true =600 - -
        @12 1 1 1 l granted a:1 @600
        @20 1 2 2 l invoked acquire true =600 - -
        @30 2 1 1 l invoked acquire true =600 - -
        @50 1 0 0 - killed
        @6900 2 1 1 l granted b:1 @7500
        @6910 2 1 1 l releasing
        @6911 2 1 1 l released";
    right(text);
    broken(&text.replace("@20 1 2 2 l", "@20 1 2 2 another"), Checker::WakeUps);
    let of_another = text.replace("@20 1 2 2 l", "@20 3 2 2 l");
    broken(&format!("{of_another}\n@40 3 2 2 l cancelled"), Checker::WakeUps);
    // A waiter that left right before may not have told the server.
    right(&format!("{text}\n@40 1 2 2 l cancelled"));
    broken(
        &text.replace(
            "l invoked acquire true =600 - -\n        @30",
            "l invoked try true =600 - -\n        @30",
        ),
        Checker::WakeUps,
    );
    let late = [("@6900", "@7300"), ("@7500", "@7900"), ("@6910", "@7310"), ("@6911", "@7311")];
    broken(&late.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)), Checker::WakeUps);
}

/// The queue entry of a dead waiter expires by the server's clock, and later if that clock was set back.
#[test]
fn b45_clock_rollback_prolongs_dead_entry() {
    let text = "@1 0 0 0 - setup =5000 =1000 =200
        @1 0 0 0 - watched
        @10 3 1 1 l invoked acquire false =7000 - -
        @12 3 1 1 l granted c:1 @6940
        @20 1 2 2 l invoked acquire true =600 - -
        @30 2 1 1 l invoked acquire true =600 - -
        @50 1 0 0 - killed
        @6700 3 1 1 l releasing
        @6701 3 1 1 l released
        @7300 2 1 1 l granted b:1 @7900
        @7310 2 1 1 l releasing
        @7311 2 1 1 l released";
    broken(text, Checker::WakeUps);
    right(&format!("{text}\n@1000 0 0 0 - begins clock -\n@2000 0 0 0 - ends clock"));
    broken(&format!("{text}\n@1000 0 0 0 - begins down -\n@2000 0 0 0 - ends down"), Checker::WakeUps);
}

/// A waiter that is shut down while its connection is broken cannot remove its queue entry.
#[test]
fn b45_shut_down_waiter_leaves_entry() {
    let text = "@1 0 0 0 - setup =5000 =1000 =200
        @1 0 0 0 - watched
        @10 3 1 1 l invoked acquire false =2000 - -
        @12 3 1 1 l granted c:1 @1980
        @20 1 2 2 l invoked acquire true =600 - -
        @30 2 1 1 l invoked acquire true =600 - -
        @40 0 0 0 - begins cut -
        @50 1 2 2 l failed not-sent -
        @60 0 0 0 - ends cut
        @1000 3 1 1 l releasing
        @1001 3 1 1 l released
        @5040 2 1 1 l granted b:1 @5640
        @5050 2 1 1 l releasing
        @5051 2 1 1 l released";
    right(text);
    // A fault that begins with the shutdown is the shutdown itself.
    broken(&text.replace("@40 0 0 0", "@50 0 0 0"), Checker::WakeUps);
    // A caller that tries once is refused because of the entry.
    let refused = text
        .replace("@30 2 1 1 l invoked acquire", "@1030 2 1 1 l invoked try")
        .replace("@5040 2 1 1 l granted b:1 @5640", "@1032 2 1 1 l not-granted");
    let refused: String = refused.lines().take(12).map(|line| format!("{line}\n")).collect();
    right(&refused);
    broken(&refused.replace("@40 0 0 0", "@50 0 0 0"), Checker::Honesty);
    // A caller that tries before that is refused, too.
    let before = "@1 0 0 0 - setup =5000 =1000 =200
        @1 0 0 0 - watched
        @10 1 2 2 l invoked acquire true =600 - -
        @20 2 1 1 l invoked try true =600 - -
        @30 2 1 1 l not-granted
        @40 0 0 0 - begins cut -
        @50 1 2 2 l failed not-sent -
        @60 0 0 0 - ends cut";
    right(before);
    broken(&before.replace("@10 1 2 2", "@35 1 2 2"), Checker::Honesty);
}

/// A server that refuses a waiter's request may also refuse to let the waiter leave.
#[test]
fn b62_rejected_waiter_leaves_entry() {
    let text = "@1 0 0 0 - setup =5000 =1000 =200
        @1 0 0 0 - watched
        @10 1 2 2 l invoked acquire true =600 - -
        @40 0 0 0 - begins slow -
        @50 1 2 2 l failed rejected OOM
        @60 0 0 0 - ends slow
        @1000 2 1 1 l invoked try true =600 - -
        @1002 2 1 1 l not-granted";
    right(text);
    broken(&text.replace("@1000 2", "@6000 2").replace("@1002 2", "@6002 2"), Checker::Honesty);
}

#[test]
fn right_unwatched_queue_is_not_judged() {
    let text = format!("{A}{OVERTAKEN}");
    // C may have stood in the queue before.
    let unwatched = text.replace("@1 0 0 0 - watched", "@35 0 0 0 - watched");
    right(&unwatched.replace("@31 0 0 0 l queued c:1\n", ""));
    // The history misses the grant of B. The later event is not that grant.
    let text = format!("{A}{OVERTAKEN}")
        .replace("@112 0 0 0 l served b:1", "@119 0 0 0 - watched\n@119.5 0 0 0 l served b:1")
        .replace("@101 0 0 0 l served c:1", "@118 0 0 0 l served c:1");
    right(&text);
}
