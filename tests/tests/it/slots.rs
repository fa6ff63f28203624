//! Hash slots of keys, compared to a real server's slots.

use wheellock_client::slot_of;
use wheellock_tests::{Cli, RedisServer, Reply};

#[test]
fn slots_are_those_of_cluster_keyslot() {
    let server = RedisServer::builder().cluster().start();
    let mut cli = server.connect().unwrap();
    for key in ["", "foo", "{}", "{", "}", "}{a}", "{a}{b}", "{{a}}", "a{}b{c}", "redisson_lock__channel:{x}"]
    {
        assert_eq!(slot_of(key.as_bytes()), asked(&mut cli, key.as_bytes()), "{key:?}");
    }
    // With few letters, braces meet in every order. With all bytes, the whole table is used.
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.to_be_bytes()[3]
    };
    for round in 0..8000 {
        let key: Vec<u8> = (0..next() % 24)
            .map(|_| if round % 2 == 0 { b"{}ab"[usize::from(next() % 4)] } else { next() })
            .collect();
        assert_eq!(slot_of(&key), asked(&mut cli, &key), "{}", key.escape_ascii());
    }
}

fn asked(cli: &mut Cli, key: &[u8]) -> u16 {
    match cli.query(&[b"CLUSTER", b"KEYSLOT".as_slice(), key]) {
        Ok(Reply::Integer(slot)) => slot.try_into().unwrap(),
        other => panic!("{other:?}"),
    }
}
