//! Native commands in place of scripts.

use super::*;

#[test]
fn native_command_replaces_script() {
    for batches_calls in [true, false] {
        let mut pipeline = native(batches_calls);
        let (taken, text) = batch(&mut pipeline, &[2]);
        assert_eq!(text, words(&[&["TAKE", "0"]]));
        let (given, text) = batch(&mut pipeline, &[3]);
        assert_eq!(text, words(&[&["GIVE", "0", "second"], &["TELL", "0"]]));
        let bulk = || Value::BulkString(b"0".to_vec().into());
        answer(&mut pipeline, bulk()).unwrap();
        assert_eq!(text_of(&mut pipeline, taken[0]).unwrap(), "0");
        answer(&mut pipeline, bulk()).unwrap();
        assert!(pipeline.take(given[0], Waker::noop()).is_none(), "the other reply belongs to it");
        answer(&mut pipeline, bulk()).unwrap();
        assert_eq!(text_of(&mut pipeline, given[0]).unwrap(), "0");
        assert!(pipeline.is_empty() && pipeline.slots.is_empty());
        let (_, text) = batch(&mut pipeline, &[1]);
        assert!(text.contains(PARTS[1].sha()), "this one has no other form");
    }
}

#[test]
fn failed_native_call_runs_script() {
    let error = |text: &str| Value::Error(text.as_bytes().to_vec().into());
    let refusals = [
        (Value::Null, true),
        (error("WRONGTYPE of this one"), true),
        (error("NOPERM No permissions to access a key"), true),
        (error("OOM command not allowed when used memory > 'maxmemory'."), true),
        (error("NOPERM this user has no permissions to run the 'give' command"), false),
        (error("ERR unknown command 'GIVE', with args beginning with: 'a' 'b'"), false),
    ];
    for (refusal, goes_on) in refusals {
        let mut pipeline = native(true);
        let (slots, _) = batch(&mut pipeline, &[3]);
        answer(&mut pipeline, refusal).unwrap();
        answer(&mut pipeline, Value::BulkString(b"0".to_vec().into())).unwrap();
        assert!(pipeline.take(slots[0], Waker::noop()).is_none(), "nobody was told");
        let text = String::from_utf8(pipeline.take_output().to_vec()).unwrap();
        assert_eq!(text, words(&[&["EVALSHA", PARTS[3].sha(), "1", "0", "0", "second"]]));
        answer(&mut pipeline, Value::BulkString(b"said".to_vec().into())).unwrap();
        assert_eq!(text_of(&mut pipeline, slots[0]).unwrap(), "said");
        let (_, text) = batch(&mut pipeline, &[3]);
        assert_eq!(text.contains("GIVE"), goes_on, "what this user may not do is not tried again");
        let cause = Error::new(ErrorKind::ConnectionLost, Outcome::MaybeExecuted, "t", "s", String::new());
        pipeline.disconnect(&cause, &mut Vec::new());
        pipeline.meet(&server(true));
        pipeline.reconnect(Instant::now());
        let (_, text) = batch(&mut pipeline, &[3]);
        assert!(text.contains("GIVE"), "the next connection may");
    }
}

#[test]
fn abandoned_native_call_skips_script() {
    let mut pipeline = native(true);
    let (slots, _) = batch(&mut pipeline, &[2]);
    drop(pipeline.leave(slots[0]));
    answer(&mut pipeline, Value::Null).unwrap();
    assert!(pipeline.is_empty() && !pipeline.has_output() && pipeline.slots.is_empty());
}

#[test]
fn unwritten_native_call_becomes_script() {
    let mut pipeline = native(true);
    let (slots, _) = batch(&mut pipeline, &[2]);
    let (unwritten, text) = batch(&mut pipeline, &[3]);
    pipeline.give_back(text.as_bytes().into());
    answer(&mut pipeline, Value::BulkString(b"0".to_vec().into())).unwrap();
    assert_eq!(text_of(&mut pipeline, slots[0]).unwrap(), "0");
    let cause = Error::new(ErrorKind::ConnectionLost, Outcome::MaybeExecuted, "t", "s", String::new());
    pipeline.disconnect(&cause, &mut Vec::new());
    pipeline.meet(&server(false));
    pipeline.reconnect(Instant::now());
    let text = String::from_utf8(pipeline.take_output().to_vec()).unwrap();
    assert_eq!(text, words(&[&["EVALSHA", PARTS[3].sha(), "1", "0", "0", "second"]]));
    answer(&mut pipeline, Value::BulkString(b"b".to_vec().into())).unwrap();
    assert_eq!(text_of(&mut pipeline, unwritten[0]).unwrap(), "b");
}

/// GIVE may have run without TELL, so half a reply proves nothing.
#[test]
fn half_an_answer_is_none() {
    let mut pipeline = native(true);
    let (slots, _) = batch(&mut pipeline, &[3]);
    answer(&mut pipeline, Value::BulkString(b"0".to_vec().into())).unwrap();
    let cause = Error::new(ErrorKind::ConnectionLost, Outcome::MaybeExecuted, "t", "s", String::new());
    pipeline.disconnect(&cause, &mut Vec::new());
    let failure = pipeline.take(slots[0], Waker::noop()).unwrap().result.unwrap_err();
    assert_eq!(failure.outcome, Outcome::MaybeExecuted);
    pipeline.meet(&server(true));
    pipeline.reconnect(Instant::now());
    let (slots, _) = batch(&mut pipeline, &[2]);
    answer(&mut pipeline, Value::BulkString(b"new".to_vec().into())).unwrap();
    assert_eq!(text_of(&mut pipeline, slots[0]).unwrap(), "new", "nothing is left of it");
}

#[test]
fn native_calls_are_not_batched() {
    let whole = Arc::new(Script::variadic("both"));
    let both = [
        Script::new("take", 1, 1).as_part(&whole, 1).natively(&TAKE),
        Script::new("give", 1, 2).as_part(&whole, 2).natively(&GIVE),
    ];
    let now = Instant::now();
    for (is_native, forms) in [(true, 2), (false, 0)] {
        let mut pipeline = native(true);
        pipeline.meet(&server(is_native));
        for params in [&["a", "a"][..], &["b", "b", "second"], &["c", "c"]] {
            let params: Vec<_> = params.iter().map(|param| Arg::from(*param)).collect();
            let script = &both[params.len() - 2];
            let request = Request::EvalSha(Eval { script, keys: 1, params: &params });
            assert!(pipeline.submit_detached(&request, now, 1, Prefix::None));
        }
        let text = String::from_utf8(pipeline.take_output().to_vec()).unwrap();
        assert_eq!(text.matches("TAKE").count(), forms, "{text}");
        assert_eq!(text.matches("EVALSHA").count(), usize::from(!is_native), "{text}");
    }
}

#[test]
fn asking_call_is_one_command() {
    let mut pipeline = native(false);
    let (script, params) = part(3, "n");
    let request = Request::EvalSha(Eval { script, keys: 1, params: &params });
    assert!(pipeline.submit_detached(&request, Instant::now(), 1, Prefix::Asking));
    let text = String::from_utf8(pipeline.take_output().to_vec()).unwrap();
    assert!(text.contains("ASKING") && text.contains("EVALSHA"), "{text}");
}

#[test]
fn suppressed_replies_disable_native_commands() {
    let mut pipeline = native(true);
    pipeline.suppress_replies(Instant::now());
    let (_, text) = batch(&mut pipeline, &[3]);
    assert!(text.contains("EVALSHA"), "{text}");
}

#[test]
fn unexpected_native_reply_is_desync() {
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec().into());
    for (which, replies) in [(2, vec![Value::Integer(5)]), (3, vec![bulk("0"), bulk("another")])] {
        let mut pipeline = native(true);
        let slots = [batch(&mut pipeline, &[which]).0[0], batch(&mut pipeline, &[which]).0[0]];
        let (last, before) = replies.split_last().unwrap();
        for reply in before {
            answer(&mut pipeline, reply.clone()).unwrap();
        }
        assert!(answer(&mut pipeline, last.clone()).is_err());
        break_and_expect_all_lost(&mut pipeline, &slots);
        pipeline.meet(&server(true));
        pipeline.reconnect(Instant::now());
        let (slots, _) = batch(&mut pipeline, &[5 - which]);
        answer(&mut pipeline, Value::Null).unwrap();
        if which == 2 {
            answer(&mut pipeline, bulk("0")).unwrap();
        }
        assert!(pipeline.take(slots[0], Waker::noop()).is_none(), "nobody was told");
        let text = String::from_utf8(pipeline.take_output().to_vec()).unwrap();
        let (script, params) = part(5 - which, "0");
        let mut expected = BytesMut::new();
        script.encode_evalsha(1, &params, &mut expected);
        assert_eq!(text.as_bytes(), expected, "it is this call's script that is asked");
    }
}
