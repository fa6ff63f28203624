//! The timing wheel against a sorted map.
//!
//! The same operations must fire the same timers in the same order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wheellock_wheel::oracle::{Op, Oracle};

fuzz_target!(|data: &[u8]| {
    let [size, start, data @ ..] = data else { return };
    let sizes = [1, 2, 4, 32, 512, 4096, 16_384];
    let starts = [0, 1, 12_345, (1 << 30) - 3, u64::MAX - (1 << 41), u64::MAX - 1, u64::MAX];
    let mut oracle =
        Oracle::new(sizes[usize::from(*size) % sizes.len()], starts[usize::from(*start) % starts.len()]);
    for operation in data.as_chunks::<4>().0 {
        oracle.run(Op::decode(*operation));
    }
    oracle.check();
});
