//! The mutations: the protocol with one rule changed, and the property that the change breaks.

use crate::model::FleetProperty::{self, Exclusion, GraceEnds, Survival};
use crate::rules::{
    Acknowledgements, FirstAcquire, FullReclaim, Incarnation, ProtocolRules, PruneAge, WitnessRule,
};

/// A change of the rules, with its expected effect.
pub(crate) struct Mutation {
    pub(crate) name: &'static str,
    pub(crate) part: &'static str,
    pub(crate) change: fn(&mut ProtocolRules),
    pub(crate) effect: Effect,
    pub(crate) is_fast: bool,
    /// The runs take minutes, so only a run that names the mutation makes them.
    pub(crate) is_huge: bool,
}

/// The expected effect of a change.
#[derive(Clone, Copy)]
pub(crate) enum Effect {
    /// The property is broken, and this world shows it.
    Breaks(FleetProperty, &'static str),
    /// No property is broken in these parts of the worlds, the largest worlds included or not.
    Harmless { part: &'static str, has_largest: bool },
}

/// A rule without which the protocol is unsafe.
const fn needed(
    name: &'static str,
    breaks: (FleetProperty, &'static str),
    change: fn(&mut ProtocolRules),
) -> Mutation {
    Mutation {
        name,
        part: "needed",
        change,
        effect: Effect::Breaks(breaks.0, breaks.1),
        is_fast: true,
        is_huge: false,
    }
}

/// A rule without which the protocol is unsafe, but whose counterexample is too slow for the tests.
const fn slow(
    name: &'static str,
    breaks: (FleetProperty, &'static str),
    change: fn(&mut ProtocolRules),
) -> Mutation {
    Mutation { is_fast: false, ..needed(name, breaks, change) }
}

/// A change that breaks no property.
const fn harmless(name: &'static str, change: fn(&mut ProtocolRules)) -> Mutation {
    let effect = Effect::Harmless { part: "protocol", has_largest: false };
    Mutation { name, part: "harmless", change, effect, is_fast: false, is_huge: false }
}

/// Another form of the protocol.
const fn form(name: &'static str, change: fn(&mut ProtocolRules)) -> Mutation {
    let effect = Effect::Harmless { part: "protocol", has_largest: true };
    Mutation { name, part: "form", change, effect, is_fast: false, is_huge: false }
}

/// Another form of the protocol, in other worlds.
const fn form_in(part: &'static str, name: &'static str, change: fn(&mut ProtocolRules)) -> Mutation {
    let effect = Effect::Harmless { part, has_largest: true };
    Mutation { name, part: "form", change, effect, is_fast: false, is_huge: false }
}

/// Rules of a grace: its begin, its end, its witnesses.
const GRACE: &[Mutation] = &[
    needed("no grace", (Exclusion, "crash"), |r| r.has_grace = false),
    needed("incarnation is the process alone", (Survival, "there and back"), |r| {
        r.incarnation = Incarnation::Process;
    }),
    slow("return to an incarnation that was left", (Exclusion, "stopped and split"), |r| {
        r.refuses_left = false;
    }),
    needed("early end without a witness", (Exclusion, "crash"), |r| r.witness = WitnessRule::Anyone),
    slow("refresh in an unfinished grace makes a witness", (Exclusion, "two crashes, new processes"), |r| {
        r.witness_was_ready = false;
    }),
    harmless("no early end", |r| r.ends_early = false),
    needed("clock starts before an acknowledged write", (Exclusion, "false alarm, settled"), |r| {
        r.clock_after_write = false;
    }),
    needed("clock starts anew with each connection", (GraceEnds, "crash"), |r| {
        r.clock_starts_once = false;
    }),
    needed("no end by time", (GraceEnds, "crash, one manager dies"), |r| r.ends_by_time = false),
    needed("bound without the window", (Exclusion, "false alarm, settled"), |r| {
        r.bound_has_window = false;
    }),
    needed("check-in before the reclaim", (Exclusion, "crash"), |r| r.reclaims_before_check_in = false),
    needed("empty server counts as new", (Exclusion, "restart without data, a new process"), |r| {
        r.empty_has_grace = false;
    }),
];

/// Rules of the roster: acknowledgements, age, lease.
const ROSTER: &[Mutation] = &[
    needed("entry without acknowledgement", (Exclusion, "false alarm"), |r| {
        r.acknowledgements = Acknowledgements::Primary;
    }),
    needed("entry acknowledged by connected replicas only", (Exclusion, "false alarm"), |r| {
        r.acknowledgements = Acknowledgements::Connected;
    }),
    needed("first acquire after one partial acknowledgement", (Exclusion, "crash"), |r| {
        r.first_acquire = FirstAcquire::OneRefresh;
    }),
    needed("first acquire after one, and no witness", (Exclusion, "crash"), |r| {
        r.first_acquire = FirstAcquire::OneRefresh;
        r.witness = WitnessRule::Anyone;
    }),
    harmless("extended though the entry does not count", |r| r.extends_if_registered = false),
    slow("refresh does not read the era again", (Exclusion, "there and back, connections survive"), |r| {
        r.refresh_reads_era = false;
    }),
    harmless("entries pruned after one lease", |r| r.prune_age = PruneAge::Lease),
    needed("entries pruned within the window", (Exclusion, "pruning"), |r| r.prune_age = PruneAge::Window),
    needed("entries pruned in a grace, while a server is away", (Exclusion, "pruning"), |r| {
        r.grace_keeps_entries = false;
        r.prunes_complete_fleet = false;
    }),
    needed("missing entry is written again and counts", (Exclusion, "pruning"), |r| {
        r.missing_entry_is_new = false;
    }),
    needed("entry is added before its manager misses it", (Exclusion, "pruning, a lost reply"), |r| {
        r.adds_missed_entry = false;
    }),
    needed("shutdown removes the entry first", (Exclusion, "crash, releases"), |r| {
        r.entry_outlives_holds = false;
    }),
    slow("longest lease is announced, not the fleet's", (Exclusion, "longer lease"), |r| {
        r.fleet_has_longest = false;
    }),
    needed("longest lease is not announced before its use", (Exclusion, "longer lease"), |r| {
        r.fleet_has_longest = false;
        r.announces_lease = false;
    }),
];

fn without_window(rules: &mut ProtocolRules) {
    rules.acquires_in_window = false;
    rules.renews_in_window = false;
}

/// Rules of requests: the window, reclaims, replies.
const REQUESTS: &[Mutation] = &[
    needed("no window", (Exclusion, "false alarm, settled"), without_window),
    needed("no window, but min-replicas 1", (Exclusion, "stopped primary"), |r| {
        without_window(r);
        r.min_replicas = 1;
    }),
    slow("no window, but min-replicas 2", (Exclusion, "there and back, connections survive"), |r| {
        without_window(r);
        r.min_replicas = 2;
    }),
    needed("window for acquires only", (Exclusion, "false alarm, settled"), |r| r.renews_in_window = false),
    needed("reclaim keeps the shorter lease", (Survival, "crash"), |r| r.reclaim_extends = false),
    needed("reclaim yields to an old copy", (Survival, "crash, releases"), |r| r.reclaim_wins = false),
    slow("reclaim wins after the grace", (Survival, "false alarm, slow holder, releases"), |r| {
        r.reclaim_checks_era = false;
    }),
    slow("reclaim without a deadline", (Survival, "false alarm, slow holder, releases"), |r| {
        r.reclaim_has_deadline = false;
    }),
    slow("reclaim wins, without era and deadline", (Survival, "crash, slow holder"), |r| {
        r.reclaim_checks_era = false;
        r.reclaim_has_deadline = false;
    }),
    needed("reclaim yields, without era and deadline", (Survival, "crash, releases"), |r| {
        r.reclaim_wins = false;
        r.reclaim_checks_era = false;
        r.reclaim_has_deadline = false;
    }),
    harmless("late reply revives a hold", |r| r.reclaims_valid_only = false),
    needed("reclaim extends at once", (Exclusion, "false alarm, settled"), |r| {
        r.extends_secure_only = false;
    }),
    slow("late grants are kept", (Exclusion, "false alarm, slow holder"), |r| {
        r.rejects_late_grants = false;
    }),
    needed("replies of the old connection are kept", (Survival, "false alarm, slow holder"), |r| {
        r.drops_late_replies = false;
    }),
    needed("release repeated though its owner is back", (Exclusion, "crash, releases"), |r| {
        r.repeat_spares_owner = false;
    }),
];

/// Changes the protocol to its simple form.
fn simplify(rules: &mut ProtocolRules) {
    rules.first_acquire = FirstAcquire::AllServers;
    rules.witness = WitnessRule::Entry;
}

/// Changes the protocol to its simple form, in which a primary without replicas can end its grace early.
fn end_alone(rules: &mut ProtocolRules) {
    simplify(rules);
    rules.ends_early_alone = true;
}

/// Changes the protocol to its first step: a grace that ends by time, without a roster.
fn end_by_time(rules: &mut ProtocolRules) {
    rules.first_acquire = FirstAcquire::OneRefresh;
    rules.witness = WitnessRule::Anyone;
    rules.ends_early = false;
    rules.grace_keeps_entries = false;
    rules.missing_entry_is_new = false;
    rules.extends_if_registered = false;
}

/// Other forms of the protocol.
const FORMS: &[Mutation] = &[
    form("first step: no roster, no early end", end_by_time),
    form("simple form", simplify),
    form("early end without replicas", end_alone),
    form_in("2 servers", "two servers, early end without replicas", end_alone),
    form_in("5 servers", "five servers, early end without replicas", end_alone),
    form_in("readwrite", "read-write lock, early end without replicas", end_alone),
    form_in("permits", "semaphore, early end without replicas", end_alone),
    form_in("requests", "two requests, early end without replicas", end_alone),
    form_in("late", "late refreshes, early end without replicas", end_alone),
    Mutation {
        part: "form",
        ..needed("secure from the send of a refresh", (Exclusion, "late refreshes, false alarm"), |r| {
            end_alone(r);
            r.secure_from_acknowledgement = false;
        })
    },
    Mutation {
        is_huge: true,
        ..form_in("pruning", "two false alarms and pruning, early end without replicas", end_alone)
    },
    Mutation {
        part: "form",
        ..needed("available form, early end without replicas", (Exclusion, "false alarm"), |r| {
            r.ends_early_alone = true;
        })
    },
    Mutation {
        part: "form",
        ..needed("simple form without a witness", (Exclusion, "restart without data"), |r| {
            simplify(r);
            r.witness = WitnessRule::Anyone;
        })
    },
    Mutation {
        part: "form",
        ..slow(
            "early end without replicas, an old entry counts",
            (Exclusion, "pruning, two false alarms"),
            |r| {
                end_alone(r);
                r.old_entry_is_new = false;
            },
        )
    },
    Mutation {
        part: "form",
        ..slow(
            "simple form, witness from an unfinished grace",
            (Exclusion, "restart without data, then a crash"),
            |r| {
                simplify(r);
                r.witness_was_ready = false;
            },
        )
    },
    Mutation {
        part: "form",
        ..slow(
            "simple form, extended though the entry does not count",
            (Exclusion, "restart without data, then a crash"),
            |r| {
                simplify(r);
                r.extends_if_registered = false;
            },
        )
    },
];

/// Rules of other fleets and of other kinds of locks.
const EXTENSIONS: &[Mutation] = &[
    needed("two servers, a promoted replica alone grants", (Exclusion, "two servers, false alarm"), |r| {
        r.acknowledgements = Acknowledgements::Connected;
    }),
    slow("five servers, one replica acknowledges", (Exclusion, "five servers, split"), |r| {
        r.acknowledgements = Acknowledgements::OneReplica;
    }),
    slow(
        "refusal of a late copy ends the hold",
        (Survival, "two requests, false alarm, short leases"),
        |r| r.deadline_spares_hold = false,
    ),
    needed("reader's reclaim removes readers", (Survival, "two readers, crash"), |r| {
        r.reader_spares_readers = false;
    }),
    needed("reader's reclaim yields to a writer", (Survival, "writer and reader, crash, releases"), |r| {
        r.reader_beats_writer = false;
    }),
    needed("writer's reclaim yields to readers", (Survival, "writer and reader, crash, releases"), |r| {
        r.writer_beats_readers = false;
    }),
    slow("reclaim yields if all permits are taken", (Survival, "two permits, crash, releases"), |r| {
        r.reclaim_wins = false;
    }),
    slow("reclaim removes the first permit", (Survival, "two permits, crash, releases"), |r| {
        r.full_reclaim = FullReclaim::EvictsFirst;
    }),
    Mutation {
        effect: Effect::Harmless { part: "permits", has_largest: false },
        ..form("reclaim removes an old permit", |r| r.full_reclaim = FullReclaim::EvictsOld)
    },
];

/// Returns all mutations, by subject.
pub(crate) fn mutations() -> impl Iterator<Item = &'static Mutation> {
    GRACE.iter().chain(ROSTER).chain(REQUESTS).chain(FORMS).chain(EXTENSIONS)
}
