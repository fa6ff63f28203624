//! Subscriptions and their ends among calls.

use super::*;

/// A server that gives a slot away ends the subscriptions by itself, and refuses an UNSUBSCRIBE in flight.
#[test]
fn subscription_end_takes_no_later_reply() {
    let bulk = |text: &str| Frame::Reply(Value::BulkString(text.as_bytes().to_vec().into()));
    let refused = |text: &str| Frame::Reply(Value::Error(text.as_bytes().to_vec().into()));
    let ended = |channel: &str| {
        let words =
            ["sunsubscribe", channel, "0"].map(|word| Value::BulkString(word.as_bytes().to_vec().into()));
        Frame::Push(Push::new(words.into()).unwrap())
    };
    let (moved, down) = ("MOVED 1 h:1", "CLUSTERDOWN Hash slot not served");
    let (denied, unknown) = ("NOPERM to run the command", "ERR unknown command");
    let answers = [
        [vec![ended("c")], vec![ended("d")]],
        [vec![refused(moved)], vec![refused(down)]],
        [vec![ended("c"), refused(moved)], vec![ended("d"), refused(down)]],
        // The server ends both subscriptions before it reads any order.
        [vec![ended("c"), ended("d"), refused(moved)], vec![refused(moved)]],
        [vec![ended("d"), ended("c"), refused(moved)], vec![ended("d")]],
        // The user may not unsubscribe, and the server has just ended the subscription.
        [vec![ended("c"), refused(denied)], vec![ended("d"), refused(unknown)]],
        [vec![refused(denied)], vec![ended("d"), refused(denied)]],
    ];
    for (case, [first, second]) in answers.into_iter().enumerate() {
        let (mut pipeline, _) = connected(100);
        pipeline.sharded = true;
        let now = Instant::now();
        let channels = ["c", "d"].map(|name| {
            let channel = pipeline.channels().want(name.as_bytes());
            pipeline.reconcile(channel, now);
            drop(pipeline.take_output());
            let words =
                ["ssubscribe", name, "1"].map(|word| Value::BulkString(word.as_bytes().to_vec().into()));
            let push = Frame::Push(Push::new(words.into()).unwrap());
            pipeline.on_frame(push, now, &mut Vec::new()).unwrap();
            channel
        });
        for channel in channels {
            pipeline.channels().unwant(channel, 0);
            pipeline.reconcile(channel, now);
        }
        let slots = ["a", "b"].map(|text| {
            let command = Command::new("ECHO").arg(text);
            let request = Request::Command(&command);
            pipeline.submit(&request, Lane::Normal, now, now, Waker::noop().clone(), Prefix::None).unwrap()
        });
        let sent = String::from_utf8(pipeline.take_output().to_vec()).unwrap();
        let nonces: Vec<_> = sent.split("PING\r\n").skip(1).map(|ping| ping.split("\r\n").nth(1)).collect();
        assert_eq!(nonces.len(), 2, "{sent}");
        let frames = first.into_iter().chain([bulk(nonces[0].unwrap())]);
        let frames = frames.chain(second).chain([bulk(nonces[1].unwrap()), bulk("a"), bulk("b")]);
        // A new channel reuses the slab entry of an ended channel.
        let late = pipeline.channels().want(b"late");
        for frame in frames {
            pipeline
                .on_frame(frame, now, &mut Vec::new())
                .unwrap_or_else(|desync| panic!("{case}: {desync:?}"));
        }
        for (slot, told) in slots.into_iter().zip(["a", "b"]) {
            assert_eq!(text_of(&mut pipeline, slot).as_deref(), Some(told), "case {case}");
        }
        assert!(pipeline.is_empty(), "case {case}");
        assert_eq!(
            (pipeline.channels().find(b"c"), pipeline.channels().find(b"d")),
            (None, None),
            "case {case}"
        );
        assert!(pipeline.reconcile(late, now), "case {case}");
    }
}

/// Returns a push about the subscription to this channel.
fn push(kind: &str, channel: &str) -> Frame {
    let words = [kind, channel, "1"].map(|word| Value::BulkString(word.as_bytes().to_vec().into()));
    Frame::Push(Push::new(words.into()).unwrap())
}

/// Returns a pipeline with an UNSUBSCRIBE in flight and a call behind it. A push has already ended that sharded
/// subscription.
fn ended_while_its_end_is_under_way() -> (Pipeline, u32, String) {
    let (mut pipeline, _) = connected(100);
    pipeline.sharded = true;
    let now = Instant::now();
    let channel = pipeline.channels().want(b"c");
    pipeline.reconcile(channel, now);
    drop(pipeline.take_output());
    pipeline.on_frame(push("ssubscribe", "c"), now, &mut Vec::new()).unwrap();
    pipeline.channels().unwant(channel, 0);
    pipeline.reconcile(channel, now);
    let command = Command::new("ECHO").arg("a");
    let request = Request::Command(&command);
    let slot =
        pipeline.submit(&request, Lane::Normal, now, now, Waker::noop().clone(), Prefix::None).unwrap();
    let sent = String::from_utf8(pipeline.take_output().to_vec()).unwrap();
    let nonce = sent.split("PING\r\n").nth(1).and_then(|ping| ping.split("\r\n").nth(1)).unwrap().to_owned();
    pipeline.on_frame(push("sunsubscribe", "c"), now, &mut Vec::new()).unwrap();
    (pipeline, slot, nonce)
}

/// The server may have sent the push by itself, and two refusals follow. If the push was the confirmation, one
/// refusal follows.
#[test]
fn ambiguous_refusal_ends_connection() {
    let now = Instant::now();
    let refused = |text: &str| Frame::Reply(Value::Error(text.as_bytes().to_vec().into()));
    let busy = "BUSY Redis is busy running a script.";
    for text in [busy, "LOADING Redis is loading the dataset in memory", "NOAUTH Authentication required."] {
        let (mut pipeline, slot, _) = ended_while_its_end_is_under_way();
        let desync = pipeline.on_frame(refused(text), now, &mut Vec::new());
        assert!(desync.is_err(), "{text}");
        let cause = Error::new(ErrorKind::Protocol, Outcome::MaybeExecuted, "t", "s", String::new());
        pipeline.disconnect(&cause, &mut Vec::new());
        let done = pipeline.take(slot, Waker::noop()).unwrap();
        assert_eq!(done.result.unwrap_err().outcome, Outcome::MaybeExecuted, "{text}");
    }
    // Only the PING can be refused with one of these texts.
    let ping = "NOPERM this user has no permissions to run the 'ping' command";
    for text in [ping, "ERR unknown command 'PING'", "MISCONF Redis is configured to save RDB snapshots"] {
        let (mut pipeline, slot, _) = ended_while_its_end_is_under_way();
        pipeline.on_frame(refused(text), now, &mut Vec::new()).unwrap();
        let answer = Frame::Reply(Value::BulkString(b"a".to_vec().into()));
        pipeline.on_frame(answer, now, &mut Vec::new()).unwrap();
        assert_eq!(text_of(&mut pipeline, slot).as_deref(), Some("a"), "{text}");
    }
    // If the first refusal is clearly the UNSUBSCRIBE's, the second refusal is the PING's.
    let (mut pipeline, slot, nonce) = ended_while_its_end_is_under_way();
    let answer = |text: &str| Frame::Reply(Value::BulkString(text.as_bytes().to_vec().into()));
    for frame in [refused("MOVED 1 h:1"), answer(&nonce), answer("a")] {
        pipeline.on_frame(frame, now, &mut Vec::new()).unwrap();
    }
    assert_eq!(text_of(&mut pipeline, slot).as_deref(), Some("a"));
    let (mut pipeline, slot, _) = ended_while_its_end_is_under_way();
    for frame in [refused("MOVED 1 h:1"), refused(busy), answer("a")] {
        pipeline.on_frame(frame, now, &mut Vec::new()).unwrap();
    }
    assert_eq!(text_of(&mut pipeline, slot).as_deref(), Some("a"));
}

/// An error in place of PONG is the PING's own reply, even from a proxy. Only behind an ended subscription may the
/// error belong to the UNSUBSCRIBE.
#[test]
fn refused_ping_counts_as_answered() {
    for (is_sharded, ends) in [(false, false), (true, false), (false, true)] {
        let (mut pipeline, _) = connected(100);
        pipeline.sharded = is_sharded;
        let now = Instant::now();
        let mut frames = Vec::new();
        if ends {
            let channel = pipeline.channels().want(b"c");
            pipeline.reconcile(channel, now);
            drop(pipeline.take_output());
            pipeline.on_frame(push("subscribe", "c"), now, &mut Vec::new()).unwrap();
            pipeline.channels().unwant(channel, 0);
            pipeline.reconcile(channel, now);
            frames.push(push("unsubscribe", "c"));
        }
        pipeline.submit_ping(now);
        let command = Command::new("ECHO").arg("a");
        let request = Request::Command(&command);
        let slot =
            pipeline.submit(&request, Lane::Normal, now, now, Waker::noop().clone(), Prefix::None).unwrap();
        drop(pipeline.take_output());
        frames.push(Frame::Reply(Value::Error(b"CLUSTERDOWN The cluster is down".to_vec().into())));
        frames.push(Frame::Reply(Value::BulkString(b"a".to_vec().into())));
        for frame in frames {
            pipeline.on_frame(frame, now, &mut Vec::new()).unwrap();
        }
        assert_eq!(text_of(&mut pipeline, slot).as_deref(), Some("a"));
    }
}

/// While a script runs, redis-server 7.0.15 refuses every subscription order, and the subscription stays as it is.
#[test]
fn busy_order_is_sent_again() {
    let (mut pipeline, _) = connected(100);
    let now = Instant::now();
    let busy = || Frame::Reply(Value::Error(b"BUSY Redis is busy running a script.".to_vec().into()));
    let on = |pipeline: &mut Pipeline, frame| {
        let mut wakers = Vec::new();
        pipeline.on_frame(frame, now, &mut wakers).unwrap();
        String::from_utf8(pipeline.take_output().to_vec()).unwrap().replace("\r\n", " ")
    };
    let old = pipeline.channels().want(b"old");
    pipeline.reconcile(old, now);
    drop(pipeline.take_output());
    on(&mut pipeline, push("subscribe", "old"));

    let new = pipeline.channels().want(b"new");
    let given_up = pipeline.channels().want(b"given up");
    pipeline.channels().unwant(old, 0);
    [new, old, given_up].into_iter().for_each(|channel| assert!(pipeline.reconcile(channel, now)));
    pipeline.submit_ping(now);
    drop(pipeline.take_output());
    pipeline.channels().unwant(given_up, 0);
    for _ in 0..4 {
        assert_eq!(on(&mut pipeline, busy()), "", "not at once");
    }
    assert_eq!(pipeline.channels().refusal(new), None, "it may be had soon");
    assert_eq!(pipeline.channels().find(b"given up"), None, "nobody wants it any more");
    assert_eq!(pipeline.channels().find(b"old"), Some(old), "the server has it still");

    let count = pipeline.channels().count(new);
    pipeline.submit_ping(now);
    let ping = String::from_utf8(pipeline.take_output().to_vec()).unwrap();
    let nonce = ping.split("\r\n").nth(4).unwrap().as_bytes().to_vec();
    let sent = on(&mut pipeline, Frame::Reply(Value::BulkString(nonce.into())));
    assert!(sent.contains(" SUBSCRIBE $3 new ") && sent.contains(" UNSUBSCRIBE $3 old "), "{sent}");
    assert_eq!(pipeline.channels().count(new), count + 1, "what was asked meanwhile came before it");
    let confirmations = [push("subscribe", "new"), push("unsubscribe", "old")];
    let in_order = if sent.find(" SUBSCRIBE") < sent.find(" UNSUBSCRIBE") { [0, 1] } else { [1, 0] };
    for place in in_order {
        on(&mut pipeline, confirmations[place].clone());
    }
    assert!(pipeline.channels().is_confirmed(new));
    assert_eq!(pipeline.channels().find(b"old"), None);
    assert!(pipeline.is_empty());
}
