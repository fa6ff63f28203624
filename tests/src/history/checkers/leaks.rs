//! Nothing is left behind when everything has ended.

use super::super::event::What;
use super::{Case, Checker, Verdict};

pub(super) fn check(case: &Case<'_>) -> Vec<Verdict> {
    let probes = case.events.iter().enumerate().filter_map(|(place, event)| match &event.what {
        What::Probe { name, found, allowed } if found > allowed => Some(Verdict {
            checker: Checker::Leaks,
            text: format!("process {}: {found} {name}, {allowed} allowed", event.process),
            excuse: None,
            events: vec![place],
        }),
        _ => None,
    });
    probes.collect()
}
