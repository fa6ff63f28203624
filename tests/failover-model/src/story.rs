//! A state as lines of text, for the stories of counterexamples.

use std::fmt::Write as _;

use crate::state::{FleetState, Liveness, ManagerState, RequestReply, ServerState};

/// Returns a line for each server and each manager.
pub(crate) fn told<const N: usize>(state: &FleetState<N>, managers: usize) -> String {
    let mut text = String::new();
    for (index, server) in state.servers.iter().enumerate() {
        let _infallible = write!(text, "\n      S{index} {}", server_text(server, index, managers));
    }
    for (index, manager) in state.managers[..managers].iter().enumerate() {
        let _infallible = write!(text, "\n      M{index} {}", manager_text(manager));
    }
    text
}

fn server_text(server: &ServerState, index: usize, managers: usize) -> String {
    let data = &server.data;
    let mut text = String::new();
    if server.is_far {
        text.push_str("far ");
    }
    match server.liveness {
        Liveness::Running => {}
        Liveness::Stopped => text.push_str("stopped "),
        Liveness::Dead => return text + "dead",
    }
    let _infallible = if usize::from(server.follows) == index {
        write!(text, "primary, incarnation {}", server.incarnation)
    } else {
        write!(text, "replica of S{}", server.follows)
    };
    let _infallible = write!(text, ", era {}", data.era);
    for manager in 0..managers {
        if data.leases[manager] > 0 {
            let _infallible = write!(text, ", M{manager} holds for {}", data.leases[manager]);
        }
    }
    for manager in 0..managers {
        if data.roster[manager].is_present {
            let _infallible = write!(text, ", knows M{manager} (age {})", data.roster[manager].age);
        }
    }
    let grace = &data.grace;
    if grace.incarnation != 0 {
        let witness = if grace.has_witness { ", has a witness" } else { "" };
        let _infallible = write!(
            text,
            ", grace of incarnation {} ends in {}, checked in {:b}{witness}",
            grace.incarnation, grace.ticks_left, grace.checked_in
        );
    }
    text
}

fn manager_text(manager: &ManagerState) -> String {
    if !manager.is_alive {
        return "dead".to_owned();
    }
    let mut text = if manager.is_far { "far ".to_owned() } else { String::new() };
    let _infallible = match manager.connection.checked_sub(1) {
        Some(server) => write!(text, "at S{server}, {:?}", manager.phase),
        None => write!(text, "{:?}", manager.phase),
    };
    let _infallible = write!(text, ", entry {:?}", manager.registration);
    let _infallible = write!(text, ", refreshed {} ago", manager.refresh_age);
    if manager.validity > 0 {
        let _infallible = write!(text, ", HOLDS for {}", manager.validity);
    }
    for (name, requests) in [("sent", &manager.requests), ("late", &manager.late)] {
        for request in requests.iter() {
            let reply = match request.reply {
                RequestReply::Pending => "no reply",
                RequestReply::Granted => "granted",
                RequestReply::Refused => "refused",
                RequestReply::TooLate => "too late",
            };
            let _infallible = write!(text, ", {name} {:?} to S{} ({reply})", request.kind, request.server);
        }
    }
    text
}
