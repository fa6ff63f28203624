//! Worlds: the faults that may happen, their number, and the details of servers and locks.
//!
//! Worlds are data. The protocol must hold in each of `WORLDS`. `LIMITS` shows conditions without which it does not hold.

use crate::rules::WINDOW;

/// Number of times that each fault may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FaultBudget {
    /// The primary dies.
    pub(crate) crashes: u8,
    /// A dead server returns as a replica, after it has synchronised.
    pub(crate) returns: u8,
    /// A replica is promoted, whether or not the primary is alive.
    pub(crate) promotions: u8,
    /// The primary, some managers and some replicas are cut off from the others.
    pub(crate) splits: u8,
    pub(crate) heals: u8,
    /// The primary stops, and continues later.
    pub(crate) stops: u8,
    /// The dead primary returns as primary, without data.
    pub(crate) empty_restarts: u8,
    pub(crate) manager_crashes: u8,
    /// A connection breaks though its server is reachable.
    pub(crate) resets: u8,
    pub(crate) shutdowns: u8,
    /// A manager changes to the long lease.
    pub(crate) raises: u8,
    /// A refresh reaches the primary, and its reply is lost.
    pub(crate) lost_replies: u8,
}

/// The kind of the one lock, and the managers' roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockModel {
    Exclusive,
    /// A bit for each manager that writes. The other managers read.
    ReadWrite(u8),
    /// Each manager takes one permit of this number.
    Permits(u8),
}

/// The conditions of one run of the checker.
#[derive(Clone, Copy, Debug)]
pub struct FaultWorld {
    /// Name in tables and on the command line.
    pub name: &'static str,
    /// Number of servers: 2, 3 or 5.
    pub(crate) servers: usize,
    pub(crate) managers: usize,
    pub(crate) lock: LockModel,
    pub(crate) faults: FaultBudget,
    /// Lease in ticks.
    pub(crate) lease: u8,
    /// Ticks from the request after which a grant is late.
    pub(crate) patience: u8,
    /// A bit for each slow manager. Requests and replies of a slow manager are steps of their own.
    pub(crate) slow: u8,
    /// Maximum number of requests under way, of all managers together.
    pub(crate) requests: usize,
    /// Managers release locks, and repeat releases after a failover.
    pub(crate) has_releases: bool,
    pub(crate) has_pruning: bool,
    /// A refresh may have been sent a tick before its acknowledgement.
    pub(crate) has_late_refreshes: bool,
    /// The last manager does not follow the protocol.
    pub(crate) has_outsider: bool,
    /// A replica can be promoted though the primary is alive and reachable.
    pub(crate) has_false_alarms: bool,
    /// Ticks between a demotion and the next promotion.
    pub(crate) demotion_pause: u8,
    /// A primary that was not demoted can be promoted again.
    pub(crate) promotes_undemoted: bool,
    /// Connections stay open when their server is demoted.
    pub(crate) keeps_connections: bool,
    /// At the beginning all managers are connected, and all servers know them.
    pub(crate) is_settled: bool,
    /// A promoted server can end its grace, and then grant.
    pub(crate) ends_grace: bool,
    /// The world has few states, so the tests explore it.
    pub(crate) is_small: bool,
}

pub(crate) const NO_FAULTS: FaultBudget = FaultBudget {
    crashes: 0,
    returns: 0,
    promotions: 0,
    splits: 0,
    heals: 0,
    stops: 0,
    empty_restarts: 0,
    manager_crashes: 0,
    resets: 0,
    shutdowns: 0,
    raises: 0,
    lost_replies: 0,
};

/// One crash and one promotion.
pub(crate) const CRASH: FaultBudget = FaultBudget { crashes: 1, promotions: 1, ..NO_FAULTS };
/// One promotion, beside a primary that is alive.
pub(crate) const ALARM: FaultBudget = FaultBudget { promotions: 1, ..NO_FAULTS };

/// A world without faults, in which processes are new.
pub(crate) const NEW: FaultWorld = FaultWorld {
    name: "",
    servers: 3,
    managers: 2,
    lock: LockModel::Exclusive,
    faults: NO_FAULTS,
    lease: 2,
    patience: 0,
    slow: 0,
    requests: 1,
    has_releases: false,
    has_pruning: false,
    has_late_refreshes: false,
    has_outsider: false,
    has_false_alarms: false,
    demotion_pause: 0,
    promotes_undemoted: false,
    keeps_connections: false,
    is_settled: false,
    ends_grace: true,
    is_small: false,
};

/// A world without faults, in which all servers know all managers.
pub(crate) const SETTLED: FaultWorld = FaultWorld { is_settled: true, ..NEW };
/// Worlds with slow requests.
pub(crate) const SLOW: FaultWorld = FaultWorld { lease: 3, patience: 1, slow: 1, ..SETTLED };

pub(crate) const fn crash(name: &'static str, base: FaultWorld) -> FaultWorld {
    FaultWorld { name, faults: CRASH, ..base }
}

pub(crate) const fn alarm(name: &'static str, base: FaultWorld) -> FaultWorld {
    FaultWorld { name, faults: ALARM, has_false_alarms: true, ..base }
}

pub(crate) const fn with(name: &'static str, base: FaultWorld, faults: FaultBudget) -> FaultWorld {
    FaultWorld { name, faults, ..base }
}

/// A world that the tests explore, too.
pub(crate) const fn small(world: FaultWorld) -> FaultWorld {
    FaultWorld { is_small: true, ..world }
}

/// Exclusive locks on one primary and two replicas.
pub(crate) const WORLDS: &[FaultWorld] = &[
    small(crash("crash", NEW)),
    small(with("crash, one manager dies", SETTLED, FaultBudget { manager_crashes: 1, ..CRASH })),
    with("crash, slow holder", SLOW, FaultBudget { resets: 1, ..CRASH }),
    with("crash, slow rival", FaultWorld { slow: 2, ..SLOW }, FaultBudget { resets: 1, ..CRASH }),
    small(with(
        "crash, releases",
        FaultWorld { has_releases: true, ..SETTLED },
        FaultBudget { shutdowns: 1, ..CRASH },
    )),
    alarm("false alarm", NEW),
    small(alarm("false alarm, settled", SETTLED)),
    alarm("false alarm, slow holder", SLOW),
    alarm("false alarm, slow rival", FaultWorld { slow: 2, ..SLOW }),
    FaultWorld {
        has_releases: true,
        faults: FaultBudget { resets: 1, ..ALARM },
        ..alarm("false alarm, slow holder, releases", SLOW)
    },
    alarm("false alarm, both slow", FaultWorld { slow: 3, ..SETTLED }),
    with("split", NEW, FaultBudget { splits: 1, ..ALARM }),
    small(with("split and healed", SETTLED, FaultBudget { splits: 1, heals: 1, ..ALARM })),
    with(
        "split, releases",
        FaultWorld { has_releases: true, ..SETTLED },
        FaultBudget { splits: 1, shutdowns: 1, ..ALARM },
    ),
    small(with("stopped primary", SETTLED, FaultBudget { stops: 1, ..ALARM })),
    with("stopped and split", SETTLED, FaultBudget { stops: 1, splits: 1, ..ALARM }),
    with("two crashes", SETTLED, FaultBudget { crashes: 2, promotions: 2, returns: 1, ..NO_FAULTS }),
    FaultWorld { faults: FaultBudget { promotions: 2, ..NO_FAULTS }, ..alarm("there and back", SETTLED) },
    FaultWorld {
        faults: FaultBudget { promotions: 2, ..NO_FAULTS },
        keeps_connections: true,
        demotion_pause: WINDOW + 1,
        ..alarm("there and back, connections survive", SETTLED)
    },
    crash("pruning", FaultWorld { has_pruning: true, ..SETTLED }),
    with(
        "pruning, a lost reply",
        FaultWorld { has_pruning: true, ..SETTLED },
        FaultBudget { lost_replies: 1, ..CRASH },
    ),
    FaultWorld {
        faults: FaultBudget { raises: 1, ..CRASH },
        ..alarm("longer lease", FaultWorld { lease: 3, ..SETTLED })
    },
    small(with("restart without data", SETTLED, FaultBudget { crashes: 1, empty_restarts: 1, ..NO_FAULTS })),
    small(with(
        "restart without data, a new process",
        NEW,
        FaultBudget { crashes: 1, empty_restarts: 1, ..NO_FAULTS },
    )),
    with(
        "restart without data, then a crash",
        SETTLED,
        FaultBudget { crashes: 2, empty_restarts: 1, promotions: 1, ..NO_FAULTS },
    ),
    crash("three managers, crash", FaultWorld { managers: 3, ..SETTLED }),
    with("three managers, split", FaultWorld { managers: 3, ..SETTLED }, FaultBudget { splits: 1, ..ALARM }),
    alarm("three managers, false alarm", FaultWorld { managers: 3, ..SETTLED }),
    with(
        "two crashes, new processes",
        NEW,
        FaultBudget { crashes: 2, promotions: 2, returns: 1, ..NO_FAULTS },
    ),
];

/// Worlds in which a condition of the protocol is broken.
pub(crate) const LIMITS: &[FaultWorld] = &[
    small(crash("a process without the protocol", FaultWorld { has_outsider: true, ..SETTLED })),
    FaultWorld {
        faults: FaultBudget { promotions: 2, ..NO_FAULTS },
        promotes_undemoted: true,
        ..alarm("a primary that was not demoted is promoted again", SETTLED)
    },
    FaultWorld {
        faults: FaultBudget { promotions: 2, ..NO_FAULTS },
        keeps_connections: true,
        ..alarm("there and back at once, connections survive", SETTLED)
    },
];

/// Worlds with more than two million states, the largest first.
pub(crate) const LARGEST: &[&str] = &[
    "false alarm, slow holder, releases",
    "two crashes, new processes",
    "two permits, crash, releases",
    "two permits, stopped primary",
    "two permits, false alarm",
    "two permits, split",
    "there and back",
    "there and back, connections survive",
    "two requests, crash",
    "writer and two readers, crash, releases",
    "two requests, false alarm, short leases",
];
