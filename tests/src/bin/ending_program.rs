//! A test program that ends while it holds locks.

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    wheellock_tests::ending::serve(&arguments)
}
