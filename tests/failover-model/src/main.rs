//! The program behind `cargo xtask prove`: all claims, or the stories of some.

use std::process::ExitCode;

use wheellock_failover_model::{check, claims};

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let mut chosen = claims();
    let all: Vec<_> = chosen.iter().map(|claim| claim.name).collect();
    // A name in full selects only its own claim.
    let selects = |name: &str, claim: &str| name == claim || !all.contains(&name) && claim.contains(name);
    chosen.retain(|claim| match names.as_slice() {
        [] => !claim.is_huge,
        names => names.iter().any(|name| selects(name, claim.name)),
    });
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
