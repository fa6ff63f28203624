//! Leader election against real servers.
//!
//! Tests the leader, its successor, and the view of observers.

use std::process::Command;
use std::time::Duration;

use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use wheellock::{Election, Error, Leader, Leadership, LockManager, LostReason, Observer};
use wheellock_tests::locks::{PATIENCE, WOKEN, adjusted, at_rest, gone, manager};
use wheellock_tests::worker::{Outcome, Request, Worker, connect};
use wheellock_tests::{RedisServer, eventually};

const NAME: &str = "scheduler";
const ANNOUNCED: &str = "{scheduler}:wheellock_leader";
const SHORT: Duration = Duration::from_secs(1);

async fn server_and_managers() -> (RedisServer, LockManager, LockManager) {
    let server = RedisServer::start();
    let (here, there) = (manager(&server.url()).await, manager(&server.url()).await);
    (server, here, there)
}

fn at(locks: &LockManager, place: &str) -> Election {
    locks.election(NAME).with_announcement(place)
}

/// Returns the observer's next report.
async fn next(observer: &mut Observer) -> Option<Leader> {
    timeout(WOKEN, observer.changed()).await.expect("a message comes").unwrap()
}

/// Returns the observer's reports up to the first that satisfies `is_it`.
async fn until(observer: &mut Observer, is_it: impl Fn(Option<&Leader>) -> bool) -> Vec<Option<Leader>> {
    let mut seen = Vec::new();
    while !seen.last().is_some_and(|last: &Option<Leader>| is_it(last.as_ref())) {
        seen.push(timeout(PATIENCE, observer.changed()).await.expect("it comes").unwrap());
    }
    seen
}

fn place(leader: Option<&Leader>) -> &str {
    leader.map_or("", Leader::announcement)
}

#[tokio::test]
async fn single_leader_announces_place() {
    let (server, here, there) = server_and_managers().await;
    let mut observer = there.election(NAME).observe();
    assert_eq!(next(&mut observer).await, None, "nobody leads, and that is told at once");
    let leadership = at(&here, "at one place\nor another").try_campaign().await.unwrap().acquired().unwrap();
    assert!(leadership.is_leader());
    let leader = until(&mut observer, |leader| !place(leader).is_empty()).await.pop().flatten().unwrap();
    assert_eq!(leader.announcement(), "at one place\nor another");
    assert_eq!((leader.owner(), leader.token()), (&*leadership.owner().to_string(), leadership.token()));
    assert_eq!(there.election(NAME).leader().await.unwrap().as_ref(), Some(&leader));
    assert!(!at(&there, "there").try_campaign().await.unwrap().is_acquired());
    assert!(
        !there.fenced_lock(NAME).try_acquire().await.unwrap().is_acquired(),
        "it is the fenced lock of its name"
    );

    leadership.announce("elsewhere").await.unwrap();
    assert_eq!(place(next(&mut observer).await.as_ref()), "elsewhere");
    let said = format!("{} {} elsewhere", leadership.owner(), leadership.token());
    assert_eq!(server.cli(&["GET", ANNOUNCED]), said);
    assert_eq!(leadership.run(async { Ok::<_, Error>(42) }).await.unwrap(), 42);
    leadership.resign().await.unwrap();
    assert_eq!(next(&mut observer).await, None, "what it said is nobody's now");
    assert!(gone(&server, NAME).await);

    let guard = here.fenced_lock(NAME).acquire().await.unwrap();
    let leader = there.election(NAME).leader().await.unwrap().unwrap();
    assert_eq!((leader.announcement(), leader.token()), ("", guard.token()), "another one has not said it");
}

#[tokio::test]
async fn messages_wake_an_observer() {
    let (_server, here, there) = server_and_managers().await;
    let mut observer = there.election(NAME).observe();
    let leadership = at(&here, "here").campaign().await.unwrap();
    until(&mut observer, |leader| place(leader) == "here").await;
    let said = async { leadership.announce("elsewhere").await.unwrap() };
    assert_eq!(place(woken_by(said, &there, &mut observer).await.as_ref()), "elsewhere");
    let resigned = async { leadership.resign().await.unwrap() };
    assert_eq!(woken_by(resigned, &there, &mut observer).await, None);
    let mut leadership = None;
    let elected = async { leadership = at(&here, "again").try_campaign().await.unwrap().acquired() };
    assert_eq!(place(woken_by(elected, &there, &mut observer).await.as_ref()), "again");
    assert!(leadership.is_some());
}

/// Returns the report of the observer, one of `locks`, after an event. The event happens when the observer has polled and sleeps.
async fn woken_by(
    happens: impl Future<Output = ()>,
    locks: &LockManager,
    observer: &mut Observer,
) -> Option<Leader> {
    let calls = locks.client().stats().calls;
    let then = async {
        let looked = async || locks.client().stats().calls > calls && at_rest(locks).await;
        assert!(eventually(PATIENCE, looked).await);
        happens.await;
    };
    tokio::join!(next(observer), then).0
}

/// Starts another process that leads.
fn leading(server: &RedisServer) -> Worker {
    let command = Command::new(env!("CARGO_BIN_EXE_lock_worker"));
    let mut worker = Worker::spawn(command, &server.url(), &format!("fenced@{NAME}"), SHORT).unwrap();
    assert_eq!(worker.ask(&Request::Acquire).unwrap().what, Outcome::Acquired);
    worker
}

#[tokio::test]
async fn killed_leader_is_succeeded_within_lease() {
    let server = RedisServer::start();
    let worker = leading(&server);
    let locks = connect(&server.url(), SHORT).await.unwrap();
    let mut observer = locks.election(NAME).observe();
    let first = next(&mut observer).await.expect("the worker leads");
    assert_eq!(first.announcement(), "", "which announces nothing, as Redisson does not");
    assert_eq!(Some(first.token()), locks.fenced_lock(NAME).token().await.unwrap());
    let election = at(&locks, "here");
    let campaign = tokio::spawn(async move { election.campaign().await });
    assert!(eventually(PATIENCE, async || locks.metrics().waiting == 1).await);
    worker.kill().unwrap();
    // Without a message: at the end of the lease, before any regular poll.
    let leadership = timeout(WOKEN, campaign).await.expect("within a lease").unwrap().unwrap();
    assert!(leadership.token() > first.token());
    until(&mut observer, |leader| place(leader) == "here").await;
}

#[tokio::test]
async fn observer_sees_expiry_of_killed_leader() {
    let server = RedisServer::start();
    let worker = leading(&server);
    let locks = manager(&server.url()).await;
    let mut observer = locks.election(NAME).observe();
    assert!(next(&mut observer).await.is_some());
    worker.kill().unwrap();
    assert_eq!(next(&mut observer).await, None);
}

#[tokio::test]
async fn resigning_wakes_next_candidate_immediately() {
    let (_server, here, there) = server_and_managers().await;
    let first = at(&here, "here").campaign().await.unwrap();
    let token = first.token();
    for _ in 0..3 {
        let election = at(&there, "there");
        let campaign = tokio::spawn(async move { election.try_campaign_for(PATIENCE).await });
        assert!(eventually(PATIENCE, async || there.metrics().waiting == 1).await);
        campaign.abort();
        assert!(campaign.await.unwrap_err().is_cancelled());
    }
    let election = at(&there, "there");
    let campaign = tokio::spawn(async move { election.campaign().await });
    assert!(eventually(PATIENCE, async || there.metrics().waiting == 1).await);
    first.resign().await.unwrap();
    let second = timeout(WOKEN, campaign).await.expect("it is woken").unwrap().unwrap();
    assert!(second.is_leader() && second.token() > token);
    // Dropping the leadership resigns, too.
    let election = at(&here, "here");
    let campaign = tokio::spawn(async move { election.campaign().await });
    assert!(eventually(PATIENCE, async || here.metrics().waiting == 1).await);
    drop(second);
    drop(timeout(WOKEN, campaign).await.expect("it is woken").unwrap().unwrap());
}

#[tokio::test]
async fn observers_see_latest_state_rising_tokens() {
    let (server, here, there) = server_and_managers().await;
    let watching = manager(&server.url()).await;
    let mut observers = [watching.election(NAME).observe(), here.election(NAME).observe()];
    let mut latest = 0;
    for turn in 0..20 {
        let (locks, place_of_turn) = ([&here, &there][turn % 2], format!("place {turn}"));
        let leadership = at(locks, &place_of_turn).campaign().await.unwrap();
        for observer in &mut observers {
            let seen = until(observer, |leader| place(leader) == place_of_turn).await;
            let tokens: Vec<u64> = seen.iter().flatten().map(Leader::token).collect();
            assert!(tokens.is_sorted() && tokens[0] > latest, "{tokens:?} after {latest}");
        }
        assert!(leadership.token() > latest);
        latest = leadership.token();
        if turn % 3 == 0 {
            leadership.resign().await.unwrap();
            for observer in &mut observers {
                assert_eq!(next(observer).await, None);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_is_reported_before_next_leader() {
    let server = RedisServer::start();
    let (here, there) = (connect(&server.url(), SHORT).await.unwrap(), manager(&server.url()).await);
    let leadership = at(&here, "here").campaign().await.unwrap();
    let told = tokio::spawn(async move {
        let reason = leadership.lost().await;
        (reason, leadership)
    });
    // The leader cannot renew any more, and other processes get no message about it.
    here.client().close().await;
    let next = timeout(PATIENCE, at(&there, "there").campaign()).await.unwrap().unwrap();
    assert!(told.is_finished(), "it still believes to lead");
    let (reason, leadership): (LostReason, Leadership) = told.await.unwrap();
    assert_eq!(reason, LostReason::Expired);
    assert!(!leadership.is_leader() && leadership.token() < next.token());
    drop(leadership);
    assert!(next.is_leader());
}

#[tokio::test]
async fn lost_message_only_delays_observer() {
    let (server, here, there) = server_and_managers().await;
    let leadership = at(&here, "here").campaign().await.unwrap();
    let mut observer = there.election(NAME).observe();
    until(&mut observer, |leader| place(leader) == "here").await;
    let said = format!("{} {} silently", leadership.owner(), leadership.token());
    assert_eq!(server.cli(&["SET", ANNOUNCED, &said]), "OK");
    until(&mut observer, |leader| place(leader) == "silently").await;
    // After a reconnect, the observer polls.
    drop(leadership);
    assert!(gone(&server, NAME).await);
    until(&mut observer, |leader| leader.is_none()).await;
    let _killed = server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let _leadership = at(&here, "again").campaign().await.unwrap();
    until(&mut observer, |leader| place(leader) == "again").await;
}

/// The announcement lasts for as long as the lease is renewed, and ends with it, however the leadership ends.
#[tokio::test]
async fn announcement_ends_with_leadership() {
    let server = RedisServer::start();
    for end in ["resigned", "dropped", "shut down", "lost", "cut off"] {
        let here = connect(&server.url(), SHORT).await.unwrap();
        let leadership = at(&here, end).campaign().await.unwrap();
        tokio::time::sleep(2 * SHORT).await;
        assert_eq!(server.cli(&["EXISTS", ANNOUNCED]), "1", "{end}: it is renewed");
        match end {
            "resigned" => leadership.resign().await.unwrap(),
            "dropped" => drop(leadership),
            "shut down" => drop(here.shutdown(PATIENCE).await),
            "lost" => assert_eq!(server.cli(&["DEL", NAME]), "1"),
            // As if the process had been killed.
            _ => here.client().close().await,
        }
        assert!(gone(&server, ANNOUNCED).await, "{end}");
        assert!(gone(&server, NAME).await, "{end}");
    }
}

/// Starts a task that leads again and again. It sends the token of each leadership, and ends its first `lost` turns only with a loss.
fn leading_again(election: Election, lost: usize) -> (Receiver<u64>, JoinHandle<Result<u64, Error>>) {
    let (tokens, seen) = channel(8);
    let leading = tokio::spawn(async move {
        let mut turns = 0;
        election
            .lead(async move |leadership| {
                tokens.send(leadership.token()).await.expect("the test listens");
                turns += 1;
                if turns <= lost {
                    std::future::pending::<()>().await;
                }
                Ok(leadership.token())
            })
            .await
    });
    (seen, leading)
}

async fn token(tokens: &mut Receiver<u64>) -> u64 {
    timeout(PATIENCE, tokens.recv()).await.expect("it leads").expect("it goes on")
}

#[tokio::test]
async fn lost_leader_campaigns_again() {
    let server = RedisServer::start();
    let (here, there) = (connect(&server.url(), SHORT).await.unwrap(), manager(&server.url()).await);
    let (mut tokens, leading) = leading_again(at(&here, "here"), 2);
    let first = token(&mut tokens).await;
    // Another process leads in between.
    let election = at(&there, "there");
    let campaign = tokio::spawn(async move { election.campaign().await });
    assert!(eventually(PATIENCE, async || there.metrics().waiting == 1).await);
    assert_eq!(server.cli(&["DEL", NAME]), "1");
    let theirs = timeout(WOKEN, campaign).await.expect("it is woken").unwrap().unwrap();
    assert!(eventually(PATIENCE, async || here.metrics().waiting == 1).await);
    assert!(theirs.is_leader() && tokens.is_empty());
    let theirs_was = theirs.token();
    theirs.resign().await.unwrap();
    let second = token(&mut tokens).await;
    assert!(first < theirs_was && theirs_was < second, "{first} {theirs_was} {second}");
    assert_eq!(server.cli(&["DEL", NAME]), "1");
    let third = token(&mut tokens).await;
    assert!(second < third);
    let result = timeout(PATIENCE, leading).await.expect("the work ends").unwrap();
    assert_eq!(result.unwrap(), third);
    assert_eq!(server.cli(&["EXISTS", NAME]), "0", "it has resigned with confirmation");
}

/// The work of a leadership that was lost does not count, although it ended.
#[tokio::test]
async fn result_of_lost_leadership_is_ignored() {
    let (server, here, _there) = server_and_managers().await;
    let mut turns = 0;
    let election = at(&here, "here");
    let led = election.lead(async |leadership| {
        turns += 1;
        if turns == 1 {
            // No message tells of this loss before the work ends.
            assert_eq!(server.cli(&["DEL", NAME]), "1");
            return Err(leadership.announce("still here").await.unwrap_err());
        }
        Ok(turns)
    });
    assert_eq!(timeout(PATIENCE, led).await.expect("it ends").unwrap(), 2);
}

#[tokio::test]
async fn leader_outlasts_restart_of_server() {
    let mut server = RedisServer::start();
    let here = adjusted(&server.url(), SHORT, |config| config.response_timeout = SHORT / 4).await;
    let (mut tokens, leading) = leading_again(at(&here, "here"), 1);
    let first = token(&mut tokens).await;
    server.kill();
    // Longer than a campaign waits for a reply, so several campaigns fail.
    tokio::time::sleep(3 * SHORT).await;
    assert!(!leading.is_finished(), "it campaigns until the server is back");
    server.restart();
    assert!(token(&mut tokens).await > first);
    timeout(PATIENCE, leading).await.expect("the work ends").unwrap().unwrap();
}

#[tokio::test]
async fn shutdown_ends_leading_and_campaigning() {
    let (_server, here, there) = server_and_managers().await;
    let (mut tokens, leading) = leading_again(at(&here, "here"), usize::MAX);
    token(&mut tokens).await;
    let (_none, campaigning) = leading_again(at(&there, "there"), 0);
    assert!(eventually(PATIENCE, async || there.metrics().waiting == 1).await);
    for (locks, task) in [(there, campaigning), (here, leading)] {
        assert!(locks.shutdown(PATIENCE).await.is_empty());
        let error = timeout(PATIENCE, task).await.expect("it ends").unwrap().unwrap_err();
        assert!(matches!(error, Error::ShutDown { .. }), "{error}");
    }
}

#[tokio::test]
async fn leading_ends_with_lasting_errors() {
    let (server, here, there) = server_and_managers().await;
    let failed = async |_: &Leadership| Err::<(), _>(Error::NoMembers);
    assert!(matches!(at(&here, "here").lead(failed).await, Err(Error::NoMembers)));
    assert!(at(&there, "there").try_campaign().await.unwrap().is_acquired(), "it has resigned");
    assert!(gone(&server, NAME).await);
    let idle = async |_: &Leadership| Ok::<_, Error>(());
    let led = at(&here, &"x".repeat(4097)).lead(idle).await;
    assert!(matches!(led, Err(Error::AnnouncementTooLong { .. })));
    let _done = server.cli(&["SET", NAME, "other data"]);
    assert!(matches!(at(&here, "here").lead(idle).await, Err(Error::OtherData { .. })));
    assert_eq!(server.cli(&["DEL", NAME]), "1");
    let _done = server.cli(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]);
    let error = at(&here, "here").lead(idle).await.unwrap_err();
    assert!(error.to_string().contains("NOPERM"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_is_refused() {
    let (server, here, _there) = server_and_managers().await;
    let long = "x".repeat(4097);
    let error = at(&here, &long).campaign().await.unwrap_err();
    assert!(matches!(error, Error::AnnouncementTooLong { length: 4097, .. }), "{error}");
    assert!(matches!(here.election("").leader().await, Err(Error::InvalidName { .. })));
    assert!(matches!(here.election("").observe().changed().await, Err(Error::InvalidName { .. })));
    let leadership = at(&here, &long[1..]).campaign().await.unwrap();
    let error = leadership.announce(&long).await.unwrap_err();
    assert!(matches!(error, Error::AnnouncementTooLong { .. }), "{error}");
    assert_eq!(server.cli(&["DEL", NAME]), "1");
    let error = leadership.announce("still here").await.unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::NotOwner, .. }), "{error}");
    drop(leadership);
    for set_up in [["SET", NAME, "other data"], ["RPUSH", NAME, "other data"]] {
        let _done = server.cli(&set_up);
        assert!(matches!(here.election(NAME).leader().await, Err(Error::OtherData { .. })));
        assert!(matches!(at(&here, "").try_campaign().await, Err(Error::OtherData { .. })));
        assert_eq!(server.cli(&["DEL", NAME]), "1");
    }
    let _reads = here.read_write_lock(NAME).read().acquire().await.unwrap();
    assert!(matches!(here.election(NAME).leader().await, Err(Error::OtherData { .. })));
}

#[test]
fn for_threads() {
    let server = RedisServer::start();
    let here = wheellock::blocking::LockManager::connect(&server.url()).unwrap();
    let there = wheellock::blocking::LockManager::connect(&server.url()).unwrap();
    let mut observer = there.election(NAME).observe();
    assert_eq!(observer.changed().unwrap(), None);
    let leadership = here.election(NAME).with_announcement("here").campaign().unwrap();
    assert!(leadership.is_leader());
    while place(observer.changed().unwrap().as_ref()) != "here" {}
    let election = there.election(NAME);
    assert!(!election.try_campaign_for(Duration::from_millis(10)).unwrap().is_acquired());
    // A leadership is not reentrant, so a campaign of the same thread counts like any other campaign.
    assert!(!here.election(NAME).try_campaign().unwrap().is_acquired());
    let token = leadership.token();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| election.campaign().unwrap());
        leadership.resign().unwrap();
        assert!(next.join().unwrap().token() > token);
    });
    let mut turns = 0;
    let short = LockManager::builder(server.url()).watchdog_lease(SHORT).connect_blocking().unwrap();
    let led = short.election(NAME).lead(|leadership| {
        turns += 1;
        if turns == 1 {
            assert_eq!(server.cli(&["DEL", NAME]), "1");
            leadership.lost();
        }
        Ok::<_, Error>(turns)
    });
    assert_eq!(led.unwrap(), 2, "the first leadership was lost");
    assert!(here.election(NAME).leader().unwrap().is_none());
}
