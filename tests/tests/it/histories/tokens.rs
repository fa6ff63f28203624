//! Histories for the checker of fencing tokens.

use super::{A, Checker, broken, right};

/// Returns a history in which A and B are granted a lock with tokens, one after the other.
fn fenced(first: u64, second: u64) -> String {
    format!(
        "@10 1 1 1 l invoked acquire true =600 - -
        @12 1 1 1 l granted a:1 @600 {first}
        @100 1 1 1 l releasing
        @101 1 1 1 l released
        @150 2 1 1 l invoked acquire true =600 - -
        @152 2 1 1 l granted b:1 @740 {second}
        @160 2 1 1 l dropped"
    )
}

#[test]
fn b40_a_token_falls() {
    right(&fenced(7, 8));
    right(&fenced(7, 1_700_000_000_000_000));
    broken(&fenced(7, 6), Checker::Tokens);
    // These tokens fall between two concurrent requests, and from a token that is not the latest.
    broken(&fenced(7, 6).replace("@150", "@50"), Checker::Tokens);
    let third = "@200 3 1 1 l invoked acquire true =600 - -\n@201 3 1 1 l granted c:1 @790";
    let last = "@210 3 1 1 l dropped";
    broken(&format!("{}\n{third} 9\n{last}", fenced(7, 10)), Checker::Tokens);
    right(&format!("{}\n{third} 11\n{last}", fenced(7, 10)));
    // Lost data excuses nothing, but a clock that was set back does.
    let lost = "@110 0 0 0 - begins forgot -\n@120 0 0 0 - ends forgot\n";
    broken(&format!("{lost}{}", fenced(7, 6)), Checker::Tokens);
    right(&format!("{}{}", lost.replace("forgot", "clock"), fenced(7, 6)));
    // A clock that was set back long before may not have caught up yet.
    let early = "@1 0 0 0 - begins clock -\n@2 0 0 0 - ends clock\n";
    broken(&format!("{early}{}", fenced(7, 6)), Checker::Tokens);
    right(&format!("{early}{lost}{}", fenced(7, 6)));
}

#[test]
fn b41_a_token_is_given_twice() {
    broken(&fenced(7, 7), Checker::Tokens);
    broken(&fenced(7, 7).replace("@150", "@50"), Checker::Tokens);
}

#[test]
fn b42_reentrant_hold_has_new_token() {
    let text = "@10 1 1 1 l invoked acquire true =600 - -
        @12 1 1 1 l granted a:1 @600 7
        @20 1 1 2 l invoked again true =600 - a:1
        @21 1 1 2 l granted a:1 @600 7
        @30 1 1 2 l dropped
        @40 1 1 1 l dropped";
    right(text);
    broken(
        &text.replace("@21 1 1 2 l granted a:1 @600 7", "@21 1 1 2 l granted a:1 @600 8"),
        Checker::Tokens,
    );
}

#[test]
fn b43_resource_rejects_greatest_token() {
    broken(&format!("{A}@50 1 1 1 l wrote 2 0 true\n@60 1 1 1 l wrote 2 2 false"), Checker::Validity);
}

/// Two leaders sent their requests at once. The leader with the smaller token was first, and its grant was lost.
#[test]
fn b50_token_falls_after_unrelated_loss() {
    let text = "@10 2 1 1 l invoked acquire true =600 - -
        @20 0 0 0 - begins forgot -
        @21 0 0 0 - ends forgot
        @30 1 1 1 l invoked acquire true =600 - -
        @31 1 1 1 l granted a:1 @600 9
        @35 1 1 1 l releasing
        @36 1 1 1 l released
        @40 2 1 1 l granted b:1 @600 7
        @50 2 1 1 l releasing
        @51 2 1 1 l released";
    right(text);
    let lost_at = |from: &str, to: &str| text.replace("@20", from).replace("@21", to);
    broken(&lost_at("@5", "@6"), Checker::Tokens);
    broken(&lost_at("@37", "@38"), Checker::Tokens);
}
