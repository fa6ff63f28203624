//! Histories for the checkers of pools.

use super::{Checker, broken, right};

/// A pool of two permits. A has one permit from 12 to 100, and B has one from 22 to 120.
const POOL: &str = "@1 0 0 0 p pool 2
    @10 1 1 1 p invoked acquire true =600 - - shared
    @12 1 1 1 p granted a1 @600
    @20 2 1 1 p invoked acquire true =600 - - shared
    @22 2 1 1 p granted b1 @600
    @100 1 1 1 p releasing
    @101 1 1 1 p released
    @120 2 1 1 p dropped
    ";

/// Returns a visit, in which another process has `permits` permits of the pool in this time.
fn visit(permits: u32, from: f64, to: f64) -> String {
    format!(
        "@30 3 1 1 p invoked acquire true =600 - - shared
        @30 3 1 1 p takes {permits}
        @{from} 3 1 1 p granted c1 @700
        @{to} 3 1 1 p dropped"
    )
}

#[test]
fn b46_more_than_the_pool_has() {
    right(POOL);
    right(&format!("{POOL}{}", visit(1, 100.0, 130.0)));
    broken(&format!("{POOL}{}", visit(1, 99.9, 130.0)), Checker::Exclusion);
    right(&format!("{POOL}{}", visit(2, 121.0, 130.0)));
    broken(&format!("{POOL}{}", visit(2, 101.5, 130.0)), Checker::Exclusion);
    // A permit that its holder had lost is not counted.
    let lost = POOL.replace("@100 1 1 1 p releasing", "@90 1 1 1 p disclaimed\n@100 1 1 1 p releasing");
    right(&format!("{lost}{}", visit(1, 99.9, 130.0)));
}

#[test]
fn b47_witness_finds_pool_exhausted() {
    let text = format!("{POOL}{}", visit(1, 100.5, 130.0));
    broken(&format!("{text}\n@105 3 1 1 p overlap 0"), Checker::Witness);
    // A holder that no longer relied on its permit was still inside.
    let stale = text.replace("@120 2 1 1 p dropped", "@103 2 1 1 p disclaimed\n@120 2 1 1 p dropped");
    right(&format!("{stale}\n@105 3 1 1 p overlap 0"));
}

#[test]
fn b48_killed_holders_take_wrong_count() {
    let taken = |permits: u32| {
        format!(
            "@1 0 0 0 p pool 5
            @10 1 1 1 p invoked acquire true =600 - - shared
            @10 1 1 1 p takes 2
            @12 1 1 1 p granted - @9000
            @20 1 1 2 p invoked acquire true =600 - - shared
            @40 1 0 0 - killed
            @50 0 0 0 p probe permits%20that%20the%20killed%20took%20along {permits} 99"
        )
    };
    for (permits, is_right) in [(1, false), (2, true), (3, true), (4, false)] {
        if is_right {
            right(&taken(permits));
        } else {
            broken(&taken(permits), Checker::Leaks);
        }
    }
    // Another library does not find out the result of a request without a reply. This library does.
    let fails = "\n@20 2 1 1 p invoked try false =600 - - shared\n@25 2 1 1 p failed maybe-executed -";
    let disturbed = "\n@20 0 0 0 - begins cut -\n@25 0 0 0 - ends cut";
    broken(&format!("{}{fails}{disturbed}", taken(4)), Checker::Leaks);
    let of_others = fails.replace(" 2 1 1 p", " 1002 1 1 p");
    right(&format!("{}{of_others}{disturbed}", taken(4)));
    broken(&format!("{}{of_others}{disturbed}", taken(5)), Checker::Leaks);
}

#[test]
fn b49_permit_lost_without_cause() {
    let text = "@50 1 1 1 p lost not-owner @600\n@100 1 1 1 p releasing\n@101 1 1 1 p already-lost";
    let pool = POOL.replace("@100 1 1 1 p releasing\n    @101 1 1 1 p released\n", "");
    broken(&format!("{pool}{text}"), Checker::Honesty);
}

/// A repeated request came late. The server then kept a permit that was not taken back yet, for one more lease.
#[test]
fn b51_late_request_allows_late_release() {
    let text = "@10 1 1 1 l invoked acquire false =600 - -
        @12 1 1 1 l granted a:1 @595
        @20 1 0 0 - stopped
        @2400 1 0 0 - continued
        @2400 1 1 1 l releasing
        @2410 1 1 1 l released";
    broken(text, Checker::Honesty);
    right(&format!("{text}\n@5 0 0 0 - begins slow -\n@2400 0 0 0 - ends slow"));
    broken(&format!("{text}\n@5 0 0 0 - begins slow -\n@8 0 0 0 - ends slow"), Checker::Honesty);
}
