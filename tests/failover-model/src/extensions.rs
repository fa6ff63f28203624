//! Worlds beyond exclusive locks on three servers: other numbers of servers, more requests, other kinds of locks.
//!
//! Each list is a part of the table. The protocol must hold in all of them.

use crate::rules::WINDOW;
use crate::worlds::{
    ALARM, CRASH, FaultBudget, FaultWorld, LockModel, NEW, NO_FAULTS, SETTLED, SLOW, WORLDS, alarm, crash,
    small, with,
};

const TWO: FaultWorld = FaultWorld { servers: 2, ..SETTLED };
const NEW_TWO: FaultWorld = FaultWorld { servers: 2, ..NEW };

/// A primary and one replica. A promoted replica grants nothing until it has a replica of its own.
const TWO_SERVERS: &[FaultWorld] = &[
    small(FaultWorld { ends_grace: false, ..crash("two servers, crash", NEW_TWO) }),
    small(with("two servers, crash and return", TWO, FaultBudget { returns: 1, ..CRASH })),
    with("two servers, crash and return, new processes", NEW_TWO, FaultBudget { returns: 1, ..CRASH }),
    small(alarm("two servers, false alarm", NEW_TWO)),
    FaultWorld {
        ends_grace: false,
        ..with("two servers, split", NEW_TWO, FaultBudget { splits: 1, ..ALARM })
    },
    small(with("two servers, split and healed", TWO, FaultBudget { splits: 1, heals: 1, ..ALARM })),
    small(with("two servers, stopped primary", TWO, FaultBudget { stops: 1, ..ALARM })),
    FaultWorld {
        faults: FaultBudget { promotions: 2, ..NO_FAULTS },
        keeps_connections: true,
        demotion_pause: WINDOW + 1,
        ..alarm("two servers, there and back", TWO)
    },
    with("two servers, two crashes", TWO, FaultBudget { crashes: 2, promotions: 2, returns: 2, ..NO_FAULTS }),
    with(
        "two servers, restart without data, then a crash",
        TWO,
        FaultBudget { crashes: 2, empty_restarts: 1, promotions: 1, returns: 1, ..NO_FAULTS },
    ),
    alarm("two servers, slow holder", FaultWorld { servers: 2, ..SLOW }),
    alarm("two servers, three managers", FaultWorld { managers: 3, ..TWO }),
];

const FIVE: FaultWorld = FaultWorld { servers: 5, ..SETTLED };
const NEW_FIVE: FaultWorld = FaultWorld { servers: 5, ..NEW };

/// A primary and four replicas, of which two must acknowledge.
const FIVE_SERVERS: &[FaultWorld] = &[
    small(crash("five servers, crash", NEW_FIVE)),
    alarm("five servers, false alarm", NEW_FIVE),
    alarm("five servers, false alarm, settled", FIVE),
    with("five servers, split", NEW_FIVE, FaultBudget { splits: 1, ..ALARM }),
    with("five servers, stopped primary", FIVE, FaultBudget { stops: 1, ..ALARM }),
    with(
        "five servers, restart without data",
        NEW_FIVE,
        FaultBudget { crashes: 1, empty_restarts: 1, ..NO_FAULTS },
    ),
    with("five servers, two crashes", FIVE, FaultBudget { crashes: 2, promotions: 2, ..NO_FAULTS }),
    alarm("five servers, slow holder", FaultWorld { servers: 5, ..SLOW }),
];

const PAIR: FaultWorld = FaultWorld { requests: 2, ..SLOW };

const SHORT_PAIR: FaultWorld = FaultWorld { lease: 2, patience: 0, ..PAIR };

/// Two requests under way, of one manager or of two.
const TWO_REQUESTS: &[FaultWorld] = &[
    with("two requests, crash", PAIR, FaultBudget { resets: 1, ..CRASH }),
    alarm("two requests, false alarm, short leases", SHORT_PAIR),
];

/// Worlds with up to 17 million states.
const HUGE: &[FaultWorld] = &[
    alarm("two requests, false alarm", PAIR),
    FaultWorld {
        faults: FaultBudget { resets: 1, ..ALARM },
        ..alarm("two requests, reset, short leases", SHORT_PAIR)
    },
    alarm("two requests, both slow", FaultWorld { slow: 3, ..SHORT_PAIR }),
];

/// Returns worlds in which the protocol must hold, but which take minutes.
pub(crate) fn huge_worlds() -> impl Iterator<Item = FaultWorld> {
    HUGE.iter().copied()
}

/// Entries are pruned, and two replicas are promoted though the primary is alive. Only the simple form, which the library has, is explored.
const PRUNING: &[FaultWorld] = &[FaultWorld {
    faults: FaultBudget { promotions: 2, ..NO_FAULTS },
    ..alarm("pruning, two false alarms", FaultWorld { lease: 1, has_pruning: true, ..SETTLED })
}];

const LATE: FaultWorld = FaultWorld { has_late_refreshes: true, ..SETTLED };

/// Refreshes that are sent before they are acknowledged. Only the simple form, which the library has, is explored.
const LATE_REFRESHES: &[FaultWorld] = &[
    alarm("late refreshes, false alarm", LATE),
    alarm("late refreshes, false alarm, new processes", FaultWorld { has_late_refreshes: true, ..NEW }),
    alarm("late refreshes, false alarm, slow holder", FaultWorld { has_late_refreshes: true, ..SLOW }),
    with("late refreshes, stopped primary", LATE, FaultBudget { stops: 1, ..ALARM }),
    with("late refreshes, split and healed", LATE, FaultBudget { splits: 1, heals: 1, ..ALARM }),
    with(
        "late refreshes, two crashes",
        LATE,
        FaultBudget { crashes: 2, promotions: 2, returns: 1, ..NO_FAULTS },
    ),
    FaultWorld {
        faults: FaultBudget { promotions: 2, ..NO_FAULTS },
        ..alarm("late refreshes, there and back", LATE)
    },
];

/// M0 writes and M1 reads.
const WRITER: FaultWorld = FaultWorld { lock: LockModel::ReadWrite(1), ..SETTLED };
const NEW_WRITER: FaultWorld = FaultWorld { lock: LockModel::ReadWrite(1), ..NEW };
const SLOW_WRITER: FaultWorld = FaultWorld { lock: LockModel::ReadWrite(1), ..SLOW };
const READERS: FaultWorld = FaultWorld { lock: LockModel::ReadWrite(0), ..SETTLED };

/// Read-write locks.
const READ_WRITE: &[FaultWorld] = &[
    small(crash("writer and reader, crash", NEW_WRITER)),
    alarm("writer and reader, false alarm", NEW_WRITER),
    with(
        "writer and reader, crash, releases",
        FaultWorld { has_releases: true, ..WRITER },
        FaultBudget { shutdowns: 1, ..CRASH },
    ),
    with("writer and reader, split", NEW_WRITER, FaultBudget { splits: 1, ..ALARM }),
    with("slow writer and reader, crash", SLOW_WRITER, FaultBudget { resets: 1, ..CRASH }),
    with(
        "writer and slow reader, crash",
        FaultWorld { slow: 2, ..SLOW_WRITER },
        FaultBudget { resets: 1, ..CRASH },
    ),
    alarm("slow writer and reader, false alarm", SLOW_WRITER),
    alarm("writer and slow reader, false alarm", FaultWorld { slow: 2, ..SLOW_WRITER }),
    small(crash("two readers, crash", READERS)),
    with(
        "two readers, crash, releases",
        FaultWorld { has_releases: true, ..READERS },
        FaultBudget { shutdowns: 1, ..CRASH },
    ),
    crash("writer and two readers, crash", FaultWorld { managers: 3, ..WRITER }),
    crash(
        "writer and two readers, crash, releases",
        FaultWorld { managers: 3, has_releases: true, ..WRITER },
    ),
    alarm("writer and two readers, false alarm", FaultWorld { managers: 3, ..WRITER }),
    crash(
        "two writers and reader, crash",
        FaultWorld { managers: 3, lock: LockModel::ReadWrite(3), ..SETTLED },
    ),
];

const TICKETS: FaultWorld = FaultWorld { managers: 3, lock: LockModel::Permits(2), ..SETTLED };

/// Three managers and two permits.
const PERMITS: &[FaultWorld] = &[
    crash("two permits, crash", TICKETS),
    crash("two permits, crash, releases", FaultWorld { has_releases: true, ..TICKETS }),
    alarm("two permits, false alarm", TICKETS),
    with("two permits, split", TICKETS, FaultBudget { splits: 1, ..ALARM }),
    with("two permits, stopped primary", TICKETS, FaultBudget { stops: 1, ..ALARM }),
];

/// Returns all worlds in which the protocol must hold, each with its part of the table.
pub(crate) fn all_worlds() -> impl Iterator<Item = (&'static str, FaultWorld)> {
    let parts = [
        ("protocol", WORLDS),
        ("2 servers", TWO_SERVERS),
        ("5 servers", FIVE_SERVERS),
        ("requests", TWO_REQUESTS),
        ("readwrite", READ_WRITE),
        ("permits", PERMITS),
        ("pruning", PRUNING),
        ("late", LATE_REFRESHES),
    ];
    parts.into_iter().flat_map(|(part, worlds)| worlds.iter().map(move |world| (part, *world)))
}
