//! Calls of one script that leave as one command.

use super::*;

#[test]
fn batched_calls_get_separate_replies() {
    let (mut pipeline, _) = connected(100);
    let (slots, text) = batch(&mut pipeline, &[0, 1, 0]);
    let sha = WHOLE.sha();
    let words = ["EVALSHA", sha, "3", "0", "1", "2", "1", "0", "2", "1", "second", "1", "2"];
    let mut expected = BytesMut::new();
    Command::new(words[0]).args(words[1..].iter().map(|word| Arg::from(*word))).encode(&mut expected);
    assert_eq!(text.as_bytes(), expected);
    let error = Value::Error(b"OOM for this one".to_vec().into());
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec().into());
    answer(&mut pipeline, Value::Array(vec![bulk("a"), error, bulk("c")])).unwrap();
    let told: Vec<_> = slots.into_iter().map(|slot| text_of(&mut pipeline, slot).unwrap()).collect();
    assert_eq!(told, ["a", "OOM for this one", "c"]);
    assert!(pipeline.is_empty() && pipeline.slots.is_empty());
}

#[test]
fn single_call_is_not_batched() {
    let (mut pipeline, _) = connected(100);
    let (_, text) = batch(&mut pipeline, &[0]);
    assert!(text.contains(PARTS[0].sha()) && !text.contains(WHOLE.sha()), "{text}");
}

#[test]
fn batch_size_is_bounded() {
    let (mut pipeline, _) = connected(1000);
    let (_, text) = batch(&mut pipeline, &[1; 2 * MOST + 1]);
    assert_eq!((text.matches(WHOLE.sha()).count(), text.matches(PARTS[1].sha()).count()), (2, 1));
}

#[test]
fn refused_batch_is_sent_singly() {
    for (refusal, loads) in [("NOSCRIPT No matching script", true), ("NOPERM one of the keys", false)] {
        let (mut pipeline, _) = connected(100);
        let (slots, _) = batch(&mut pipeline, &[0, 1, 0]);
        drop(pipeline.leave(slots[2]));
        answer(&mut pipeline, Value::Error(refusal.as_bytes().to_vec().into())).unwrap();
        assert!(
            slots[..2].iter().all(|slot| pipeline.take(*slot, Waker::noop()).is_none()),
            "nobody was told"
        );
        let alone = String::from_utf8(pipeline.take_output().to_vec()).unwrap();
        assert_eq!(alone.contains("SCRIPT"), loads, "{alone}");
        assert_eq!(alone.matches("EVALSHA").count(), 2, "who has left wants nothing any more");
        if loads {
            answer(&mut pipeline, Value::SimpleString(b"sha".to_vec().into())).unwrap();
        }
        for slot in &slots[..2] {
            answer(&mut pipeline, Value::BulkString(b"alone".to_vec().into())).unwrap();
            assert_eq!(text_of(&mut pipeline, *slot).unwrap(), "alone");
        }
        assert!(pipeline.is_empty() && pipeline.slots.is_empty());
        let (_, text) = batch(&mut pipeline, &[0, 0]);
        assert_eq!(text.contains(WHOLE.sha()), loads, "one that may be refused again is not made at once");
    }
}

#[test]
fn unwritten_batch_is_resent_singly() {
    let (mut pipeline, _) = connected(100);
    let now = Instant::now();
    let call = |pipeline: &mut Pipeline, which, nonce: &str| {
        let (script, params) = part(which, nonce);
        let request = Request::EvalSha(Eval { script, keys: 1, params: &params });
        pipeline
            .submit(
                &request,
                Lane::Normal,
                now,
                now + Duration::from_secs(60),
                Waker::noop().clone(),
                Prefix::None,
            )
            .unwrap()
    };
    let slots = [call(&mut pipeline, 0, "a"), call(&mut pipeline, 1, "b")];
    let taken = pipeline.take_output();
    pipeline.give_back(taken);
    let cause = Error::new(ErrorKind::ConnectionLost, Outcome::MaybeExecuted, "t", "s", String::new());
    pipeline.disconnect(&cause, &mut Vec::new());
    drop(pipeline.leave(slots[0]));
    pipeline.reconnect(now);
    let text = String::from_utf8(pipeline.take_output().to_vec()).unwrap();
    assert!(text.contains(PARTS[1].sha()) && !text.contains(PARTS[0].sha()), "{text}");
    answer(&mut pipeline, Value::BulkString(b"b".to_vec().into())).unwrap();
    assert_eq!(text_of(&mut pipeline, slots[1]).unwrap(), "b");
}

#[test]
fn wrong_batch_reply_count_is_desync() {
    for answers in [Value::Array(vec![Value::Null]), Value::Array(vec![Value::Null; 3]), Value::Integer(2)] {
        let (mut pipeline, _) = connected(100);
        let (slots, _) = batch(&mut pipeline, &[0, 1]);
        assert!(answer(&mut pipeline, answers).is_err());
        break_and_expect_all_lost(&mut pipeline, &slots);
        pipeline.reconnect(Instant::now());
        let (slots, _) = batch(&mut pipeline, &[1, 0]);
        answer(&mut pipeline, Value::Error(b"NOPERM one of the keys".to_vec().into())).unwrap();
        let text = String::from_utf8(pipeline.take_output().to_vec()).unwrap();
        let alone = [
            &["EVALSHA", PARTS[1].sha(), "1", "0", "0", "second"][..],
            &["EVALSHA", PARTS[0].sha(), "1", "1", "1"],
        ];
        assert_eq!(text, words(&alone), "nothing is left of the others");
        assert!(slots.iter().all(|slot| pipeline.take(*slot, Waker::noop()).is_none()));
    }
}

#[test]
fn who_may_not_bundle_does_not() {
    let now = Instant::now();
    let mut pipeline = Pipeline::new(Bounds { in_flight: 100, queued_bytes: 1 << 20 }, now, NODE, false);
    pipeline.reconnect(now);
    let (_, text) = batch(&mut pipeline, &[0, 1]);
    assert!(!text.contains(WHOLE.sha()));
}
