//! Pushes of which only the first values are kept.

use bytes::BytesMut;
use wheellock_resp::{Decoder, ErrorKind, Frame, LimitKind, Limits, Value};

const SMALL: Limits = Limits { depth: 8, bulk: 100, elements: 100, line: 100, frame: 200 };

fn decoder() -> Decoder {
    Decoder::new(SMALL).keeping_of_pushes(2)
}

/// Decodes `wire`, split at `cut`.
fn decode(wire: &[u8], cut: usize) -> Vec<Frame> {
    let (mut decoder, mut buf, mut frames) = (decoder(), BytesMut::new(), Vec::new());
    for part in [&wire[..cut], &wire[cut..]] {
        buf.extend_from_slice(part);
        while let Some(frame) = decoder.decode(&mut buf).unwrap() {
            frames.push(frame);
        }
    }
    assert!(buf.is_empty() && !decoder.is_mid_frame());
    frames
}

#[test]
fn dropped_values_leave_later_frames_intact() {
    let large = "x".repeat(250);
    for dropped in [
        format!("$250\r\n{large}\r\n"),
        format!("!250\r\n{large}\r\n"),
        format!("=250\r\ntxt:{}\r\n", &large[..246]),
        format!("*2\r\n$250\r\n{large}\r\n%1\r\n+a\r\n$250\r\n{large}\r\n"),
        "*0\r\n".to_owned(),
        "$0\r\n\r\n".to_owned(),
        "$-1\r\n".to_owned(),
        ":7\r\n".to_owned(),
        "+short\r\n".to_owned(),
    ] {
        let wire = format!(":1\r\n>3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n{dropped}:2\r\n");
        for cut in 0..wire.len() {
            let frames = decode(wire.as_bytes(), cut);
            let [Frame::Reply(Value::Integer(1)), Frame::Push(push), Frame::Reply(Value::Integer(2))] =
                &frames[..]
            else {
                panic!("{frames:?}, cut at {cut}: {wire:?}")
            };
            assert_eq!((push.kind(), push.args()), (&b"message"[..], &["news".into()][..]));
        }
    }
}

/// A short payload is kept, however it arrives. A longer one leaves an empty payload.
#[test]
fn only_short_payloads_are_kept() {
    for len in [0, 1, 59, 60, 61, 99, 100, 101, 250] {
        let payload = "x".repeat(len);
        let kept = if len <= 60 { &*payload } else { "" };
        let head = ">4\r\n$7\r\nmessage\r\n$12\r\nover ten now\r\n";
        let wire = format!("{head}${len}\r\n{payload}\r\n:9\r\n:2\r\n");
        for cut in 0..wire.len() {
            let mut decoder = Decoder::new(SMALL).keeping_short_of_pushes(2, 60);
            let (mut buf, mut frames) = (BytesMut::new(), Vec::new());
            for part in [&wire[..cut], &wire[cut..]] {
                buf.extend_from_slice(part.as_bytes());
                while let Some(frame) = decoder.decode(&mut buf).unwrap() {
                    frames.push(frame);
                }
            }
            let [Frame::Push(push), Frame::Reply(Value::Integer(2))] = &frames[..] else {
                panic!("{frames:?}, cut at {cut}: {wire:?}")
            };
            assert_eq!(push.args(), &["over ten now".into(), kept.into()][..], "{len}, cut at {cut}");
        }
    }
}

/// A list in a push, such as the list of changed keys, does not count as a payload.
#[test]
fn long_keys_in_push_are_kept() {
    let mut decoder = Decoder::new(SMALL).keeping_short_of_pushes(2, 60);
    let key = "k".repeat(90);
    let mut buf = BytesMut::from(&*format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n$90\r\n{key}\r\n"));
    let Some(Frame::Push(push)) = decoder.decode(&mut buf).unwrap() else { panic!("a push") };
    let keys = push.args().first().and_then(Value::as_array).unwrap();
    assert_eq!(keys[0].as_bytes(), Some(key.as_bytes()));
}

#[test]
fn dropped_payload_takes_no_memory() {
    takes_no_memory(Decoder::new(Limits::default()).keeping_of_pushes(2));
    takes_no_memory(Decoder::new(Limits::default()).keeping_short_of_pushes(2, 1024));
}

fn takes_no_memory(mut decoder: Decoder) {
    let len = Limits::default().bulk + (1 << 20);
    let mut buf = BytesMut::from(&*format!(">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n${len}\r\n"));
    let piece = [b'x'; 64 << 10];
    for _ in 0..len / piece.len() {
        assert_eq!(decoder.decode(&mut buf).unwrap(), None);
        assert_eq!((buf.len(), decoder.wanted()), (0, 0));
        buf.extend_from_slice(&piece);
    }
    buf.extend_from_slice(b"\r\n:1\r\n");
    assert!(matches!(decoder.decode(&mut buf).unwrap(), Some(Frame::Push(_))));
    assert_eq!(decoder.decode(&mut buf).unwrap(), Some(Frame::Reply(1.into())));
}

#[test]
fn limits_hold_outside_dropped_values() {
    let fails = |wire: &str| decoder().decode(&mut BytesMut::from(wire)).unwrap_err().kind();
    assert_eq!(fails("$101\r\n"), ErrorKind::Limit(LimitKind::Bulk));
    assert_eq!(fails(">3\r\n$7\r\nmessage\r\n$101\r\n"), ErrorKind::Limit(LimitKind::Bulk), "a kept value");
    let beyond = Limits::MAX_BULK + 1;
    assert_eq!(fails(&format!(">3\r\n+a\r\n+b\r\n${beyond}\r\n")), ErrorKind::Limit(LimitKind::Bulk));
    assert_eq!(fails(">3\r\n+a\r\n+b\r\n$3\r\nxyzz\r\n"), ErrorKind::LineEnding, "its end is checked");
    assert_eq!(fails(">3\r\n+a\r\n+b\r\n*101\r\n"), ErrorKind::Limit(LimitKind::Elements));
}
