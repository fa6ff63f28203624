//! Waits for acknowledgements, which calls share.

use super::*;

fn wait(pipeline: &mut Pipeline, connection: ConnectionId, within: Duration) -> Result<u32, NoWait> {
    let now = Instant::now();
    pipeline.submit_wait(connection, WAIT, now, now + within, Waker::noop().clone())
}

#[test]
fn wait_is_shared_until_written() {
    let (mut pipeline, connection) = connected(100);
    let minute = Duration::from_secs(60);
    let first = wait(&mut pipeline, connection, minute).unwrap();
    let _claimed = pipeline.take_output();
    let crowd: Vec<_> = (0..50).map(|_| wait(&mut pipeline, connection, minute).unwrap()).collect();
    assert!(pipeline.submit_detached_wait(connection, WAIT, Instant::now(), 7));
    assert_eq!(pipeline.in_flight(), 2, "one on its way, one for all others");
    let other = (Acks::Replicas(2), 100);
    assert!(pipeline.submit_detached_wait(connection, other, Instant::now(), 8));
    assert_eq!(pipeline.in_flight(), 3, "another question");
    let _claimed = pipeline.take_output();

    let now = Instant::now();
    let answer = |acked: i64| Frame::Reply(Value::Integer(acked));
    let mut wakers = Vec::new();
    for acked in [1, 2, 3] {
        pipeline.on_frame(answer(acked), now, &mut wakers).unwrap();
    }
    let mut heard = |slot| pipeline.take(slot, Waker::noop()).unwrap().result.unwrap().as_i64();
    assert_eq!(heard(first), Some(1));
    assert!(crowd.into_iter().all(|slot| heard(slot) == Some(2)));
    assert_eq!(wakers.len(), 51);
    let mut detached = Vec::new();
    pipeline.take_detached(&mut detached);
    let heard = |detached: &Detached| (detached.token, detached.result.as_ref().unwrap().as_i64());
    assert_eq!(detached.iter().map(heard).collect::<Vec<_>>(), [(7, Some(2)), (8, Some(3))]);
}

#[test]
fn wait_ends_with_connection() {
    let (mut pipeline, connection) = connected(100);
    let minute = Duration::from_secs(60);
    let written = wait(&mut pipeline, connection, minute).unwrap();
    let _claimed = pipeline.take_output();
    let unwritten = wait(&mut pipeline, connection, minute).unwrap();
    assert!(pipeline.submit_detached_wait(connection, WAIT, Instant::now(), 7));
    let cause = Error::new(ErrorKind::ConnectionLost, Outcome::MaybeExecuted, "t", "s", String::new());
    pipeline.disconnect(&cause, &mut Vec::new());
    for slot in [written, unwritten] {
        let failure = pipeline.take(slot, Waker::noop()).unwrap().result.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::ConnectionLost);
    }
    assert_eq!(wait(&mut pipeline, connection, minute), Err(NoWait::Ended), "the connection has ended");
    pipeline.reconnect(Instant::now());
    assert!(pipeline.is_empty() && !pipeline.has_output());
    assert_eq!(wait(&mut pipeline, connection, minute), Err(NoWait::Ended), "this is another one");
    assert!(!pipeline.submit_detached_wait(connection, WAIT, Instant::now(), 8));
    let elsewhere = ConnectionId { node: NODE + 1, ..pipeline.connection };
    assert_eq!(wait(&mut pipeline, elsewhere, minute), Err(NoWait::Ended));
}

#[test]
fn grouped_waits_keep_own_deadlines() {
    let (mut pipeline, connection) = connected(100);
    let soon = wait(&mut pipeline, connection, Duration::from_millis(10)).unwrap();
    let later = wait(&mut pipeline, connection, Duration::from_millis(50)).unwrap();
    let _claimed = pipeline.take_output();
    let now = Instant::now() + Duration::from_millis(20);
    let next = pipeline.expire(now, &mut Vec::new()).unwrap();
    assert!(next > now && next <= now + Duration::from_millis(50));
    let failure = pipeline.take(soon, Waker::noop()).unwrap().result.unwrap_err();
    assert_eq!((failure.kind, failure.outcome), (ErrorKind::Timeout, Outcome::MaybeExecuted));
    assert!(pipeline.take(later, Waker::noop()).is_none());
    assert!(pipeline.waiting_since().unwrap() >= now + Duration::from_millis(50), "it has 100 ms");
    pipeline.on_frame(Frame::Reply(Value::Integer(0)), now, &mut Vec::new()).unwrap();
    assert!(pipeline.take(later, Waker::noop()).is_some() && pipeline.slots.is_empty());
}

#[test]
fn demoted_server_ends_connection_and_waits() {
    for refusal in
        ["WAIT cannot be used with replica instances.", "WAITAOF cannot be used with replica instances."]
    {
        let (mut pipeline, connection) = connected(100);
        let slot = wait(&mut pipeline, connection, Duration::from_secs(60)).unwrap();
        let _claimed = pipeline.take_output();
        let refusal = Frame::Reply(Value::Error(format!("ERR {refusal} Please").into_bytes().into()));
        pipeline.on_frame(refusal, Instant::now(), &mut Vec::new()).unwrap();
        let failure = pipeline.take(slot, Waker::noop()).unwrap().result.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::ConnectionLost);
        assert!(pipeline.unusable.is_some());
    }
    let (mut pipeline, connection) = connected(100);
    let slot = wait(&mut pipeline, connection, Duration::from_secs(60)).unwrap();
    let _claimed = pipeline.take_output();
    let refusal = Frame::Reply(Value::Error(b"NOPERM no WAIT".to_vec().into()));
    pipeline.on_frame(refusal, Instant::now(), &mut Vec::new()).unwrap();
    assert!(
        pipeline.take(slot, Waker::noop()).unwrap().result.unwrap().is_error() && pipeline.unusable.is_none()
    );
}

/// A script's author may choose an error code that servers also use.
#[test]
fn script_error_does_not_end_connection() {
    for (error, is_unfit) in [
        ("NOAUTH bad token", false),
        ("READONLY account", false),
        ("MASTERDOWN", false),
        ("NOAUTH Authentication required.", true),
        ("READONLY You can't write against a read only replica.", true),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", true),
    ] {
        let (mut pipeline, connection) = connected(100);
        let _slot = wait(&mut pipeline, connection, Duration::from_secs(60)).unwrap();
        let _claimed = pipeline.take_output();
        let refusal = Frame::Reply(Value::Error(error.as_bytes().to_vec().into()));
        pipeline.on_frame(refusal, Instant::now(), &mut Vec::new()).unwrap();
        assert_eq!(pipeline.unusable.is_some(), is_unfit, "{error}");
    }
}

#[test]
fn waits_are_bounded_as_calls_are() {
    let (mut pipeline, connection) = connected(16);
    let room =
        (0..100).take_while(|_| wait(&mut pipeline, connection, Duration::ZERO) != Err(NoWait::Full)).count();
    assert_eq!(room, 18, "with the room that is reserved");
    assert!(!pipeline.submit_detached_wait(connection, WAIT, Instant::now(), 1));
}
