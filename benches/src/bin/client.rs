//! The client beside others.
fn main() {}
