//! A test program that stands still while calls are pending.

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    wheellock_tests::pauses::serve(&arguments)
}
