//! A test process that takes and releases a lock on command.

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    wheellock_tests::worker::serve(&arguments)
}
