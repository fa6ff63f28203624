//! A worker process of a campaign, for tests.

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    wheellock_tests::campaign::serve(&arguments)
}
