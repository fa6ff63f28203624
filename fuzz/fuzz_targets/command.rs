//! The command encoder and the EVALSHA template.
//!
//! An independent scanner must recover the exact arguments.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use wheellock_resp::{Arg, Command, EvalSha};

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    let Ok(owned) = arguments(&mut input) else { return };
    let args: Vec<Arg<'_>> = owned.iter().map(Owned::arg).collect();
    let texts: Vec<Vec<u8>> = owned.iter().map(Owned::text).collect();
    let name: String = input.arbitrary().unwrap_or_default();

    // The encoder must keep the bytes that the buffer already has.
    let mut out = BytesMut::from(&b"before"[..]);
    let command = Command::new(&name).args(&args);
    command.encode(&mut out);
    assert_eq!(out.len(), 6 + command.encoded_len());
    assert!(out.starts_with(b"before"));
    let mut expected = vec![name.into_bytes()];
    expected.extend(texts.iter().cloned());
    assert_eq!(scan(&out[6..]), expected);

    let keys = input.int_in_range(0..=args.len()).unwrap_or_default();
    let sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    let template = EvalSha::new(sha, keys, args.len() - keys);
    let mut out = BytesMut::new();
    template.encode(&mut out, &args).expect("as many as announced");
    assert_eq!(out.len(), template.encoded_len(&args));
    let mut expected = vec![b"EVALSHA".to_vec(), sha.into(), keys.to_string().into_bytes()];
    expected.extend(texts);
    assert_eq!(scan(&out), expected);

    let other = EvalSha::new(sha, keys, args.len() - keys + 1);
    let before = out.clone();
    assert!(other.encode(&mut out, &args).is_err());
    assert_eq!(out, before);
});

enum Owned {
    Bytes(Vec<u8>),
    Int(i64),
    Uint(u64),
}

impl Owned {
    fn arg(&self) -> Arg<'_> {
        match self {
            Self::Bytes(bytes) => bytes.into(),
            Self::Int(number) => (*number).into(),
            Self::Uint(number) => (*number).into(),
        }
    }

    fn text(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Int(number) => number.to_string().into_bytes(),
            Self::Uint(number) => number.to_string().into_bytes(),
        }
    }
}

fn arguments(input: &mut Unstructured<'_>) -> Result<Vec<Owned>> {
    let count = input.int_in_range(0..=24)?;
    (0..count)
        .map(|_| {
            Ok(match input.int_in_range(0..=7)? {
                0 => Owned::Int(input.arbitrary()?),
                1 => Owned::Uint(input.arbitrary()?),
                // Numbers of every length. Arbitrary numbers would hardly ever be short.
                2 => Owned::Int(input.arbitrary::<i64>()? >> input.int_in_range(0..=63)?),
                3 => Owned::Bytes(vec![b'x'; input.int_in_range(0..=2000)?]),
                _ => Owned::Bytes(input.arbitrary()?),
            })
        })
        .collect()
}

/// Reads `*n` and n times `$len` with std alone, without any code of the codec.
fn scan(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut left = bytes;
    let count = header(&mut left, '*');
    let args = (0..count)
        .map(|_| {
            let len = header(&mut left, '$');
            let arg = left[..len].to_vec();
            left = left[len..].strip_prefix(b"\r\n").expect("an end");
            arg
        })
        .collect();
    assert!(left.is_empty(), "{} bytes too many", left.len());
    args
}

fn header(left: &mut &[u8], kind: char) -> usize {
    let end = left.windows(2).position(|two| two == b"\r\n").expect("a line");
    let text = std::str::from_utf8(&left[..end]).expect("text");
    *left = &left[end + 2..];
    let number = text.strip_prefix(kind).expect("the kind");
    let parsed: usize = number.parse().expect("a number");
    assert_eq!(number, parsed.to_string(), "its shortest form");
    parsed
}
