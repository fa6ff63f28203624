//! The codec against a real server, without a client.
//!
//! All types of `DEBUG PROTOCOL` decode correctly, however the bytes are cut. The encoder's bytes arrive unchanged.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use wheellock_resp::bytes::BytesMut;
use wheellock_resp::{Blob, Command, Decoder, EvalSha, Frame, Limits, Push, Value};
use wheellock_tests::RedisServer;

#[test]
fn debug_protocol_of_every_type() {
    let server = RedisServer::builder().arg("enable-debug-command", "yes").start();
    let mut resp3 = Wire::connect(&server, 3);
    let mut resp2 = Wire::connect(&server, 2);
    let numbers = || vec![Value::Integer(0), Value::Integer(1), Value::Integer(2)];
    let text = |text: &str| Value::BulkString(text.into());
    let flags = [false, true, false];
    let map = |value: fn(bool) -> Value| (0..).map(Value::Integer).zip(flags.map(value)).collect::<Vec<_>>();
    let flat =
        map(|flag| Value::Integer(flag.into())).into_iter().flat_map(|(key, value)| [key, value]).collect();
    let bignum = "1234567999999999999999999999999999999";
    let verbatim = "This is a verbatim\nstring";
    for (kind, in_resp3, in_resp2) in [
        ("string", text("Hello World"), text("Hello World")),
        ("integer", Value::Integer(12345), Value::Integer(12345)),
        ("double", Value::Double("3.141".parse().unwrap()), text("3.141")),
        ("null", Value::Null, Value::Null),
        ("array", Value::Array(numbers()), Value::Array(numbers())),
        ("set", Value::Set(numbers()), Value::Array(numbers())),
        ("map", Value::Map(map(Value::Boolean)), Value::Array(flat)),
        ("verbatim", Value::Verbatim { format: *b"txt", text: verbatim.into() }, text(verbatim)),
        ("true", Value::Boolean(true), Value::Integer(1)),
        ("false", Value::Boolean(false), Value::Integer(0)),
        ("bignum", Value::BigNumber(bignum.into()), text(bignum)),
        // The decoder skips the attribute and returns the value after it. RESP2 does not have attributes.
        (
            "attrib",
            text("Some real reply following the attribute"),
            text("Some real reply following the attribute"),
        ),
    ] {
        let command = Command::new("DEBUG").arg("PROTOCOL").arg(kind);
        assert_eq!(resp3.call(&command), [Frame::Reply(in_resp3)], "{kind} in RESP3");
        assert_eq!(resp2.call(&command), [Frame::Reply(in_resp2)], "{kind} in RESP2");
    }

    // The push comes first, in the same write, and does not count as a reply.
    let push = Push::new(vec![text("server-cpu-usage"), Value::Integer(42)]).unwrap();
    let reply = text("Some real reply following the push reply");
    let frames = resp3.calls(&Command::new("DEBUG").arg("PROTOCOL").arg("push"), 2);
    assert_eq!(frames, [Frame::Push(push), Frame::Reply(reply)]);
}

#[test]
fn replies_of_every_shape() {
    let server = RedisServer::start();
    let mut wire = Wire::connect(&server, 3);
    let error = |frames: Vec<Frame>| match frames.as_slice() {
        [Frame::Reply(value)] => String::from_utf8_lossy(value.as_error().unwrap()).into_owned(),
        frames => panic!("{frames:?}"),
    };
    assert_eq!(wire.reply(&Command::new("SET").arg("k").arg("v")), Value::SimpleString("OK".into()));
    assert!(error(wire.call(&Command::new("INCR").arg("k"))).starts_with("ERR value is not an integer"));
    assert!(error(wire.call(&Command::new("NOPE"))).starts_with("ERR unknown command"));
    assert_eq!(wire.reply(&Command::new("GET").arg("none")), Value::Null);

    let script = "redis.setresp(3); return {map={a={set={x=true}}, b={double=1.5}}}";
    let map = wire.reply(&Command::new("EVAL").arg(script).arg(0));
    assert_eq!(map.get("a").and_then(Value::as_set), Some(&[Value::BulkString("x".into())][..]));
    assert_eq!(map.get("b"), Some(&Value::Double(1.5)));

    for len in [0, 1, 22, 23, 16_384, 32_767, 32_768, 1_000_000] {
        let payload = vec![b'\n'; len];
        let echo = wire.reply(&Command::new("ECHO").arg(&payload));
        assert_eq!(echo, Value::BulkString(Blob::from(payload)), "{len} bytes");
    }

    let subscribed = wire.call(&Command::new("SUBSCRIBE").arg("channel"));
    assert!(matches!(subscribed.as_slice(), [Frame::Push(push)] if push.kind() == b"subscribe"));
    let published = wire.calls(&Command::new("PUBLISH").arg("channel").arg("0"), 2);
    let expected = ["message", "channel", "0"].map(|text| Value::BulkString(text.into())).to_vec();
    assert_eq!(published, [Frame::Push(Push::new(expected).unwrap()), Frame::Reply(Value::Integer(1))]);
}

#[test]
fn arguments_arrive_byte_for_byte() {
    let server = RedisServer::start();
    let mut wire = Wire::connect(&server, 3);
    let args: [&[u8]; 7] = [b"", b"\r\n", b"\0", b"\xff\xfe", b"{tag}", b"$5\r\nhello\r\n", &[b'x'; 5000]];
    let numbers = [i64::MIN, -1, 0, 9, 10, 99, 100, i64::MAX];

    let script = "local all = {} for _, arg in ipairs(ARGV) do all[#all + 1] = arg end return all";
    let command = Command::new("EVAL").arg(script).arg(0).args(args).args(numbers).arg(u64::MAX);
    let mut expected: Vec<Value> = args.map(Value::from).into();
    expected.extend(numbers.map(|number| Value::from(number.to_string().as_str())));
    expected.push(u64::MAX.to_string().as_str().into());
    assert_eq!(wire.reply(&command), Value::Array(expected));

    let script = "return {KEYS[1], ARGV[1], ARGV[2]}";
    let sha = wire.reply(&Command::new("SCRIPT").arg("LOAD").arg(script));
    let template = EvalSha::new(sha.as_str().unwrap(), 1, 2);
    let mut out = BytesMut::new();
    template.encode(&mut out, &["orders:42".into(), 30_000.into(), args[6].into()]).unwrap();
    wire.send(&out);
    let expected = vec!["orders:42".into(), "30000".into(), args[6].into()];
    assert_eq!(wire.receive(1), [Frame::Reply(Value::Array(expected))]);
}

/// A connection without a client.
struct Wire {
    stream: UnixStream,
}

impl Wire {
    fn connect(server: &RedisServer, protocol: i64) -> Self {
        let stream = UnixStream::connect(server.socket_path()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut wire = Self { stream };
        let hello = wire.reply(&Command::new("HELLO").arg(protocol));
        match protocol {
            3 => assert_eq!(hello.get("proto"), Some(&Value::Integer(3))),
            _ => assert!(hello.as_array().is_some()),
        }
        wire
    }

    fn reply(&mut self, command: &Command<'_>) -> Value {
        match self.call(command).pop() {
            Some(Frame::Reply(value)) => value,
            frame => panic!("{frame:?}"),
        }
    }

    /// Sends a command and reads the frame of its reply. For a subscription, this frame is a push.
    fn call(&mut self, command: &Command<'_>) -> Vec<Frame> {
        self.calls(command, 1)
    }

    fn calls(&mut self, command: &Command<'_>, frames: usize) -> Vec<Frame> {
        let mut out = BytesMut::new();
        command.encode(&mut out);
        self.send(&out);
        self.receive(frames)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Reads `count` frames, and checks that no frame follows. Decodes the bytes again one by one, with the same result.
    fn receive(&mut self, count: usize) -> Vec<Frame> {
        let mut decoder = Decoder::new(Limits::default());
        let (mut buf, mut captured, mut frames) = (BytesMut::new(), Vec::new(), Vec::new());
        let mut block = [0; 64 * 1024];
        while frames.len() < count {
            let len = self.stream.read(&mut block).unwrap();
            assert!(len > 0, "the server closed the connection");
            buf.extend_from_slice(&block[..len]);
            captured.extend_from_slice(&block[..len]);
            while let Some(frame) = decoder.decode(&mut buf).unwrap() {
                frames.push(frame);
            }
        }
        assert_eq!(frames.len(), count);
        assert!(buf.is_empty() && !decoder.is_mid_frame());

        let mut again = Vec::new();
        for byte in captured {
            buf.extend_from_slice(&[byte]);
            again.extend(decoder.decode(&mut buf).unwrap());
        }
        assert_eq!(again, frames);
        frames
    }
}
