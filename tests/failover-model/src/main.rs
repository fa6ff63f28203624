//! The program behind `cargo xtask prove`: all claims, or the stories of some.

use std::process::ExitCode;

use wheellock_failover_model::{check, claims};

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let mut chosen = claims();
    chosen.retain(|claim| names.is_empty() || names.iter().any(|name| claim.name.contains(name.as_str())));
    // A name in full selects only its own claim.
    if chosen.iter().any(|claim| names.iter().any(|name| name == claim.name)) {
        chosen.retain(|claim| names.iter().any(|name| name == claim.name));
    }
    if chosen.is_empty() {
        eprintln!("no rule and no world has this name");
        return ExitCode::FAILURE;
    }
    let table = check(&chosen, std::thread::available_parallelism().map_or(2, usize::from));
    if !names.is_empty() {
        println!("{}", table.stories());
    }
    print!("{}", table.text());
    let contradictions = table.contradictions();
    contradictions.iter().for_each(|contradiction| println!("{contradiction}"));
    if contradictions.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
