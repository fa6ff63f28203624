//! Bugs planted in the library, each with a test that has to fail because of it: a harness that never bites proves
//! nothing. Owns the list; the bugs are where `planted::bug` is asked.

use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::run;

/// A bug, and what catches it: a package, a test target of it (none for its unit tests), and the test's name.
pub(crate) struct Planted {
    pub(crate) bug: &'static str,
    package: &'static str,
    target: Option<&'static str>,
    pub(crate) test: &'static str,
}

const fn by_test(bug: &'static str, target: &'static str, test: &'static str) -> Planted {
    Planted { bug, package: "wheellock-tests", target: Some(target), test }
}

const fn by_unit_test(bug: &'static str, test: &'static str) -> Planted {
    Planted { bug, package: "wheellock", target: None, test }
}

#[rustfmt::skip]
pub(crate) const ALL: [Planted; 45] = [
    by_test("acquire takes what is held", "locks", "tasks_that_share_a_handle_exclude_each_other"),
    by_test("acquire increments", "redisson_defects", "w01_an_acquire_that_is_repeated_counts_once"),
    by_test("acquire shortens the outer lease", "redisson_defects", "w08_a_lease_belongs_to_one_hold"),
    by_test("release without owner check", "faults_locks", "l23_only_the_owner_releases_and_only_once"),
    by_test("release publishes nothing", "redisson_defects", "w16_no_wake_up_is_missed_between_the_question_and_the_sleep"),
    by_test("release frees the outer hold", "locks", "reentrancy_is_counted_on_the_server"),
    by_test("renewal creates the key anew", "faults_locks", "l03_a_renewal_of_an_expired_key_creates_none"),
    by_test("renewal ends at the first wrong type", "redisson_defects", "w06_one_failing_lock_stops_no_other_renewal"),
    by_test("validity counts from the reply", "faults_locks", "l06_a_grant_slower_than_its_lease_is_never_believed"),
    by_test("a lease is believed beyond its end", "locks", "the_wire_contract_of_a_plain_lock"),
    by_test("a late grant is believed", "faults_locks", "l06_a_grant_slower_than_its_lease_is_never_believed"),
    by_test("watchdog outlives the release", "redisson_defects", "w03_no_renewal_comes_after_a_release"),
    by_test("a late renewal brings a lost lock back", "faults_locks", "l02_a_renewal_that_comes_too_late_resurrects_nothing"),
    by_test("a failed renewal is the last", "faults_locks", "l01_a_renewal_without_an_answer_is_repeated_in_time"),
    by_test("the loss is told late", "locks", "the_watchdog_keeps_a_lock_and_a_fixed_lease_ends"),
    by_test("a dropped acquire is not taken back", "redisson_defects", "w02_an_acquire_given_up_leaves_no_orphan"),
    by_test("a dropped guard is kept", "faults_locks", "c11_whatever_ends_a_holder_frees_its_lock"),
    by_test("a repeated release is taken for a loss", "redisson_defects", "w25_a_release_without_an_answer_is_repeated_and_counts_as_one"),
    by_test("nothing is repeated", "redisson_defects", "w01_an_acquire_that_is_repeated_counts_once"),
    by_test("all tasks are one owner", "redisson_defects", "w27_only_a_presented_owner_enters_again"),
    by_test("nobody stands in line", "redisson_defects", "w19_a_crowd_of_waiters_asks_as_one"),
    by_test("the end of a lease is not looked for", "faults_locks", "l09_the_end_of_a_lease_granted_to_the_same_process_is_not_overslept"),
    by_test("subscriptions stay", "redisson_defects", "w21_a_wait_that_is_over_leaves_no_subscription"),
    by_test("reconnect wakes nobody", "redisson_defects", "w15_a_release_during_a_disconnect_wakes_the_waiter_after_it"),
    by_test("reply slot of a dropped call is forgotten", "faults_client", "c04_dropped_at_every_byte_of_its_reply"),
    by_test("the backlog is forgotten", "operations", "more_guards_than_the_queue_holds_are_all_released"),
    by_test("a set is held while it waits", "multi_lock", "while_a_member_elsewhere_is_busy_nothing_is_kept"),
    by_test("a set has no order", "multi_lock", "what_is_held_while_waiting_comes_before_what_is_waited_for"),
    by_test("a set is held for ever", "multi_lock", "a_circle_with_somebody_who_keeps_no_order_is_broken"),
    by_test("a round waits for everybody", "redlock", "a_broken_minority_changes_nothing"),
    by_test("a split waits for the slowest", "redlock", "a_split_does_not_wait_for_the_slowest"),
    by_test("a late member mends a lost quorum", "redlock", "a_late_member_does_not_mend_what_was_lost"),
    by_test("one member is a quorum", "redlock", "who_grants_late_joins_and_a_later_failure_is_survived"),
    by_test("a dead majority is a busy lock", "redlock", "a_waiter_does_not_take_a_majority_that_dies_for_a_busy_lock"),
    by_test("a server counts twice", "redlock", "only_independent_servers_are_members"),
    by_test("a grant counts before others know", "durability", "t06_without_a_replica_nothing_is_granted_and_with_one_again_everything_is"),
    by_test("a renewal counts before others know", "durability", "a_renewal_that_too_few_know_of_extends_no_belief"),
    by_test("nobody is asked for after a change", "chaos", "holders_whom_a_restarted_server_has_forgotten_learn_it_at_once"),
    by_test("release deletes the holds of others", "other_data", "a_release_leaves_the_holds_of_others"),
    by_test("a set is asked for all at once", "multi_lock", "one_of_ten_contenders_takes_a_free_set"),
    by_test("work that outlived its lease is fine", "closures", "work_that_blocks_beyond_the_lease_is_not_ok"),
    by_test("a short trouble is everybody's", "waits", "an_impatient_waiter_fails_alone"),
    by_unit_test("a grant tells no rival", "holds::model::of_two_owners_to_whom_a_lock_was_granted_the_later_one_holds_it"),
    by_unit_test("the baton is lost", "waiters::tests::a_head_that_leaves_without_the_lock_passes_its_wake_up_on"),
    by_unit_test("jumps of the server's clock go unnoticed", "holds::model::a_jump_of_the_servers_clock_shortens_what_was_not_extended_since"),
];

/// Plants every bug; success only if each is caught.
pub(crate) fn check() -> Result<ExitCode> {
    let uncaught = uncaught()?;
    println!("{} of {} planted bugs caught", ALL.len() - uncaught.len(), ALL.len());
    Ok(if uncaught.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plants one bug after the other, several at a time; returns what was not caught.
pub(crate) fn uncaught() -> Result<Vec<String>> {
    build()?;
    let (left, uncaught) = (Mutex::new(ALL.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|threads| {
        for _ in 0..AT_ONCE {
            threads.spawn(|| {
                while let Some(planted) = left.lock().ok().and_then(|mut left| left.next()) {
                    let verdict = run(planted);
                    let shown =
                        verdict.as_ref().map_or_else(|error| format!("{error:#}"), ToString::to_string);
                    println!("{:<45} {shown} ({})", planted.bug, planted.test);
                    if !matches!(verdict, Ok("caught" | "caught, it hangs"))
                        && let Ok(mut uncaught) = uncaught.lock()
                    {
                        uncaught.push(format!("{}: {shown}", planted.bug));
                    }
                }
            });
        }
    });
    uncaught.into_inner().context("a runner panicked")
}

fn build() -> Result<()> {
    let mut targets: Vec<&str> = ALL.iter().filter_map(|planted| planted.target).collect();
    targets.sort_unstable();
    targets.dedup();
    let mut tests = command(["test", "--quiet", "--no-run", "--package", "wheellock-tests"]);
    run::run(tests.args(targets.iter().flat_map(|target| ["--test", target])))?;
    run::run(&mut command(["test", "--quiet", "--no-run", "--package", "wheellock", "--lib"]))
}

fn run(planted: &Planted) -> Result<&'static str> {
    let mut tests = command(["test", "--quiet", "--package", planted.package]);
    match planted.target {
        Some(target) => tests.args(["--test", target]),
        None => tests.arg("--lib"),
    };
    tests.arg(planted.test).env("WHEELLOCK_PLANTED", planted.bug).env("RUST_BACKTRACE", "0");
    // Its own process group, so that a test that hangs can be ended with all that it started.
    let mut child = tests.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if start.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok("caught, it hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if printed.contains("test result: FAILED") {
        return Ok("caught");
    }
    if !printed.contains("1 passed") && !printed.contains("2 passed") {
        bail!("no such test, or it did not run");
    }
    Ok("NOT CAUGHT")
}

/// Cargo with the bugs compiled in, in a directory of its own.
fn command<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = run::cargo(arguments);
    command
        .env("RUSTFLAGS", "--cfg planted")
        .env("CARGO_TARGET_DIR", run::target_directory().join("planted"));
    command
}

/// The tests mostly wait.
const AT_ONCE: usize = 4;

/// No test takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_lists_every_planted_bug_with_its_test() {
        let page = std::fs::read_to_string(run::root().join("docs/reliability.md")).unwrap();
        for Planted { bug, test, .. } in &ALL {
            let row = page.lines().find(|line| line.starts_with(&format!("| {bug} |")));
            assert!(row.is_some_and(|row| row.contains(test)), "{bug}: {test}");
        }
    }
}
