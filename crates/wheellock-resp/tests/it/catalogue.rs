//! Codec rows of the failure catalogue, K1 to K20.
//!
//! Each row has one test. If a row is also about sockets, the test covers the codec's part, and its comment names the client's part.

use crate::support::{Outcome, feed, whole};
use allocation_counter::AllocationInfo;
use bytes::BytesMut;
use wheellock_resp::{
    Arg, Blob, Command, Decoder, ErrorKind, EvalSha, Frame, LimitKind, Limits, Push, Value,
};

/// K1: an unknown type byte is an error with the byte and its offset, at the front and inside a value.
#[test]
fn k01_unknown_type_byte() {
    let known = b"+-:$*_#,(!=%~>|";
    for byte in 0..=u8::MAX {
        let expected = match byte {
            b';' | b'.' => ErrorKind::Unsupported(byte),
            _ => ErrorKind::UnknownType(byte),
        };
        let (first, inside) = (whole([byte]), whole([b"*2\r\n:1\r\n".as_slice(), &[byte]].concat()));
        if known.contains(&byte) {
            assert!(first.waits(), "{byte:#x}");
            // A push inside a value is always an error.
            assert_eq!(inside.waits(), byte != b'>', "{byte:#x}");
        } else {
            assert_eq!(first.error(), (expected, 0));
            assert_eq!(inside.error(), (expected, 8));
        }
    }
    // The frames before the error are delivered.
    let outcome = whole(":1\r\n:2\r\nHTTP/1.1 400 Bad Request\r\n");
    assert_eq!(outcome.values(), [Value::Integer(1), Value::Integer(2)]);
    assert_eq!(outcome.error(), (ErrorKind::UnknownType(b'H'), 8));
}

/// K2: a line ends only with CR LF. The decoder never searches for the next CR LF to resynchronise.
#[test]
fn k02_line_endings() {
    for (stream, offset) in [
        ("+OK\n", 3),
        ("+OK\n\r\n:1\r\n", 3),
        ("+OK\rX\r\n", 4),
        ("+a\rb\r\n", 3),
        ("-ERR\n:1\r\n", 4),
        (":1\n", 2),
        (":1\r\r\n", 3),
        ("_\n", 1),
        ("#t\n", 2),
        (",1.5\n", 4),
        ("(1\n", 2),
        ("$5\nhello\r\n", 2),
        ("*1\n:1\r\n", 2),
        ("%1\rx", 3),
        ("$5\r\nhello\n", 9),
        ("$5\r\nhelloX\n", 9),
        ("$5\r\nhello\r:1\r\n", 10),
        ("$5\r\nhello:1\r\n", 9),
        ("$5\r\nhello world\r\n", 9),
        ("=5\r\ntxt:aX", 9),
        ("!3\r\nERRX", 7),
    ] {
        assert_eq!(whole(stream).error(), (ErrorKind::LineEnding, offset), "{stream:?}");
    }
    for stream in ["+OK", "+OK\r", "$5\r\nhello", "$5\r\nhello\r", ":1\r", "_\r", "#f\r"] {
        assert!(whole(stream).waits(), "{stream:?}");
    }
    // A payload may contain bytes that look like a line ending or a frame.
    assert_eq!(whole("$9\r\na\r\n:1\r\n\n\r\r\n").value().as_bytes(), Some(&b"a\r\n:1\r\n\n\r"[..]));
}

/// K3: a length is `0` or digits without a leading zero; `-1` is null only after `$` and `*`.
#[test]
fn k03_lengths() {
    for (length, offset) in [
        ("+5", 0),
        ("05", 1),
        ("00", 1),
        (" 5", 0),
        ("5 ", 1),
        ("1e3", 1),
        ("0x5", 1),
        ("5.0", 1),
        ("-2", 1),
        ("-0", 1),
        ("-01", 1),
        ("--1", 1),
        ("", 0),
        ("9223372036854775808", 18),
        ("18446744073709551616", 19),
        ("99999999999999999999", 18),
    ] {
        for kind in ["$", "*", "!", "=", "%", "~", ">", "|"] {
            let stream = format!("{kind}{length}\r\n");
            assert_eq!(whole(&stream).error(), (ErrorKind::Length, 1 + offset), "{stream:?}");
        }
    }
    let digits = "1".repeat(1000);
    assert_eq!(whole(format!("${digits}\r\n")).error(), (ErrorKind::Length, 20));
    assert_eq!(whole(format!("*{digits}")).error(), (ErrorKind::Length, 20), "found without the line's end");

    assert_eq!(whole("$-1\r\n").value(), Value::Null);
    assert_eq!(whole("*-1\r\n").value(), Value::Null);
    assert_eq!(whole("*2\r\n$-1\r\n*-1\r\n").value(), Value::Array(vec![Value::Null, Value::Null]));
    for kind in ["!", "=", "%", "~", ">", "|"] {
        assert_eq!(whole(format!("{kind}-1\r\n")).error(), (ErrorKind::Length, 1));
    }
}

/// K4: whatever a header announces, the decoder holds less than 64 KiB beyond the received bytes. The reader must reserve only the room
/// that `wanted` returns.
#[test]
fn k04_headers_then_silence() {
    let all = usize::MAX;
    let generous = Limits { depth: 128, bulk: all, elements: all, line: all, frame: all };
    let deep = "*60000000\r\n".repeat(128);
    let deep_maps = "%20\r\n".repeat(128);
    for (stream, refused) in [
        ("*2147483647\r\n", true),
        ("%1073741824\r\n", true),
        ("~2147483647\r\n", true),
        (">2147483647\r\n", true),
        ("|1073741824\r\n", true),
        ("$2147483647\r\n", true),
        ("*67108864\r\n", false),
        ("%33554432\r\n", false),
        ("$536870912\r\n", false),
        ("=536870912\r\ntxt:", false),
        ("$536870912\r\nabc", false),
        ("*2\r\n$536870912\r\nabc", false),
        (&deep, true),
        (&deep_maps, false),
    ] {
        let mut outcome = None;
        let held = measured(|| outcome = Some(read(generous, [stream.as_bytes()])));
        let outcome = outcome.unwrap();
        if refused {
            assert!(matches!(outcome.error().0, ErrorKind::Limit(_)), "{outcome:?}");
        } else {
            assert!(outcome.waits(), "{outcome:?}");
        }
        let bound = stream.len() as u64 + 64 * 1024;
        assert!(held.bytes_max <= bound, "{stream:?}: {} bytes held, {bound} allowed", held.bytes_max);
    }
    // At the default limits the headers alone are rejected.
    assert_eq!(whole("*2147483647\r\n").error(), (ErrorKind::Limit(LimitKind::Elements), 0));
    assert_eq!(whole("$536870912\r\n").error(), (ErrorKind::Limit(LimitKind::Bulk), 0));
    assert_eq!(whole("*2\r\n:1\r\n$16777217\r\n").error(), (ErrorKind::Limit(LimitKind::Bulk), 8));
    assert!(whole("$16777216\r\n").waits());
}

/// A reader reserves room for a whole megabyte once a sixteenth has arrived, and copies only that sixteenth.
#[test]
fn large_bulk_is_reserved_once() {
    let len = 1 << 20;
    let mut stream = format!("${len}\r\n").into_bytes();
    stream.resize(stream.len() + len, b'x');
    stream.extend_from_slice(b"\r\n");
    let mut outcome = None;
    let held = measured(|| outcome = Some(read(Limits::default(), stream.chunks(64 << 10))));
    assert!(outcome.unwrap().value().as_bytes().is_some_and(|bytes| bytes.len() == len));
    let (room, pieces) = (len as u64, 64 << 10);
    assert!(held.bytes_total <= room + 3 * pieces, "{} bytes for one of {room}", held.bytes_total);
}

/// K4 and P8: memory grows with the received bytes. The densest values have three bytes on the wire and 32 in memory, in a vector with at
/// most a quarter unused. The counter sees the vector twice while it grows.
#[test]
fn k04_memory_follows_the_bytes() {
    for (count, element) in
        [(400_000, "_\r\n"), (200_000, "*1\r\n_\r\n"), (200_000, "+ab\r\n"), (100_000, "$0\r\n\r\n")]
    {
        let stream = format!("*{count}\r\n{}", element.repeat(count));
        let mut frames = 0;
        let held = measured(|| frames = read(Limits::default(), stream.as_bytes().chunks(4096)).frames.len());
        assert_eq!(frames, 1);
        let bound = 26 * stream.len() as u64 + 64 * 1024;
        assert!(held.bytes_max <= bound, "{element:?}: {} bytes held for {}", held.bytes_max, stream.len());
    }
}

/// K5: counts that overflow when doubled or added exceed the limit instead of wrapping.
#[test]
fn k05_counts_overflow() {
    let all = usize::MAX;
    let all = Limits { depth: all, bulk: all, elements: all, line: all, frame: all };
    let elements = ErrorKind::Limit(LimitKind::Elements);
    for stream in [
        "%9223372036854775807\r\n",
        "%4611686018427387904\r\n",
        "|9223372036854775807\r\n",
        "*9223372036854775807\r\n",
        "~9223372036854775807\r\n",
        ">9223372036854775807\r\n",
        "%4294967296\r\n",
        "*4294967297\r\n",
    ] {
        assert_eq!(feed(all, [stream.as_bytes()]).error(), (elements, 0), "{stream:?}");
    }
    assert_eq!(
        feed(all, ["$9223372036854775807\r\n".as_bytes()]).error(),
        (ErrorKind::Limit(LimitKind::Bulk), 0)
    );
    // The limit applies to the whole frame: many small aggregates cannot evade it.
    let stream = format!("*1000\r\n{}", "*1100\r\n".to_owned() + &":1\r\n".repeat(1100)).repeat(1);
    assert!(whole(&stream).waits());
    let stream = "*2\r\n*600000\r\n".to_owned() + &":1\r\n".repeat(600_000) + "*600000\r\n";
    assert_eq!(whole(&stream).error(), (elements, stream.len() as u64 - 9));
}

/// The payloads of a frame are bounded together: many payloads below the single limit cannot evade the bound.
#[test]
fn payloads_add_up() {
    let frame = ErrorKind::Limit(LimitKind::Frame);
    // The largest allowed payloads must arrive; for one more payload the header suffices.
    let largest = format!("$16777216\r\n{}\r\n", "x".repeat(16 << 20));
    let stream = format!("*5\r\n{}", largest.repeat(4));
    assert!(whole(stream.clone() + "$22\r\n").waits());
    assert_eq!(whole(stream.clone() + "$23\r\n").error(), (frame, stream.len() as u64));

    let limits = Limits { bulk: 40, line: 30, frame: 100, ..Limits::default() };
    let failed = |stream: &str| feed(limits, [stream.as_bytes()]).error();
    let (bulk, line) = (format!("$40\r\n{}\r\n", "x".repeat(40)), format!("+{}\r\n", "x".repeat(30)));
    // The bound applies at all levels, to every type, and in attributes, which are not kept.
    for (before, last) in [
        (format!("*4\r\n{bulk}*2\r\n{bulk}"), "$23\r\n"),
        (format!("%2\r\n{bulk}{bulk}"), "!23\r\n"),
        (format!(">3\r\n{bulk}{bulk}"), "=23\r\n"),
        (format!("~4\r\n{line}{line}{line}"), "+01234567890123456789012\r\n"),
        (format!("*4\r\n{bulk}{bulk}"), "-01234567890123456789012\r\n"),
        (format!("*4\r\n{bulk}{bulk}"), "(01234567890123456789012\r\n"),
        (format!("*2\r\n|1\r\n{bulk}{bulk}"), "$23\r\n"),
        (format!("|1\r\n{bulk}{bulk}"), "$23\r\n"),
    ] {
        assert_eq!(failed(&(before.clone() + last)), (frame, before.len() as u64), "{before}{last}");
    }
    // An inline payload counts only as a value. Integers and doubles are not payloads. The next frame starts from zero.
    let short = "$22\r\n0123456789012345678901\r\n+0123456789012345678901\r\n";
    let double = format!(",1.{}\r\n", "0".repeat(28));
    for stream in [
        format!("*102\r\n{bulk}{bulk}{}", short.repeat(50)),
        format!("*12\r\n{bulk}{bulk}{}", double.repeat(10)),
        format!("*2\r\n{bulk}{bulk}").repeat(10),
        bulk.repeat(10) + &line.repeat(10),
    ] {
        assert!(matches!(feed(limits, [stream.as_bytes()]).end, Ok((_, false))), "{stream}");
    }
}

/// A limit below the inline size is enforced too, wherever the bytes are split.
#[test]
fn the_shortest_of_limits_is_one() {
    let (bulk, line) = (ErrorKind::Limit(LimitKind::Bulk), ErrorKind::Limit(LimitKind::Line));
    let limits = Limits { bulk: 4, line: 3, ..Limits::default() };
    for (stream, exceeded) in [
        ("$5\r\nhello\r\n", (bulk, 0)),
        ("+hell\r\n", (line, 0)),
        (":1\r\n$4\r\nhell\r\n+hel\r\n$5\r\nhello\r\n", (bulk, 20)),
        ("*2\r\n:1\r\n$5\r\nhello\r\n", (bulk, 8)),
        ("*3\r\n$4\r\nhell\r\n+hel\r\n+hell\r\n", (line, 20)),
        (">2\r\n+ok\r\n+hell\r\n", (line, 9)),
    ] {
        for cut in 0..=stream.len() {
            let (front, back) = stream.as_bytes().split_at(cut);
            assert_eq!(feed(limits, [front, back]).error(), exceeded, "{stream:?} at {cut}");
        }
    }
    // Values within the limits are decoded.
    for limits in [limits, Limits { bulk: 22, line: 3, ..limits }, Limits { bulk: 4, line: 22, ..limits }] {
        assert_eq!(feed(limits, [&b"$4\r\nhell\r\n+hel\r\n_\r\n$-1\r\n:1\r\n"[..]]).frames.len(), 5);
    }
}

/// K6: nesting ends at the limit, on a small stack. All operations on the deepest allowed value also fit that stack.
#[test]
fn k06_nesting() {
    let deepest = Limits { depth: Limits::MAX_DEPTH, ..Limits::default() };
    on_a_stack_of(64, move || {
        let stream = b"*1\r\n".repeat(1_000_000);
        let held = measured(|| {
            let depth = ErrorKind::Limit(LimitKind::Depth);
            assert_eq!(feed(Limits::default(), [&stream[..]]).error(), (depth, 4 * 32));
            let unlimited = Limits { depth: usize::MAX, ..Limits::default() };
            assert_eq!(feed(unlimited, [&stream[..]]).error(), (depth, 4 * Limits::MAX_DEPTH as u64));
        });
        assert!(held.bytes_max <= stream.len() as u64 + 64 * 1024, "{held:?}");

        // The deepest value is decoded and dropped. At the default depth, every operation runs.
        for kind in ["*1\r\n", "~1\r\n", "%1\r\n:1\r\n"] {
            drop(feed(deepest, [(kind.repeat(Limits::MAX_DEPTH) + ":1\r\n").as_bytes()]));
            exercise(Limits::default(), &(kind.repeat(Limits::default().depth) + ":1\r\n"));
        }
    });
    on_a_stack_of(256, move || {
        for kind in ["*1\r\n", "~1\r\n", "%1\r\n:1\r\n"] {
            exercise(deepest, &(kind.repeat(Limits::MAX_DEPTH) + ":1\r\n"));
        }
    });
    assert!(whole("*1\r\n".repeat(32) + ":1\r\n").end.is_ok());
    assert_eq!(whole("*1\r\n".repeat(32) + "*0\r\n").error(), (ErrorKind::Limit(LimitKind::Depth), 128));
    // A map's value is as deep as its key, and an attribute's contents are as deep as an array's.
    assert_eq!(whole("|1\r\n".repeat(33)).error(), (ErrorKind::Limit(LimitKind::Depth), 128));
}

/// K7 and R16: a chunk that begins inside a payload may begin with any byte and is still payload. `splits.rs` has the general property.
#[test]
fn k07_payload_may_resemble_types() {
    for byte in 0..=u8::MAX {
        for len in [1, 2, 22, 23, 64, 40_000] {
            let payload = vec![byte; len];
            let stream = [format!("${len}\r\n").as_bytes(), &payload, b"\r\n:1\r\n"].concat();
            let cut = stream.len() - 6 - len / 2;
            let (front, back) = stream.split_at(cut);
            let outcome = feed(Limits::default(), [front, back]);
            assert_eq!(outcome.values(), [Value::BulkString(payload.into()), Value::Integer(1)]);
        }
    }
}

/// K8: the decoder never starts over. A frame leaves the buffer value by value, so a late byte affects only its own token. `benches`
/// measures the time.
#[test]
fn k08_linear_work() {
    let totals = [50_000, 100_000].map(|elements: usize| {
        let stream = format!("*{elements}\r\n{}", "$3\r\nabc\r\n".repeat(elements));
        let mut decoder = Decoder::new(Limits::default());
        let mut buf = BytesMut::with_capacity(64);
        let mut frames = 0;
        let total = measured(|| {
            for byte in stream.as_bytes() {
                buf.extend_from_slice(&[*byte]);
                frames += usize::from(decoder.decode(&mut buf).unwrap().is_some());
                assert!(buf.len() < "$3\r\nabc\r\n".len(), "a finished value stays in the buffer");
            }
        });
        assert_eq!(frames, 1);
        total.bytes_total
    });
    // Growing by a quarter allocates five times the final size in total, at any size.
    assert!(totals[1] * 10 <= totals[0] * 22 + 10 * 64 * 1024, "{totals:?}");
}

/// K9: attributes are skipped at every place, cost no memory, are bounded, and are not the reply.
#[test]
fn k09_attributes() {
    let ok = Value::SimpleString("OK".into());
    for attribute in [
        "|0\r\n",
        "|1\r\n+key-popularity\r\n*2\r\n$7\r\nkey:123\r\n:90\r\n",
        "|2\r\n$3\r\nttl\r\n:3600\r\n#t\r\n%1\r\n+a\r\n~1\r\n,1.5\r\n",
        "|1\r\n|1\r\n+inner\r\n:1\r\n+outer\r\n|0\r\n_\r\n",
        "|1\r\n+k\r\n=7\r\ntxt:abc\r\n|1\r\n+again\r\n!3\r\nERR\r\n",
    ] {
        assert_eq!(whole(format!("{attribute}+OK\r\n")).value(), ok, "{attribute:?}");
        let inside = format!("*2\r\n{attribute}:1\r\n{attribute}+OK\r\n");
        assert_eq!(whole(inside).value(), Value::Array(vec![1.into(), ok.clone()]), "{attribute:?}");
        let map = format!("%1\r\n{attribute}:1\r\n{attribute}+OK\r\n");
        assert_eq!(whole(map).value(), Value::Map(vec![(1.into(), ok.clone())]), "{attribute:?}");
        let push = format!("{attribute}>2\r\n{attribute}+kind\r\n{attribute}:1\r\n");
        let expected = Push::new(vec![Value::SimpleString("kind".into()), 1.into()]).unwrap();
        assert_eq!(whole(push).frames, [Frame::Push(expected)], "{attribute:?}");
        // An attribute alone is never a reply.
        let alone = whole(attribute);
        assert!(alone.waits());
        assert!(matches!(alone.end, Ok((_, true))), "an end here would be a truncation");
    }

    // A million empty attributes in a row are skipped. Another hundred thousand exceed the limit of values in a frame.
    let chain = "|0\r\n".repeat(1_000_000);
    assert_eq!(whole(chain.clone() + "+OK\r\n").value(), ok);
    let longer = chain + &"|0\r\n".repeat(100_000);
    assert_eq!(whole(longer).error(), (ErrorKind::Limit(LimitKind::Elements), 4 * 1024 * 1024));

    // Skipping keeps nothing.
    let stream = "|500000\r\n".to_owned()
        + &"+a key that is too long to be inline\r\n:1\r\n".repeat(500_000)
        + "+OK\r\n";
    let mut decoder = Decoder::new(Limits::default());
    let mut buf = BytesMut::from(stream.as_bytes());
    let held = measured(|| assert_eq!(decoder.decode(&mut buf), Ok(Some(Frame::Reply(ok.clone())))));
    assert!(held.bytes_max < 1024, "{held:?}");

    // An error inside an attribute is an error.
    assert_eq!(whole("|1\r\n+a\r\n:x\r\n").error(), (ErrorKind::Integer, 9));
    assert_eq!(whole("|1\r\n+a\r\n>1\r\n+x\r\n").error(), (ErrorKind::PushInside, 8));
}

/// K10: pushes between replies are frames of a different kind and do not take the place of a reply. The client matches replies to waiting
/// calls.
#[test]
fn k10_pushes_between_replies() {
    let stream = ":1\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n:2\r\n>2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n+OK\r\n";
    let outcome = whole(stream);
    let kinds: Vec<_> = outcome
        .frames
        .iter()
        .map(|frame| match frame {
            Frame::Reply(value) => value.type_name().to_owned(),
            Frame::Push(push) => format!("push {} +{}", push.kind().escape_ascii(), push.args().len()),
        })
        .collect();
    assert_eq!(kinds, ["integer", "push message +2", "integer", "push invalidate +1", "simple string"]);
}

/// K11: a push is a frame of its own and begins with a string. The codec treats an unknown kind like any other push; the client decides
/// about it.
#[test]
fn k11_pushes_out_of_place() {
    for (stream, kind, offset) in [
        ("*1\r\n>1\r\n+x\r\n", ErrorKind::PushInside, 4),
        ("%1\r\n+k\r\n>1\r\n+x\r\n", ErrorKind::PushInside, 8),
        (">2\r\n+kind\r\n>1\r\n+x\r\n", ErrorKind::PushInside, 11),
        ("|1\r\n+k\r\n>1\r\n+x\r\n", ErrorKind::PushInside, 8),
        (">0\r\n", ErrorKind::PushKind, 0),
        (">1\r\n:1\r\n", ErrorKind::PushKind, 4),
        (">1\r\n_\r\n", ErrorKind::PushKind, 4),
        (">1\r\n$-1\r\n", ErrorKind::PushKind, 4),
        (">1\r\n-ERR\r\n", ErrorKind::PushKind, 4),
        (">1\r\n!3\r\nERR\r\n", ErrorKind::PushKind, 4),
        (">1\r\n*1\r\n+x\r\n", ErrorKind::PushKind, 4),
        (">1\r\n%0\r\n", ErrorKind::PushKind, 4),
        (">1\r\n#t\r\n", ErrorKind::PushKind, 4),
        (">1\r\n,1\r\n", ErrorKind::PushKind, 4),
        (">1\r\n(1\r\n", ErrorKind::PushKind, 4),
        (">1\r\n|0\r\n:1\r\n", ErrorKind::PushKind, 8),
        (">1\r\nx", ErrorKind::UnknownType(b'x'), 4),
        (">-1\r\n", ErrorKind::Length, 1),
    ] {
        assert_eq!(whole(stream).error(), (kind, offset), "{stream:?}");
    }
    for stream in [
        ">1\r\n+never-heard-of\r\n",
        ">1\r\n$14\r\nnever-heard-of\r\n",
        ">1\r\n=18\r\ntxt:never-heard-of\r\n",
    ] {
        match &whole(stream).frames[..] {
            [Frame::Push(push)] => assert_eq!(push.kind(), b"never-heard-of"),
            frames => panic!("{frames:?}"),
        }
    }
}

/// K12: streamed types are rejected at once, by name.
#[test]
fn k12_streamed_types() {
    for (stream, byte, offset) in [
        ("$?\r\n;4\r\nHell\r\n;0\r\n", b'$', 1),
        ("*?\r\n:1\r\n.\r\n", b'*', 1),
        ("~?\r\n.\r\n", b'~', 1),
        ("%?\r\n+a\r\n:1\r\n.\r\n", b'%', 1),
        (">?\r\n", b'>', 1),
        ("|?\r\n", b'|', 1),
        (";4\r\nHell\r\n", b';', 0),
        (".\r\n", b'.', 0),
        ("*1\r\n$?", b'$', 5),
        (">1\r\n$?", b'$', 5),
    ] {
        assert_eq!(whole(stream).error(), (ErrorKind::Unsupported(byte), offset), "{stream:?}");
    }
}

/// K13: doubles and big numbers are values, or errors at the first invalid byte. A long number exceeds a limit instead of causing a slow
/// parse.
#[test]
fn k13_doubles_and_big_numbers() {
    for (text, expected) in [
        ("0", 0.0),
        ("-0", -0.0),
        ("10", 10.0),
        ("+1.5", 1.5),
        ("2.625", 2.625),
        ("5.", 5.0),
        ("1.5e3", 1500.0),
        ("1.5E-3", 0.0015),
        ("-1.0000000000000001e+300", -1e300),
        ("inf", f64::INFINITY),
        ("+inf", f64::INFINITY),
        ("-inf", f64::NEG_INFINITY),
        ("1e400", f64::INFINITY),
        ("-1e400", f64::NEG_INFINITY),
        ("1e-400", 0.0),
    ] {
        let value = whole(format!(",{text}\r\n")).value().as_f64().unwrap();
        assert_eq!(value.to_bits(), expected.to_bits(), "{text}");
    }
    for text in ["nan", "-nan"] {
        assert!(whole(format!(",{text}\r\n")).value().as_f64().unwrap().is_nan());
    }
    for (text, offset) in [
        ("", 0),
        ("-", 1),
        (".5", 0),
        ("1.5.", 3),
        ("1e", 2),
        ("1e+", 3),
        ("e5", 0),
        (" 1", 0),
        ("1 ", 1),
        ("0x10", 1),
        ("infinity", 0),
        ("INF", 0),
        ("NaN", 0),
        ("1,5", 1),
        ("1_0", 1),
    ] {
        assert_eq!(whole(format!(",{text}\r\n")).error(), (ErrorKind::Double, 1 + offset), "{text:?}");
    }
    let digits = "1".repeat(60_000);
    assert_eq!(whole(format!(",{digits}\r\n")).value().as_f64(), Some(f64::INFINITY));
    assert_eq!(whole(format!("(-{digits}\r\n")).value(), Value::BigNumber(format!("-{digits}").into()));
    let digits = "1".repeat(1_000_000);
    assert_eq!(whole(format!("({digits}\r\n")).error(), (ErrorKind::Limit(LimitKind::Line), 0));
    assert_eq!(whole(format!(",{digits}")).error(), (ErrorKind::Limit(LimitKind::Line), 0));
    for (text, offset) in [("", 0), ("-", 1), ("+", 1), ("12a", 2), ("1.5", 1), (" 1", 0), ("--1", 1)] {
        assert_eq!(whole(format!("({text}\r\n")).error(), (ErrorKind::BigNumber, 1 + offset), "{text:?}");
    }
    for (text, expected) in [("+7", 7), ("-0", 0), ("007", 7), ("9223372036854775807", i64::MAX)] {
        assert_eq!(whole(format!(":{text}\r\n")).value(), Value::Integer(expected), "{text:?}");
    }
    assert_eq!(whole(format!(":{}\r\n", i64::MIN)).value(), Value::Integer(i64::MIN));
    for (text, offset) in [
        ("", 0),
        ("-", 1),
        ("--1", 1),
        ("+-1", 1),
        ("1.0", 1),
        (" 1", 0),
        ("9223372036854775808", 18),
        ("-9223372036854775809", 19),
        ("000000000000000000000", 20),
    ] {
        assert_eq!(whole(format!(":{text}\r\n")).error(), (ErrorKind::Integer, 1 + offset), "{text:?}");
    }
}

/// K14: the small types accept only their allowed contents.
#[test]
fn k14_small_types() {
    assert_eq!(whole("#t\r\n").value(), Value::Boolean(true));
    assert_eq!(whole("#f\r\n").value(), Value::Boolean(false));
    assert_eq!(whole("_\r\n").value(), Value::Null);
    let text = Value::Verbatim { format: *b"txt", text: "Some string".into() };
    assert_eq!(whole("=15\r\ntxt:Some string\r\n").value(), text);
    assert_eq!(whole("=4\r\nmkd:\r\n").value(), Value::Verbatim { format: *b"mkd", text: Blob::new() });
    for (stream, kind, offset) in [
        ("#x", ErrorKind::Boolean, 1),
        ("#T\r\n", ErrorKind::Boolean, 1),
        ("#\r\n", ErrorKind::Boolean, 1),
        ("#true\r\n", ErrorKind::LineEnding, 2),
        ("_x", ErrorKind::Null, 1),
        ("_ \r\n", ErrorKind::Null, 1),
        ("=3\r\ntxt\r\n", ErrorKind::Verbatim, 1),
        ("=0\r\n\r\n", ErrorKind::Verbatim, 1),
        ("=8\r\ntxt;abcd\r\n", ErrorKind::Verbatim, 7),
        ("=8\r\ntxt;", ErrorKind::Verbatim, 7),
    ] {
        assert_eq!(whole(stream).error(), (kind, offset), "{stream:?}");
    }
    // A large verbatim string is sliced, and its format is still removed.
    let stream = format!("={}\r\ntxt:{}\r\n", 100_004, "x".repeat(100_000));
    assert_eq!(whole(stream).value(), Value::Verbatim { format: *b"txt", text: "x".repeat(100_000).into() });
}

/// K15: a line without an end is an error as soon as it exceeds the limit, however slowly it arrives.
#[test]
fn k15_endless_lines() {
    let limit = ErrorKind::Limit(LimitKind::Line);
    for kind in [b'+', b'-', b'(', b','] {
        let line = [&[kind][..], &vec![b'1'; 64 * 1024]].concat();
        assert!(whole(&line).waits(), "at the limit");
        assert_eq!(whole([&line[..], b"1"].concat()).error(), (limit, 0));
        let outcome = feed(Limits::default(), [&line[..], b"1\r\n"].concat().chunks(1));
        assert_eq!(outcome.error(), (limit, 0));
        assert!(whole([&line[..], b"\r\n"].concat()).end.is_ok());
        assert!(whole([&line[..], b"\r"].concat()).waits());
    }
    let long = Limits { line: 2 * 1024 * 1024, ..Limits::default() };
    let line = [b"+".as_slice(), &vec![b'x'; 1024 * 1024], b"\r\n"].concat();
    assert_eq!(feed(long, [&line[..]]).value().as_bytes().map(<[u8]>::len), Some(1024 * 1024));
}

/// K16: an unrequested reply looks like any other. The codec keeps nothing between frames, so the client can detect such a reply because no
/// call is waiting. The client must close the connection.
#[test]
fn k16_stray_reply() {
    let mut decoder = Decoder::new(Limits::default());
    let mut buf = BytesMut::from(&b"$3\r\nfoo\r\n"[..]);
    assert!(decoder.decode(&mut buf).unwrap().is_some());
    assert!(buf.is_empty() && !decoder.is_mid_frame());
    assert_eq!(decoder.consumed(), 9);
    assert_eq!(decoder.decode(&mut buf), Ok(None));
}

/// K17: the decoder does not replace a missing reply. After one frame it waits, and reports that it waits between frames and not inside a
/// frame. The client must time out and close the connection.
#[test]
fn k17_missing_reply() {
    let mut decoder = Decoder::new(Limits::default());
    let mut buf = BytesMut::from(&b":1\r\n"[..]);
    assert_eq!(decoder.decode(&mut buf), Ok(Some(Frame::Reply(1.into()))));
    for _ in 0..3 {
        assert_eq!(decoder.decode(&mut buf), Ok(None));
        assert!(!decoder.is_mid_frame());
    }
    buf.extend_from_slice(b"*2\r\n:2\r\n");
    assert_eq!(decoder.decode(&mut buf), Ok(None));
    assert!(buf.is_empty() && decoder.is_mid_frame());
}

/// K18: a reply of the wrong type is detected by its type, because accessors do not convert. The client must treat the connection as
/// suspect.
#[test]
fn k18_wrong_type() {
    for (stream, name) in [
        ("_\r\n", "null"),
        ("#t\r\n", "boolean"),
        (",1\r\n", "double"),
        ("+1\r\n", "simple string"),
        ("-1\r\n", "simple error"),
        ("$1\r\n1\r\n", "bulk string"),
        ("!1\r\n1\r\n", "bulk error"),
        ("=5\r\ntxt:1\r\n", "verbatim string"),
        ("(1\r\n", "big number"),
        ("*1\r\n:1\r\n", "array"),
        ("~1\r\n:1\r\n", "set"),
        ("%1\r\n:1\r\n:1\r\n", "map"),
    ] {
        let value = whole(stream).value();
        assert_eq!(value.type_name(), name);
        assert_eq!(value.as_i64(), None, "{stream:?}");
        assert_eq!(value.as_error().is_some(), name.ends_with("error"));
        assert_eq!(value.as_bytes().is_some(), name.ends_with("string"));
        assert_eq!(value.clone().into_bytes().is_some(), name.ends_with("string"));
    }
    assert_eq!(whole(":1\r\n").value().as_i64(), Some(1));
}

/// K19: the bytes of an error are kept unchanged. The display form is escaped and cut at 256 bytes.
#[test]
fn k19_error_texts() {
    let text = b"ERR \xff\xfe \x1b[31mred\x1b[0m \0";
    for stream in [
        [b"-".as_slice(), text, b"\r\n"].concat(),
        [format!("!{}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat(),
    ] {
        let value = whole(stream).value();
        assert_eq!(value.as_error(), Some(&text[..]));
        let shown = format!("{value:?}");
        assert!(shown.is_ascii() && !shown.contains(char::is_control), "{shown}");
    }
    let value = whole("!9\r\na\r\nFORGED\r\n").value();
    assert!(!format!("{value:?}").contains('\n'));

    let huge = format!("!{}\r\n{}\r\n", 1_000_000, "x".repeat(1_000_000));
    let value = whole(huge).value();
    assert_eq!(value.as_error().map(<[u8]>::len), Some(1_000_000));
    let Value::BulkError(text) = value else { panic!("{value:?}") };
    assert_eq!(text.to_string(), format!("{}... (1000000 bytes)", "x".repeat(256)));
}

/// K20: an argument is encoded as its length and its bytes, whatever they are. The lock layer must reject names over 4 KiB.
#[test]
fn k20_encoder() {
    let big = vec![b'x'; 100_000];
    let args: [&[u8]; 9] = [
        b"",
        b"\r\n",
        b"\0",
        b"\xff\xfe",
        b"{tag}",
        b"$5\r\nhello\r\n",
        "\u{1F512}".as_bytes(),
        &big,
        b"*1\r\n",
    ];
    let command = Command::new("EVAL").args(args).args([i64::MIN, -1, 0, i64::MAX]).arg(u64::MAX);
    let mut out = BytesMut::new();
    command.encode(&mut out);
    assert_eq!(out.len(), command.encoded_len());

    let mut expected = vec![Value::BulkString("EVAL".into())];
    expected.extend(args.map(Value::from));
    expected.extend([i64::MIN, -1, 0, i64::MAX].map(|number| Value::from(number.to_string().as_str())));
    expected.push(u64::MAX.to_string().as_str().into());
    assert_eq!(whole(&out).value(), Value::Array(expected), "a command is an array of bulk strings");

    let rest: Vec<Arg<'_>> = args.iter().map(|&arg| arg.into()).collect();
    let template = EvalSha::new(&"0".repeat(40), 2, rest.len() - 2);
    let mut out = BytesMut::new();
    template.encode(&mut out, &rest).unwrap();
    let value = whole(&out).value();
    let items = value.as_array().unwrap();
    assert_eq!(items.len(), 3 + rest.len());
    for (item, arg) in items.iter().skip(3).zip(args) {
        assert_eq!(item.as_bytes(), Some(arg));
    }
}

/// Small replies and commands do not allocate, and a short payload does not keep its read block alive.
#[test]
fn allocations_of_the_usual() {
    let stream = b":1\r\n:-9223372036854775808\r\n+OK\r\n_\r\n#t\r\n,1.5\r\n$-1\r\n$16\r\n0123456789abcdef\r\n$22\r\n0123456789abcdef012345\r\n-ERR short\r\n(12345\r\n=7\r\ntxt:abc\r\n*0\r\n%0\r\n";
    let mut buf = BytesMut::from(&stream.repeat(10)[..]);
    let mut decoder = Decoder::new(Limits::default());
    let mut kept = Vec::with_capacity(1000);
    let decoding = measured(|| {
        while let Some(frame) = decoder.decode(&mut buf).unwrap() {
            kept.push(frame);
        }
    });
    assert_eq!(kept.len(), 140);
    assert_eq!(decoding.count_total, 0, "{decoding:?}");

    // Only this buffer holds the block, so the whole block can be reclaimed.
    let capacity = buf.capacity();
    buf.clear();
    assert!(buf.try_reclaim(capacity + stream.len() * 10), "something kept holds the block");

    let mut out = BytesMut::with_capacity(4096);
    let template = EvalSha::new(&"0".repeat(40), 1, 2);
    let encoding = measured(|| {
        for _ in 0..10 {
            Command::new("EVALSHA").arg("sha").arg(1).arg("key").arg(30_000).arg("owner").encode(&mut out);
            template.encode(&mut out, &["key".into(), 30_000.into(), "owner".into()]).unwrap();
        }
    });
    assert_eq!(encoding.count_total, 0, "{encoding:?}");

    // A caller that reserves the exact length causes no further allocation.
    let command = Command::new("SET").arg("key").arg("value").arg("PX").arg(30_000);
    let mut exact = BytesMut::with_capacity(command.encoded_len());
    let encoding = measured(|| command.encode(&mut exact));
    assert_eq!((encoding.count_total, exact.len()), (0, exact.capacity()));

    // From 23 bytes on a payload has its own allocation; from 32 KiB on it is a slice.
    for (len, bytes) in
        [(23, 23), (1000, 1000), (32 * 1024 - 1, 32 * 1024 - 1), (32 * 1024, 200), (1024 * 1024, 200)]
    {
        let mut buf = BytesMut::from(format!("${len}\r\n{}\r\n", "x".repeat(len)).as_bytes());
        let mut frame = None;
        let held = measured(|| frame = decoder.decode(&mut buf).unwrap());
        assert!(held.count_total <= 2 && held.bytes_total <= bytes, "{len}: {held:?}");
        assert!(matches!(frame, Some(Frame::Reply(value)) if value.as_bytes().map(<[u8]>::len) == Some(len)));
    }
}

/// A slice keeps its block alive. A small part of a large block is therefore copied, wherever it lies in the block.
#[test]
fn slice_does_not_pin_large_block() {
    let bulk = format!("${}\r\n{}\r\n", 40_000, "x".repeat(40_000));
    for (capacity, before) in [(50_000, 0), (150_000, 0), (200_000, 0), (1 << 20, 0), (1 << 20, 1_000_000)] {
        let mut decoder = Decoder::new(Limits::default());
        let mut buf = BytesMut::with_capacity(capacity);
        buf.extend_from_slice(&b"+OK\r\n".repeat(before / 5));
        while decoder.decode(&mut buf).unwrap().is_some() {}
        buf.extend_from_slice(bulk.as_bytes());
        let mut frame = None;
        let decoding = measured(|| frame = decoder.decode(&mut buf).unwrap());
        let sliced = decoding.bytes_total < 1000;
        assert_eq!(sliced, capacity <= 4 * 40_000, "{capacity} {before} {decoding:?}");
        assert!(frame.is_some());
    }
}

/// Feeds the pieces like `feed`, and reserves the room that the decoder wants.
fn read<'a>(limits: Limits, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut decoder = Decoder::new(limits);
    let mut buf = BytesMut::new();
    let mut frames = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut buf) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return Outcome { frames, end: Err(error) },
            }
        }
        buf.reserve(decoder.wanted());
    }
    let taken = decoder.consumed() + buf.len() as u64;
    Outcome { frames, end: Ok((taken, decoder.is_mid_frame() || !buf.is_empty())) }
}

fn measured(work: impl FnOnce()) -> AllocationInfo {
    allocation_counter::measure(work)
}

/// Runs every operation that recurses over a value.
fn exercise(limits: Limits, stream: &str) {
    let value = feed(limits, [stream.as_bytes()]).value();
    let copy = value.clone();
    assert_eq!(value, copy);
    assert!(format!("{copy:#?}").len() > limits.depth);
    let mut encoded = BytesMut::new();
    copy.encode(&mut encoded);
    assert_eq!(encoded, stream);
}

fn on_a_stack_of(kib: usize, work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(kib * 1024).spawn(work).unwrap().join().unwrap();
}
