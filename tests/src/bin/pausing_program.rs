//! A program that stands still while calls are under way, for tests.

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    wheellock_tests::pauses::serve(&arguments)
}
