//! Whole fleets in virtual time. The tests are a short run of `cargo xtask simulate`, and the fleets that have found something.

use wheellock_tests::simulation::{Kind, Night, Plan, run};

fn complaints(seed: u64, kind: Kind) -> Vec<String> {
    run(&Plan::narrow(seed, Some(kind))).complaints.into_iter().map(|verdict| verdict.text).collect()
}

#[test]
fn fleets_of_every_kind_keep_promises() {
    let night = Night { from: 0, seeds: SEEDS, kind: None, at_most: None, until_found: false };
    let morning = night.pass(|_| {});
    assert!(morning.findings.is_empty(), "{:#?}", morning.findings);
    // Every sixteenth seed also has latches. Every fiftieth seed also has a hot process and its visitors. Every 64th seed also has a fleet
    // whose locks survive failovers. Every 32nd seed also has a fleet with limits and tickets.
    let more = SEEDS / 16 + SEEDS / 50 + SEEDS.div_ceil(64) + SEEDS.div_ceil(32);
    assert_eq!(morning.worlds, SEEDS + more);
    assert!(
        morning.grants > 30 * SEEDS && morning.troubles > 2 * SEEDS,
        "something happens in them: {morning:?}"
    );
}

/// A lock that travels is one belief after the other, a minimum keeps others out, and a maximum ends a hold.
#[test]
fn limits_and_tickets_keep_promises() {
    let kind = Some(Kind::Limited);
    let morning = Night { from: 0, seeds: LIMITED, kind, at_most: None, until_found: false }.pass(|_| {});
    assert!(morning.findings.is_empty(), "{:#?}", morning.findings);
    assert!(morning.worlds == LIMITED && morning.grants > 10 * LIMITED, "{morning:?}");
}

/// A failover makes no more permits valid than there are, and no living process loses a renewed permit.
#[test]
fn surviving_permits_keep_promises() {
    let kind = Some(Kind::SurvivingPermits);
    let morning = Night { from: 0, seeds: PERMITS, kind, at_most: None, until_found: false }.pass(|_| {});
    assert!(morning.findings.is_empty(), "{:#?}", morning.findings);
    assert!(morning.worlds == PERMITS && morning.grants > 10 * PERMITS, "{morning:?}");
}

/// Each of these fleets breaks a promise if one rule of the protocol for failovers is missing. `tests/planted` takes out each rule.
#[test]
fn failover_stories_keep_promises() {
    for (rule, seed) in FAILOVER_STORIES {
        let complaints = run(&Plan::of(seed, Some(Kind::Surviving))).complaints;
        let complaints: Vec<_> = complaints.into_iter().map(|verdict| verdict.text).collect();
        assert_eq!(complaints, [""; 0], "seed {seed}: {rule}");
    }
}

/// Identities are random in every run, and so is the order of a process's maps. Neither may change a run.
#[test]
fn a_seed_replays() {
    (0..40).for_each(|seed| assert_replays(seed, None));
}

/// In the named seeds, a changed key concerns both sides of a read-write lock, or a shutdown fails waiters for several locks. Addresses and
/// the order of maps must not decide which waiter wakes first.
#[test]
fn a_surviving_seed_replays() {
    let named = [830_000_018, 830_000_105, 830_000_141, 830_000_153, 830_000_213, 830_000_218, 830_000_288];
    (0..12).chain(named).for_each(|seed| assert_replays(seed, Some(Kind::Surviving)));
}

fn assert_replays(seed: u64, kind: Option<Kind>) {
    let plan = Plan::of(seed, kind);
    let (once, again) = (run(&plan), run(&plan));
    assert_eq!(once.lines(), again.lines(), "seed {seed}");
    assert_eq!(once.hash(), again.hash());
}

/// The first forty seeds give the same hash on every machine. Addresses, the width of words and the time of day do not matter. A change to
/// a world, or to the library's behaviour in it, changes the hash. The failed test then prints the hash to write here.
#[test]
fn a_seed_replays_on_another_machine() {
    let together = (0..40).map(|seed| run(&Plan::of(seed, None)).hash());
    let together = together.fold(0_u64, |all, one| all.rotate_left(5).wrapping_add(one));
    assert_eq!(format!("{together:#018x}"), SEEN);
}

/// The records of counted permits live for a day. A release that the server refused was repeated only after a twentieth of that.
#[test]
fn seed_1088_refused_release_retries_soon() {
    assert_eq!(complaints(1088, Kind::Semaphore), [""; 0]);
}

/// The reply to a request from before a release made the head wait for the end of the lease.
#[test]
fn seed_680_old_reply_delays_no_head() {
    assert_eq!(complaints(680, Kind::Hot), [""; 0]);
    assert_eq!(complaints(513, Kind::Hot), [""; 0]);
}

/// A caller was refused, and joined the queue after the reply to the release. It waited for the end of the old lease.
#[test]
fn seed_400052393_late_caller_hears_of_release() {
    for seed in [400_052_393, 400_073_257] {
        assert!(run(&Plan::of(seed, None)).complaints.is_empty(), "seed {seed}");
    }
}

/// A check of a fixed lease waited for a connection for nearly as long as the lease still ran. The hold was declared lost at once, although
/// the reply did not contradict it.
#[test]
fn seed_400028754_delayed_check_ends_no_lease() {
    assert!(run(&Plan::of(400_028_754, None)).complaints.is_empty());
}

/// A wait ended while a script was sent in full. It failed with the server's reply that the script was missing.
#[test]
fn seed_1985_missing_script_is_no_failure() {
    assert_eq!(complaints(1985, Kind::Hot), [""; 0]);
}

/// A reader sent its request after a writer's release and before the next writer's grant. The reader then slept beyond the end of the
/// second writer's lease.
#[test]
fn seed_85_reader_polls_at_writer_expiry() {
    assert_eq!(complaints(85, Kind::ReadWrite), [""; 0]);
}

/// The server refused to let a waiter leave a fair lock's queue. The waiter repeated that request only after 1.5 s, and was in the way
/// until then.
#[test]
fn seed_2677_refused_leave_retries_soon() {
    assert_eq!(complaints(2677, Kind::Fair), [""; 0]);
}

/// A campaign's announcement was answered long after it had taken effect. The campaign won a leadership that was already lost.
#[test]
fn seed_1408_campaign_wins_no_lost_leadership() {
    assert_eq!(complaints(1408, Kind::Election), [""; 0]);
}

/// A waiter came during a hand-over and could not be handed the lock. It was not subscribed when the lock was released.
#[test]
fn seed_5410_hand_over_newcomer_is_notified() {
    assert_eq!(complaints(5410, Kind::Hot), [""; 0]);
}

/// A request for the state of a hold waited for a connection. The rest of the lease was then counted from before the outage.
#[test]
fn seed_6103_old_request_ends_no_lease() {
    assert_eq!(complaints(6103, Kind::Hot), [""; 0]);
}

/// A process died that held a fair lock and was also first in its queue. The next waiter waits for the end of that queue entry, as for any
/// other dead waiter's entry. The test `b45` of the checkers shows the same.
#[test]
fn seed_16622_dead_holder_may_be_queued() {
    assert_eq!(complaints(16622, Kind::Fair), [""; 0]);
}

/// A writer that waited for 18 ms replaced, on the server, a writer that waited without end. Readers then passed the second writer.
#[test]
fn seed_59324_short_wait_hides_no_writer() {
    assert_eq!(complaints(59324, Kind::ReadWrite), [""; 0]);
}

/// A reader whose wait was shorter than a round trip came after the writer had left. The reader was told that the lock was held.
#[test]
fn seed_130530_reader_ignores_departed_writer() {
    assert!(run(&Plan::of(130_530, None)).complaints.is_empty());
}

/// A reader came after the writer had left and was told that the lock was held. The reader before it was sending a request, because it knew
/// that the writer had left.
#[test]
fn seed_233206_reader_behind_request_ignores_departed_writer() {
    assert!(run(&Plan::of(233_206, None)).complaints.is_empty());
}

/// A wait ended between a grant and its acknowledgements. The wait failed, although the server and its replica replied all the time.
#[test]
fn seed_722_unacknowledged_timeout_is_no_error() {
    for seed in [722, 316, 520] {
        assert!(run(&Plan::of(seed, None)).complaints.is_empty(), "seed {seed}");
    }
}

/// A reader with a short lease took the lock again with a long lease. It released that hold, and still relied on the long lease.
#[test]
fn seed_488161_reader_relies_on_remaining_leases() {
    assert!(run(&Plan::of(488_161, None)).complaints.is_empty());
}

/// A permit's lease ended while everything was stopped. A request that arrived late asked for the permit once more, and the permit was
/// released.
#[test]
fn seed_686620_late_permit_is_released_late() {
    assert!(run(&Plan::of(686_620, None)).complaints.is_empty());
}

/// A writer died while it waited. Its mark for readers expired by a clock that was set back.
#[test]
fn seed_909592_writer_mark_follows_server_clock() {
    assert!(run(&Plan::of(909_592, None)).complaints.is_empty());
}

/// A leader's lease is the watchdog's lease, whatever the step says. The checkers used the step's lease when the leader's process was
/// killed.
#[test]
fn seed_236462_dead_leader_keeps_watchdog_lease() {
    assert!(run(&Plan::of(236_462, None)).complaints.is_empty());
}

/// A beat came in a failover, and its renewal extended nothing. The watchdog waited for the next beat, and the next failover came first.
#[test]
fn seed_1062245376_beat_in_failover_repeats() {
    assert!(run(&Plan::of(1_062_245_376, Some(Kind::Surviving))).complaints.is_empty());
}

/// A renewal waited for a connection, and its reply came right after the watchdog's beat. The lease ended before the next beat, although
/// the server was there to extend it. The loss was reported at that beat.
#[test]
fn seed_108776_late_renewal_reply_triggers_renewal() {
    assert_eq!(complaints(108776, Kind::Hot), [""; 0]);
}

/// Many holds of seconds followed each other. A waiter then waited for longer than the checkers allowed after the last fault.
#[test]
fn seed_37801_long_holds_excuse_wait() {
    assert_eq!(complaints(37801, Kind::Hot), [""; 0]);
}

/// A forced release came late, and removed the hold of that later time.
#[test]
fn seed_51041_forced_release_may_arrive_late() {
    assert_eq!(complaints(51041, Kind::Election), [""; 0]);
}

/// Two leaders were told of their loss. The leader that was elected before the server lost its data was told last.
#[test]
fn seed_64789_lost_leadership_may_report_late() {
    assert_eq!(complaints(64789, Kind::Election), [""; 0]);
}

/// A closed client had no reply after a quarter of a second. It then read the clock again and again until the next millisecond. If the
/// clock does not advance while it is read, this loop has no end.
#[test]
fn seed_110234_closing_client_lets_time_pass() {
    assert!(run(&Plan::of(110_234, None)).complaints.is_empty());
}

/// The server lost its data between two grants of one microsecond, which no real server's clock allows.
#[test]
fn seed_173454_tokens_have_distinct_microseconds() {
    assert!(run(&Plan::of(173_454, None)).complaints.is_empty());
}

/// A shutdown ended the wait for a set. The set had held one of its locks while it waited for the other lock.
#[test]
fn seed_186711_failed_set_may_hold_member() {
    assert!(run(&Plan::of(186_711, None)).complaints.is_empty());
}

/// A caller that only tried was refused, because a campaign still held the lock. The server had refused the announcement of that campaign.
#[test]
fn seed_267414_failed_campaign_may_hold_lock() {
    assert!(run(&Plan::of(267_414, None)).complaints.is_empty());
}

/// The server had forgotten a fixed lease long before its holder released it. Such a release notifies no waiter in another process.
#[test]
fn seed_296463_waiter_awaits_forgotten_lease() {
    assert!(run(&Plan::of(296_463, None)).complaints.is_empty());
}

/// A shutdown had released a lock. A late request for the lock then entered the queue.
#[test]
fn seed_341050_late_queue_entry_is_not_overtaken() {
    assert!(run(&Plan::of(341_050, None)).complaints.is_empty());
}

/// A dead process had two queue entries when the server's clock was set back.
#[test]
fn seed_413883_dead_entry_follows_server_clock() {
    assert!(run(&Plan::of(413_883, None)).complaints.is_empty());
}

/// Managers were shut down while their connections were broken. They could not make the server remove their queue entries.
#[test]
fn seeds_653056_682271_disconnected_shutdown_leaves_entry() {
    for seed in [653_056, 682_271] {
        assert!(run(&Plan::of(seed, None)).complaints.is_empty(), "{seed}");
    }
}

/// A lock was renewed by hand right after its grant. The new end of the hold was not recorded.
#[test]
fn seed_464260_manual_renewal_extends_hold() {
    assert!(run(&Plan::of(464_260, None)).complaints.is_empty());
}

/// A permit's first reply was lost. The second request did not extend the permit's lease on the server.
#[test]
fn seed_324653_repeated_acquire_extends_lease() {
    assert!(run(&Plan::of(324_653, None)).complaints.is_empty());
}

/// The server's clock was set back twice, and then the server forgot the counter. The checkers looked for either fault, but not for both at
/// once.
#[test]
fn seed_10056074_combined_faults_lower_token() {
    assert!(run(&Plan::of(10_056_074, None)).complaints.is_empty());
}

/// Only the old primary granted a lock to a writer. On the new primary the writer still waited, and its mark kept readers out for seconds.
#[test]
fn seed_10171149_grant_lost_leaves_no_mark() {
    assert!(run(&Plan::of(10_171_149, None)).complaints.is_empty());
}

/// A reader's request came late and held the lock for a lease. The last reader that knew of this hold had already left.
#[test]
fn seed_10171154_unknown_read_hold_blocks_writers() {
    assert!(run(&Plan::of(10_171_154, None)).complaints.is_empty());
}

/// A reader came while the reader before it repeated a request. The new reader's short wait ended before the reply. The new reader was told
/// the state from before its arrival.
#[test]
fn seed_30365228_new_reader_ignores_old_state() {
    assert!(run(&Plan::of(30_365_228, None)).complaints.is_empty());
}

/// The server was flushed. The writer's next request was due at the end of the lease that the writer knew of. A reader came before that
/// request.
#[test]
fn seed_30593257_forgotten_writer_may_be_passed() {
    assert!(run(&Plan::of(30_593_257, None)).complaints.is_empty());
}

/// A lock was evicted after a hand-over. The waiter in the same process slept on when the holder learned of the loss, because no message
/// came.
#[test]
fn seed_30737444_local_loss_wakes_waiter() {
    assert!(run(&Plan::of(30_737_444, None)).complaints.is_empty());
}

/// A waiter was shut down while the server refused everything. Its queue entry was in the way of a caller that tried once.
#[test]
fn seed_30616316_unremoved_entry_blocks_try() {
    assert!(run(&Plan::of(30_616_316, None)).complaints.is_empty());
}

/// A request came late, after its connection had broken. It took permits for a waiter that waited behind another waiter. The requests of
/// that other waiter could not find the permits, and both waited for ever.
#[test]
fn seed_40370138_ambiguous_waiter_polls_itself() {
    assert!(run(&Plan::of(40_370_138, None)).complaints.is_empty());
}

/// Two servers took over, one right after the other. The releases were repeated to the first server, which already knew of them. They were
/// not repeated to the second server, which did not know of them. A writer that had left long before kept readers out for seconds.
#[test]
fn seeds_50202258_50228693_new_primary_gets_releases() {
    for seed in [50_202_258, 50_228_693] {
        assert!(run(&Plan::of(seed, None)).complaints.is_empty(), "{seed}");
    }
}

/// The server read a writer's request long after the writer's death. Readers waited behind that writer from then on.
#[test]
fn seed_50279273_dead_writer_request_arrives_late() {
    assert!(run(&Plan::of(50_279_273, None)).complaints.is_empty());
}

/// A reader left whose lease was longer than the lease of the reader that died. A writer had been told of the longer lease.
#[test]
fn seed_50465108_writer_polls_at_known_expiry() {
    assert!(run(&Plan::of(50_465_108, None)).complaints.is_empty());
}

/// A server took over that knew a writer as a waiter. The writer's manager had been shut down.
#[test]
fn seed_50559774_closed_manager_repeats_no_release() {
    assert!(run(&Plan::of(50_559_774, None)).complaints.is_empty());
}

/// Two callers read a latch at once. The first caller read again after it had subscribed, and its wait ended before that reply. The reply
/// found the latch open. The second caller's older reply came meanwhile, and that caller slept on.
#[test]
fn seed_60059904_leaving_while_polling_makes_head_poll() {
    assert!(run(&Plan::of(60_059_904, Some(Kind::Latch))).complaints.is_empty());
}

/// One of three servers came back without its data, and one server lost a lock. Another owner held the lock there and released it before
/// the next renewal. By then the lock was held on the server that had come back instead.
#[test]
fn seed_60530025_late_server_replaces_forgetful_server() {
    assert!(run(&Plan::of(60_530_025, None)).complaints.is_empty());
}

/// A reader's request came late. Its lease ended after the lease of the reader that released the lock.
#[test]
fn seed_60793167_late_lease_outlasts_released_lease() {
    assert!(run(&Plan::of(60_793_167, None)).complaints.is_empty());
}

/// One of three servers was silent when a lock was released. Another server was silent during the whole wait of a second caller. The first
/// server received the release after that caller's request.
#[test]
fn seed_70128881_server_without_release_refuses() {
    assert!(run(&Plan::of(70_128_881, None)).complaints.is_empty());
}

/// A clock was set back by two seconds, and the counter of tokens was lost a second later.
#[test]
fn seed_80108181_clock_set_back_lags_on() {
    assert!(run(&Plan::of(80_108_181, None)).complaints.is_empty());
}

/// A failover lost a lock, and another process held the lock when the first holder died.
#[test]
fn seed_80328334_lost_lock_outlives_old_holder() {
    assert!(run(&Plan::of(80_328_334, None)).complaints.is_empty());
}

/// A writer's wait was so short that its mark had expired by itself when the writer left. The writer behind it slept on, and a reader
/// passed.
#[test]
fn seed_80086990_next_writer_blocks_readers() {
    assert!(run(&Plan::of(80_086_990, None)).complaints.is_empty());
}

/// The server refused a waiter's request, so the waiter could not leave its queue entry either. A caller that tried once was refused
/// because of that entry.
#[test]
fn seed_90367596_refused_waiter_may_leave_entry() {
    assert!(run(&Plan::of(90_367_596, None)).complaints.is_empty());
}

/// A queue entry was in the way of a caller that tried once. The waiter of that entry failed later.
#[test]
fn seed_90408974_waiter_failing_later_blocks_try() {
    assert!(run(&Plan::of(90_408_974, None)).complaints.is_empty());
}

/// A process learned two seconds late of a jump of the server's clock. The server's data were lost as well.
#[test]
fn seed_90977176_clock_jump_is_noticed_late() {
    assert!(run(&Plan::of(90_977_176, None)).complaints.is_empty());
}

/// One of three servers was silent and one refused. Two callers had one server each, and one of these callers tried only once.
#[test]
fn seed_100076679_single_try_may_split_quorum() {
    assert!(run(&Plan::of(100_076_679, None)).complaints.is_empty());
}

/// A caller wanted one lock while others wanted sets. It was granted the lock, got no reply, and gave up. No other caller was recorded as
/// waiting.
#[test]
fn seed_61119367_unanswered_grant_excuses_refusal() {
    assert!(run(&Plan::of(61_119_367, None)).complaints.is_empty());
}

/// The lock was granted but the reply was lost. The server lost its data, and the repeated request was refused.
#[test]
fn seed_61255016_refused_caller_held_lock_before() {
    assert!(run(&Plan::of(61_255_016, None)).complaints.is_empty());
}

/// A process that had held no lock noticed a jump of the server's clock late. The reply told how long the lease still lasted, and the jump
/// shortened this lease once more.
#[test]
fn seed_1008319_jump_shortens_no_told_lease() {
    assert!(run(&Plan::of(1_008_319, Some(Kind::Limited))).complaints.is_empty());
}

/// The primary changed three times within 230 ms. A process paused for longer between its attempts to connect than its hold had left.
#[test]
fn seed_820007948_calm_process_reconnects_in_time() {
    assert!(run(&Plan::of(820_007_948, Some(Kind::Surviving))).complaints.is_empty());
}

/// All processes had shut down, and bytes trickled. The server had not taken the turn in which it notices closed connections.
#[test]
fn seed_840005638_closed_connections_keep_no_channel() {
    assert!(run(&Plan::of(840_005_638, Some(Kind::Surviving))).complaints.is_empty());
}

/// A process had left the lock free for others when its wait ended, and the response timeout had passed since it came. It failed without a
/// request. Now it polls.
#[test]
fn seed_870009918_standing_back_fails_no_wait() {
    assert!(run(&Plan::of(870_009_918, Some(Kind::Surviving))).complaints.is_empty());
}

/// A process had left the lock free for others, for longer than the response timeout. The last poll of a wait had 1 ms for its reply. Now
/// it has a whole response timeout.
#[test]
fn seeds_990136360_1000044600_last_poll_has_time() {
    assert!(run(&Plan::of(990_136_360, Some(Kind::Surviving))).complaints.is_empty());
    assert!(run(&Plan::of(1_000_044_600, Some(Kind::Surviving))).complaints.is_empty());
}

/// A waiter checked its connection's server, which was replaced meanwhile and had an older lease of a permit. The permit was lost at once,
/// though a reclaim could keep it.
#[test]
fn seed_105375_older_lease_ends_no_permit() {
    assert!(run(&Plan::of(105_375, Some(Kind::SurvivingPermits))).complaints.is_empty());
}

/// A caller joined behind a request that waited for the end of a grace. It took an old refusal for the lock's state, and reported a holder.
#[test]
fn seed_970282920_old_refusal_is_no_reply() {
    assert!(run(&Plan::of(970_282_920, Some(Kind::Surviving))).complaints.is_empty());
}

/// A new server granted the lock to a waiter, and refused another task of that process. The process did not count the grant. The error of
/// the wait said that nothing was sent.
#[test]
fn seeds_960003602_870079182_revoked_grant_was_sent() {
    for seed in [960_003_602, 870_079_182, 870_084_030] {
        assert!(run(&Plan::of(seed, Some(Kind::Surviving))).complaints.is_empty(), "seed {seed}");
    }
}

/// A process was stopped while it shut down. Its holds had ended, and its tasks found that only when they ran again.
#[test]
fn seeds_870054300_870068082_stopped_shutdown_has_no_holds() {
    for seed in [870_054_300, 870_068_082] {
        assert!(run(&Plan::of(seed, Some(Kind::Surviving))).complaints.is_empty(), "seed {seed}");
    }
}

/// A process shut down, and a late refresh of it checked in once more. The grace then did not wait for another process.
#[test]
fn seed_930022298_late_refresh_checks_in_nothing() {
    assert!(run(&Plan::of(930_022_298, Some(Kind::Surviving))).complaints.is_empty());
}

/// A replaced primary removed the entry of a process that was at the new primary. Later its replica was promoted, and its grace did not wait for
/// that process.
#[test]
fn seed_890150035_removed_entry_delays_grace() {
    assert!(run(&Plan::of(890_150_035, Some(Kind::Surviving))).complaints.is_empty());
}

/// A server was promoted again with older data. A process that had stayed with it repeated no release, so that the mark of its writer delayed
/// readers for five seconds.
#[test]
fn seeds_880128715_880131829_returned_primary_gets_releases() {
    for seed in [880_128_715, 880_131_829] {
        assert!(run(&Plan::of(seed, Some(Kind::Surviving))).complaints.is_empty(), "seed {seed}");
    }
}

/// A server restarted without data, and the next one failed at once. A process was new there, and got known only with a later refresh. It
/// extended its hold too late.
#[test]
fn seed_890019548_known_process_extends_at_once() {
    assert!(run(&Plan::of(890_019_548, Some(Kind::Surviving))).complaints.is_empty());
}

/// A release began before its hold was written into a new server, and arrived after that server's grace. It was reported as a loss.
#[test]
fn seed_890084459_unwritten_hold_is_released() {
    assert!(run(&Plan::of(890_084_459, Some(Kind::Surviving))).complaints.is_empty());
}

/// A new server had the mark of a writer from before its grant. The writer's release reached no server, so that readers waited for the
/// mark's end.
#[test]
fn seed_890075923_mark_outlasts_lost_release() {
    assert!(run(&Plan::of(890_075_923, Some(Kind::Surviving))).complaints.is_empty());
}

/// Reclaims of other readers changed a key. The hold was then only looked at when it could be extended, and was lost.
#[test]
fn seed_890130244_look_replaces_no_extension() {
    assert!(run(&Plan::of(890_130_244, Some(Kind::Surviving))).complaints.is_empty());
}

/// A beat came while a check was under way, and extended nothing. In a grace the next beat was too late.
#[test]
fn seed_980195516_check_replaces_no_beat() {
    assert!(run(&Plan::of(980_195_516, Some(Kind::Surviving))).complaints.is_empty());
}

/// A grant that did not count had raised a fenced lock's counter. The next guard of an older hold got the counter's token.
#[test]
fn seed_990167628_guards_of_hold_share_token() {
    assert!(run(&Plan::of(990_167_628, Some(Kind::Surviving))).complaints.is_empty());
}

/// See `a_seed_replays_on_another_machine`.
const SEEN: &str = "0xa7215665efae4742";
/// About forty seconds of one processor.
const SEEDS: u64 = 10_000;
/// About four seconds of one processor.
const LIMITED: u64 = 600;
/// About four seconds of one processor.
const PERMITS: u64 = 300;
/// Rules of the protocol for failovers, each with the seed of a fleet that needs the rule.
const FAILOVER_STORIES: [(&str, u64); 10] = [
    ("an empty server is not a new one", 1),
    ("a grace ends early only with a witness", 1),
    ("no lock is acquired in a grace", 6),
    ("a grace counts from an acknowledged refresh", 27),
    ("an entry counts when replicas have acknowledged it", 29),
    ("no lock is acquired beyond the window", 43),
    ("the first refresh on a server adds no entry", 60),
    ("a shutdown ends an acquire that waits for a grace", 136),
    ("only a secure hold is extended in a grace", 717),
    ("a removed entry is added only once its process knows that", 880_080_263),
];
