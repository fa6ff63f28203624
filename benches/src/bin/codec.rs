//! Codec benchmarks beside two other parsers.
//!
//! The parsers are `redis-protocol` 6 (RESP3, zero-copy) and the `redis` crate's; all decode the same bytes.

use std::hint::black_box;

use anyhow::Result;
use bytes::{Bytes, BytesMut};
use redis_protocol::resp3;
use redis_protocol::resp3::types::{BorrowedFrame, BytesFrame, DecodedFrame};
use tokio_util::codec::Decoder as _;
use wheellock_benches::{Bench, Report, process_cpu};
use wheellock_resp::{Command, Decoder, EvalSha, Frame, Limits, Value};

fn main() -> Result<()> {
    let mut report = Report::new("codec");
    harness(&mut report)?;
    decode(&mut report, "small :1", "frame", &b":1\r\n".repeat(FRAMES), FRAMES)?;
    decode(&mut report, "small +OK", "frame", &b"+OK\r\n".repeat(FRAMES), FRAMES)?;
    decode(
        &mut report,
        "small 16-byte bulk",
        "frame",
        &b"$16\r\n0123456789abcdef\r\n".repeat(FRAMES),
        FRAMES,
    )?;
    decode(&mut report, "small lock mix", "frame", &lock_mix(), FRAMES)?;
    one_per_read(&mut report)?;
    decode(&mut report, "1000 bulks of 16 B, nested", "element", &nested(16), 1000)?;
    decode(&mut report, "1000 bulks of 38 B, nested", "element", &nested(38), 1000)?;
    megabyte(&mut report)?;
    eval_sha(&mut report)?;
    linear(&mut report)?;
    report.finish()
}

/// Measures the harness's own cost, and the cost of counting an allocation.
fn harness(report: &mut Report) -> Result<()> {
    Bench::new("harness", "unit")
        .no_op()
        .beside("one allocation", |times| {
            for _ in 0..times {
                black_box(Box::new(black_box(1_u64)));
            }
            times
        })
        .run(report)
}

/// Decodes a stream of whole frames completely.
fn decode(report: &mut Report, name: &str, unit: &str, stream: &[u8], units: usize) -> Result<()> {
    let units = units as u64;
    Bench::new(name, unit)
        .no_op()
        .beside("scan floor", |times| {
            for _ in 0..times {
                black_box(scan(black_box(stream)));
            }
            times * units
        })
        .subject("wheellock-resp", {
            let mut buf = BytesMut::new();
            move |times| {
                let mut count = 0;
                for _ in 0..times {
                    buf.extend_from_slice(black_box(stream));
                    let mut decoder = Decoder::new(Limits::default());
                    while let Ok(Some(frame)) = decoder.decode(&mut buf) {
                        count += values(black_box(&frame));
                    }
                    assert!(buf.is_empty());
                }
                count
            }
        })
        .subject("redis-protocol", {
            let mut buf = BytesMut::new();
            move |times| {
                let mut count = 0;
                for _ in 0..times {
                    buf.extend_from_slice(black_box(stream));
                    while let Ok(Some((DecodedFrame::Complete(frame), _, _))) =
                        resp3::decode::streaming::decode_bytes_mut(&mut buf)
                    {
                        count += protocol_values(black_box(&frame));
                    }
                    assert!(buf.is_empty());
                }
                count
            }
        })
        .subject("redis", {
            let mut buf = BytesMut::new();
            move |times| {
                let mut count = 0;
                for _ in 0..times {
                    buf.extend_from_slice(black_box(stream));
                    let mut codec = redis::ValueCodec::default();
                    while let Ok(Some(value)) = codec.decode(&mut buf) {
                        count += redis_values(black_box(&value));
                    }
                    assert!(buf.is_empty());
                }
                count
            }
        })
        .run(report)
}

/// Decodes single replies, one per read: the pattern of a connection whose only task waits for each reply.
fn one_per_read(report: &mut Report) -> Result<()> {
    let stream = &b":29849\r\n"[..];
    Bench::new("one :29849 per read", "read")
        .no_op()
        .subject("wheellock-resp", {
            let mut buf = BytesMut::with_capacity(READ);
            let mut decoder = Decoder::new(Limits::default());
            move |times| {
                let mut count = 0;
                for _ in 0..times {
                    buf.reserve(READ);
                    buf.extend_from_slice(black_box(stream));
                    while let Ok(Some(frame)) = decoder.decode(&mut buf) {
                        count += values(black_box(&frame));
                    }
                }
                count
            }
        })
        .subject("redis-protocol", {
            let mut buf = BytesMut::with_capacity(READ);
            move |times| {
                let mut count = 0;
                for _ in 0..times {
                    buf.reserve(READ);
                    buf.extend_from_slice(black_box(stream));
                    while let Ok(Some((DecodedFrame::Complete(frame), _, _))) =
                        resp3::decode::streaming::decode_bytes_mut(&mut buf)
                    {
                        count += protocol_values(black_box(&frame));
                    }
                }
                count
            }
        })
        .subject("redis", {
            let mut buf = BytesMut::with_capacity(READ);
            let mut codec = redis::ValueCodec::default();
            move |times| {
                let mut count = 0;
                for _ in 0..times {
                    buf.reserve(READ);
                    buf.extend_from_slice(black_box(stream));
                    while let Ok(Some(value)) = codec.decode(&mut buf) {
                        count += redis_values(black_box(&value));
                    }
                }
                count
            }
        })
        .run(report)
}

/// Decodes one large bulk in a buffer of its own size, as after a read that reserved room for it.
fn megabyte(report: &mut Report) -> Result<()> {
    let mut stream = b"$1048576\r\n".to_vec();
    stream.resize(stream.len() + 1024 * 1024, b'x');
    stream.extend_from_slice(b"\r\n");
    let prepare = || BytesMut::from(&stream[..]);
    Bench::new("one 1 MiB bulk", "bulk")
        .no_op_each()
        .subject_each("wheellock-resp", prepare, |mut buf| {
            let frame = Decoder::new(Limits::default()).decode(&mut buf);
            assert!(matches!(frame, Ok(Some(_))));
            (frame, buf)
        })
        .subject_each("redis-protocol", prepare, |mut buf| {
            let frame = resp3::decode::streaming::decode_bytes_mut(&mut buf);
            assert!(matches!(frame, Ok(Some(_))));
            (frame, buf)
        })
        .subject_each("redis", prepare, |mut buf| {
            let value = redis::ValueCodec::default().decode(&mut buf);
            assert!(matches!(value, Ok(Some(_))));
            (value, buf)
        })
        .run(report)
}

/// Builds and encodes one call of a script with a key, a lease in milliseconds, and an owner.
fn eval_sha(report: &mut Report) -> Result<()> {
    let (key, lease, owner) = ("orders:42", 30_000_i64, "3f1c4b52-9a30-4b1e-8a3d-0242ac120002:1");
    let template = EvalSha::new(SHA, 1, 2);
    let mut floor = Vec::new();
    floor.extend_from_slice(&generic(key, lease, owner));
    Bench::new("EVALSHA 1 key 2 args", "command")
        .no_op()
        .beside("copy of the bytes", {
            let mut out = BytesMut::new();
            move |times| {
                for _ in 0..times {
                    out.clear();
                    out.extend_from_slice(black_box(&floor));
                    black_box(&out);
                }
                times
            }
        })
        .subject("wheellock-resp template", {
            let mut out = BytesMut::new();
            move |times| {
                for _ in 0..times {
                    out.clear();
                    let rest = [black_box(key).into(), black_box(lease).into(), black_box(owner).into()];
                    black_box(template.encode(&mut out, &rest)).ok();
                    black_box(&out);
                }
                times * out.len() as u64 / LEN
            }
        })
        .subject("wheellock-resp command", {
            let mut out = BytesMut::new();
            move |times| {
                for _ in 0..times {
                    out.clear();
                    Command::new(black_box("EVALSHA"))
                        .arg(black_box(SHA))
                        .arg(1)
                        .arg(black_box(key))
                        .arg(black_box(lease))
                        .arg(black_box(owner))
                        .encode(&mut out);
                    black_box(&out);
                }
                times * out.len() as u64 / LEN
            }
        })
        .subject("redis-protocol", {
            let mut out = BytesMut::new();
            move |times| {
                for _ in 0..times {
                    out.clear();
                    let blob = |text: &'static str| BorrowedFrame::BlobString {
                        data: black_box(text).as_bytes(),
                        attributes: None,
                    };
                    let number = |data| BorrowedFrame::Number { data: black_box(data), attributes: None };
                    let data = [blob("EVALSHA"), blob(SHA), number(1), blob(key), number(lease), blob(owner)];
                    let frame = BorrowedFrame::Array { data: &data, attributes: None };
                    black_box(resp3::encode::complete::extend_encode_borrowed(&mut out, &frame, true)).ok();
                    black_box(&out);
                }
                times * out.len() as u64 / LEN
            }
        })
        .subject("redis-protocol owned", {
            let mut out = BytesMut::new();
            move |times| {
                for _ in 0..times {
                    out.clear();
                    let blob = |text: &'static str| BytesFrame::BlobString {
                        data: Bytes::copy_from_slice(black_box(text).as_bytes()),
                        attributes: None,
                    };
                    let number = |data| BytesFrame::Number { data: black_box(data), attributes: None };
                    let data =
                        vec![blob("EVALSHA"), blob(SHA), number(1), blob(key), number(lease), blob(owner)];
                    let frame = BytesFrame::Array { data, attributes: None };
                    black_box(resp3::encode::complete::extend_encode(&mut out, &frame, true)).ok();
                    black_box(&out);
                }
                times * out.len() as u64 / LEN
            }
        })
        .subject("redis", {
            let mut out = Vec::new();
            move |times| {
                for _ in 0..times {
                    out.clear();
                    let mut command = redis::cmd(black_box("EVALSHA"));
                    command
                        .arg(black_box(SHA))
                        .arg(1)
                        .arg(black_box(key))
                        .arg(black_box(lease))
                        .arg(black_box(owner));
                    command.write_packed_command(&mut out);
                    black_box(&out);
                }
                times * out.len() as u64 / LEN
            }
        })
        .run(report)
}

fn generic(key: &str, lease: i64, owner: &str) -> BytesMut {
    let mut out = BytesMut::new();
    Command::new("EVALSHA").arg(SHA).arg(1).arg(key).arg(lease).arg(owner).encode(&mut out);
    assert_eq!(out.len() as u64, LEN);
    out
}

/// Compares a frame of single bytes with one of twice the elements: a ratio of 2 is linear, 4 is quadratic.
fn linear(report: &mut Report) -> Result<()> {
    ratio(report, "wheellock-resp", 100_000, |stream| {
        let mut decoder = Decoder::new(Limits::default());
        feed(stream, |buf| decoder.decode(buf).is_ok_and(|frame| frame.is_some()))
    });
    ratio(report, "redis", 100_000, |stream| {
        let mut codec = redis::ValueCodec::default();
        feed(stream, |buf| codec.decode(buf).is_ok_and(|value| value.is_some()))
    });
    ratio(report, "redis-protocol", 250, |stream| {
        feed(stream, |buf| resp3::decode::streaming::decode_bytes_mut(buf).is_ok_and(|frame| frame.is_some()))
    });
    Ok(())
}

fn ratio(report: &mut Report, subject: &str, elements: usize, mut decode: impl FnMut(&[u8]) -> bool) {
    let bench = "array in 1-byte chunks";
    if !report.wants(bench) {
        return;
    }
    let stream = |elements: usize| {
        let mut stream = format!("*{elements}\r\n").into_bytes();
        stream.extend_from_slice(&b"$1\r\nx\r\n".repeat(elements));
        stream
    };
    let (once, twice) = (stream(elements), stream(2 * elements));
    // Use CPU time: a ratio of wall-clock times depends more on other programs.
    let mut time = |stream: &[u8]| {
        let before = process_cpu();
        assert!(decode(black_box(stream)));
        (process_cpu() - before).as_secs_f64()
    };
    time(&twice);
    let (mut ratios, mut per_element) = (Vec::new(), Vec::new());
    for _ in 0..report.rounds() {
        let (short, long) = (time(&once), time(&twice));
        ratios.push(long / short);
        #[expect(clippy::cast_precision_loss, reason = "figures with three digits")]
        per_element.push(long * 1e9 / (2 * elements) as f64);
    }
    report.row(bench, subject, "time(2n)/time(n)", "x", &ratios);
    report.row(bench, subject, &format!("time, n = {}", 2 * elements), "ns/element", &per_element);
}

/// Feeds single bytes until the frame is complete. Returns true if the last byte completed it.
fn feed(stream: &[u8], mut complete: impl FnMut(&mut BytesMut) -> bool) -> bool {
    let mut buf = BytesMut::new();
    for (at, byte) in stream.iter().enumerate() {
        buf.extend_from_slice(&[*byte]);
        if complete(&mut buf) {
            return at + 1 == stream.len();
        }
    }
    false
}

/// Returns the number of values in a frame: one, or the number of values in its nested arrays.
fn values(frame: &Frame) -> u64 {
    match frame {
        Frame::Reply(Value::Array(items)) => {
            items.iter().map(|item| item.as_array().map_or(1, <[_]>::len)).sum::<usize>() as u64
        }
        _ => 1,
    }
}

fn protocol_values(frame: &BytesFrame) -> u64 {
    match frame {
        BytesFrame::Array { data, .. } => data
            .iter()
            .map(|item| match item {
                BytesFrame::Array { data, .. } => data.len(),
                _ => 1,
            })
            .sum::<usize>() as u64,
        _ => 1,
    }
}

fn redis_values(value: &redis::Value) -> u64 {
    match value {
        redis::Value::Array(items) => items
            .iter()
            .map(|item| match item {
                redis::Value::Array(items) => items.len(),
                _ => 1,
            })
            .sum::<usize>() as u64,
        _ => 1,
    }
}

/// Does the minimal work of any parser: finds the end of each token. It trusts the bytes.
fn scan(stream: &[u8]) -> u64 {
    let (mut at, mut tokens) = (0, 0);
    while let Some(&kind) = stream.get(at) {
        let mut number = 0;
        at += 1;
        while let Some(&byte) = stream.get(at)
            && byte != b'\r'
        {
            number = number * 10 + usize::from(byte & 15);
            at += 1;
        }
        at += 2;
        if kind == b'$' {
            at += number + 2;
        }
        tokens += 1;
    }
    tokens
}

/// Returns typical replies to a lock client: acquired (null), held (a remaining time), released (1), OK.
fn lock_mix() -> Vec<u8> {
    b"_\r\n:29849\r\n:1\r\n+OK\r\n".repeat(FRAMES / 4)
}

/// Returns an array of ten arrays of a hundred bulk strings.
fn nested(len: usize) -> Vec<u8> {
    let bulk = format!("${len}\r\n{}\r\n", "x".repeat(len)).into_bytes();
    let mut inner = b"*100\r\n".to_vec();
    inner.extend_from_slice(&bulk.repeat(100));
    let mut stream = b"*10\r\n".to_vec();
    stream.extend_from_slice(&inner.repeat(10));
    stream
}

/// Number of frames in the buffer at once, as after a read under load: 5 to 24 KiB.
const FRAMES: usize = 1000;

/// Room that a reader reserves before each read.
const READ: usize = 4096;

const SHA: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// Length of the encoded call in bytes.
const LEN: u64 = 142;
