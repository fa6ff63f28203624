//! A worker process for tests: takes and releases one lock on command.

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    wheellock_tests::worker::serve(&arguments)
}
