//! Tests of `slot_map`.

use std::fmt;
use std::ops::RangeInclusive;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::nodes::parse;
use super::*;
use crate::base::endpoint::address;
use crate::base::slots::SlotSet;

/// The changes by one merged view.
struct Learnt {
    /// Slots whose owner's address has changed. A gained or lost owner counts as a change.
    moved: SlotSet,
    /// All primaries that are not down, with or without slots.
    primaries: Vec<Address>,
}

impl SlotMap {
    /// Merges a view, and compares the owners before and after.
    fn learn(&mut self, view: &[Node], asked: &Address) -> Learnt {
        let before = self.clone();
        let primaries = self.merge_view(view, asked);
        let mut moved = SlotSet::default();
        let slots = (0..SLOTS).filter(|slot| before.owner(*slot) != self.owner(*slot));
        slots.for_each(|slot| moved.insert(slot));
        Learnt { moved, primaries }
    }

    fn is_covered(&self) -> bool {
        (0..SLOTS).all(|slot| self.owner(slot).is_some())
    }
}

/// Lists the slots of each owner.
impl fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owned_by = |key: usize| {
            let mut slots = SlotSet::default();
            let owned = (0..SLOTS).zip(&self.owners).filter(|(_, owner)| usize::from(**owner) == key);
            owned.for_each(|(slot, _)| slots.insert(slot));
            slots
        };
        f.debug_map()
            .entries(self.nodes.iter().map(|(key, node)| (node.address.to_string(), owned_by(key))))
            .finish()
    }
}

fn at(port: u16) -> Address {
    address("10.0.0.1", port)
}

/// Returns the node `id` at port 7000 + its number.
fn node(id: u16, epoch: u64, slots: &[RangeInclusive<u16>]) -> Node {
    Node {
        id: format!("id{id}"),
        address: at(7000 + id),
        alias: None,
        epoch,
        is_primary: true,
        is_myself: false,
        is_failed: false,
        is_suspected: false,
        primary_id: None,
        slots: slots.to_vec(),
    }
}

fn replica(id: u16, of: u16, epoch: u64) -> Node {
    Node { is_primary: false, primary_id: Some(format!("id{of}")), ..node(id, epoch, &[]) }
}

fn failed(node: Node) -> Node {
    Node { is_failed: true, ..node }
}

fn learn(map: &mut SlotMap, view: &[Node]) -> Learnt {
    map.learn(view, &at(7000))
}

fn slots(ranges: &[RangeInclusive<u16>]) -> SlotSet {
    let mut set = SlotSet::default();
    ranges.iter().cloned().flatten().for_each(|slot| set.insert(slot));
    set
}

#[test]
fn recorded_failover_moves_slots_once() {
    // Views of 21000 on redis-server 7.0.15. They are from before the SIGKILL of 21002, from its downtime, and from
    // after 21003 had taken over.
    let before = "\
568100cf1bd97e9d2b0a3055ab9dfaf4c0d75a3c 127.0.0.1:21003@31003,node21003.example.org slave dcb77bf799f92bd4d80b68a78f837f9a8ba5091f 0 1795271357971 3 connected
9908c19e290291a850d56d19209e8938f619a2ce 127.0.0.1:21001@31001,node21001.example.org master - 0 1795271357871 2 connected 5461-10922
b9c0c27c636d716e701d5e7d513627bd89f3edad 127.0.0.1:21000@31000 myself,master - 0 1795271357000 1 connected 0-5460
dcb77bf799f92bd4d80b68a78f837f9a8ba5091f 127.0.0.1:21002@31002 master - 0 1795271357971 3 connected 10923-16383
";
    let down = before.replace("21002@31002 master", "21002@31002 master,fail");
    let after = "\
568100cf1bd97e9d2b0a3055ab9dfaf4c0d75a3c 127.0.0.1:21003@31003,node21003.example.org master - 0 1795271364012 7 connected 10923-16383
9908c19e290291a850d56d19209e8938f619a2ce 127.0.0.1:21001@31001,node21001.example.org master - 0 1795271364012 2 connected 5461-10922
b9c0c27c636d716e701d5e7d513627bd89f3edad 127.0.0.1:21000@31000 myself,master - 0 1795271364000 1 connected 0-5460
dcb77bf799f92bd4d80b68a78f837f9a8ba5091f 127.0.0.1:21002@31002 master,fail - 1795271303762 1795271303260 3 disconnected
";
    let back = after.replace(
        "31002 master,fail - 1795271303762 1795271303260 3 disconnected",
        "31002 slave 568100cf1bd97e9d2b0a3055ab9dfaf4c0d75a3c 0 1795271363811 7 connected",
    );
    let [n0, n1, n2, n3] = [21000, 21001, 21002, 21003].map(|port| address("127.0.0.1", port));
    let mut map = SlotMap::default();
    let mut learn = |text: &str| map.learn(&parse(text.as_bytes(), false).unwrap(), &n0);
    let learnt = learn(before);
    assert_eq!(learnt.moved, slots(&[0..=16_383]));
    assert_eq!(learnt.primaries, [n1.clone(), n0.clone(), n2.clone()]);
    let learnt = learn(&down);
    assert_eq!((learnt.moved.is_empty(), learnt.primaries), (true, vec![n1.clone(), n0.clone()]));
    let learnt = learn(after);
    assert_eq!(learnt.moved, slots(&[10_923..=16_383]));
    assert_eq!(learnt.primaries, [n3.clone(), n1.clone(), n0.clone()]);
    for late in [before, &down, &back, before, &back] {
        assert!(learn(late).moved.is_empty(), "{late}");
    }
    assert!(map.is_covered());
    assert_eq!(map.owner(16_383), Some(&n3));
    assert_eq!(map.replicas_too().count(), 4);
    assert!(map.known_as(&n2).is_some() && map.known_as(&address("127.0.0.1", 22)).is_none());
}

#[test]
fn names_and_missing_hosts() {
    let by_name = address("a.example", 7001);
    let named = Node { alias: Some(by_name.clone()), ..node(1, 1, &[0..=1]) };
    let preferred = Node { address: by_name.clone(), alias: Some(at(7001)), ..named.clone() };
    let nameless = Node { address: address("", 7002), ..node(2, 2, &[2..=3]) };
    let asked = address("asked.example", 1);

    let mut map = SlotMap::default();
    map.learn(&[named, nameless.clone()], &asked);
    assert_eq!((map.owner(0), map.owner(2)), (Some(&at(7001)), Some(&address("asked.example", 7002))));
    assert!(map.known_as(&by_name).is_some(), "MOVED may say either");
    let learnt = map.learn(&[preferred.clone(), nameless.clone()], &asked);
    assert!(learnt.moved.is_empty(), "the node still has the address by which it is connected");
    map.unreachable(&at(7001));
    let learnt = map.learn(&[preferred, nameless.clone()], &asked);
    assert_eq!(learnt.moved, slots(&[0..=1]), "the same node, but another address");
    assert_eq!((map.owner(0), map.owner(4), map.owner(SLOTS)), (Some(&by_name), None, None));
    assert!(map.moved(2, &at(7001)));
    assert_eq!(map.owner(2), Some(&by_name));

    let hostless =
        Node { address: address("b.example", 7002), alias: Some(nameless.address.clone()), ..nameless };
    map.learn(std::slice::from_ref(&hostless), &asked);
    assert_eq!(map.known_as(&address("b.example", 7002)), Some(&address("asked.example", 7002)));
    map.unreachable(&address("asked.example", 7002));
    map.learn(&[hostless], &asked);
    assert_eq!(map.known_as(&address("asked.example", 7002)), Some(&address("b.example", 7002)));
}

/// While an operator changes a cluster's preference, its nodes reply differently.
#[test]
fn differing_preferences_keep_connected_address() {
    let by_name = address("a.example", 7001);
    let by_ip = Node { alias: Some(by_name.clone()), ..node(1, 1, &[0..=1]) };
    let named = Node { address: by_name.clone(), alias: Some(at(7001)), ..by_ip.clone() };
    for (first, second, kept) in [(&by_ip, &named, at(7001)), (&named, &by_ip, by_name)] {
        let mut map = SlotMap::default();
        map.learn(std::slice::from_ref(first), &at(1));
        for view in [second, first, second] {
            assert!(map.learn(std::slice::from_ref(view), &at(1)).moved.is_empty());
            assert_eq!(map.owner(0), Some(&kept));
        }
    }
}

#[test]
fn lower_epoch_claim_needs_deposed_owner() {
    let mut map = SlotMap::default();
    learn(&mut map, &[node(1, 9, &[0..=5]), node(2, 3, &[])]);
    let lower = |owner: Node| [owner, node(2, 3, &[0..=5])];
    assert!(learn(&mut map, &lower(node(1, 9, &[]))).moved.is_empty(), "as old as what is known");
    assert!(learn(&mut map, &lower(failed(node(1, 8, &[])))).moved.is_empty(), "down, but that is long ago");
    assert!(learn(&mut map, &lower(replica(1, 2, 3))).moved.is_empty(), "a replica, but that is long ago");
    for deposed in [failed(node(1, 9, &[])), replica(1, 3, 9), node(1, 10, &[])] {
        let mut map = map.clone();
        assert_eq!(learn(&mut map, &lower(deposed.clone())).moved, slots(&[0..=5]), "{deposed:?}");
        assert_eq!(map.owner(0), Some(&at(7002)));
    }
    map.unreachable(&at(7001));
    assert_eq!(map.owner(0), Some(&at(7001)), "there is nobody better yet");
    assert_eq!(learn(&mut map, &[node(2, 3, &[0..=5])]).moved, slots(&[0..=5]));
}

#[test]
fn slots_may_be_given_up() {
    let mut map = SlotMap::default();
    learn(&mut map, &[node(1, 2, &[0..=5]), node(2, 1, &[6..=9])]);
    assert!(learn(&mut map, &[node(2, 1, &[6..=9])]).moved.is_empty(), "who knows too little says nothing");
    assert!(learn(&mut map, &[node(1, 1, &[0..=1]), node(2, 1, &[6..=9])]).moved.is_empty(), "long ago");
    assert_eq!(learn(&mut map, &[node(1, 2, &[0..=1]), node(2, 1, &[6..=9])]).moved, slots(&[2..=5]));
    assert_eq!(map.owner(2), None);
    assert_eq!(
        learn(&mut map, &[node(2, 1, &[2..=3, 6..=9])]).moved,
        slots(&[2..=3]),
        "and taken by anybody"
    );
}

#[test]
fn moved_is_trusted_for_known_nodes() {
    let mut map = SlotMap::default();
    learn(&mut map, &[node(1, 5, &[0..=9]), replica(2, 1, 5)]);
    assert!(!map.moved(3, &address("127.0.0.1", 22)));
    assert_eq!(map.owner(3), Some(&at(7001)));
    assert!(map.moved(3, &at(7002)), "a replica may just have been promoted");
    assert_eq!((map.owner(3), map.owner(4)), (Some(&at(7002)), Some(&at(7001))));
    assert!(!map.moved(SLOTS, &at(7002)));
    let learnt = learn(&mut map, &[node(1, 4, &[0..=9]), replica(2, 1, 4)]);
    assert!(learnt.moved.is_empty() && learnt.primaries.contains(&at(7002)));
    assert_eq!(learn(&mut map, &[node(1, 5, &[0..=9]), replica(2, 1, 5)]).moved, slots(&[3..=3]));
}

#[test]
fn recreated_cluster_replaces_old_map() {
    let old = [node(1, 50, &[0..=8000]), node(2, 60, &[8001..=16_383]), replica(3, 1, 50)];
    let alien = |id: u16, port: u16, slots: &[RangeInclusive<u16>]| Node {
        address: at(port),
        ..node(100 + id, 1, slots)
    };

    // The new cluster takes all addresses. Its view replaces the map in spite of its low epochs.
    let mut map = SlotMap::default();
    learn(&mut map, &old);
    let new = [alien(1, 7001, &[8001..=16_383]), alien(2, 7002, &[0..=8000]), alien(3, 7003, &[])];
    assert_eq!(map.learn(&new, &at(7001)).moved, slots(&[0..=16_383]));
    assert_eq!((map.owner(0), map.owner(9000)), (Some(&at(7002)), Some(&at(7001))));

    // One node was reset or joined another cluster. Its view is valid only for that node.
    for alone in [vec![alien(1, 7001, &[])], vec![alien(1, 7001, &[0..=99]), alien(9, 7009, &[100..=16_383])]]
    {
        let mut map = SlotMap::default();
        learn(&mut map, &old);
        assert_eq!(map.learn(&alone, &at(7001)).moved, slots(&[0..=8000]));
        assert_eq!((map.owner(0), map.owner(9000)), (None, Some(&at(7002))));
        assert!(map.known_as(&at(7001)).is_none() && map.known_as(&at(7009)).is_none());
        // Its replica takes over, and every slot has an owner again.
        assert_eq!(learn(&mut map, &[old[1].clone(), node(3, 61, &[0..=8000])]).moved, slots(&[0..=8000]));
    }

    // A smaller cluster runs on some of the ports, and the other ports are closed.
    let mut map = SlotMap::default();
    learn(&mut map, &old);
    let smaller = [alien(1, 7001, &[0..=16_383])];
    assert_eq!(map.learn(&smaller, &at(7001)).moved, slots(&[0..=8000]));
    map.unreachable(&at(7002));
    assert_eq!(map.learn(&smaller, &at(7001)).moved, slots(&[0..=16_383]));
    assert_eq!(map.replicas_too().collect::<Vec<_>>(), [&at(7001)]);
}

#[test]
fn former_nodes_stay_until_unreachable() {
    let alien = [Node { address: at(7001), ..node(100, 1, &[0..=9]) }];
    let old = |second: Node| {
        let mut map = SlotMap::default();
        learn(&mut map, &[node(1, 50, &[0..=4]), second]);
        map
    };
    let second = node(2, 60, &[5..=9]);

    let mut map = old(failed(second.clone()));
    assert_eq!(map.learn(&alien, &at(7001)).moved, slots(&[5..=9]), "however high its epoch was");
    assert_eq!(map.owner(0), Some(&at(7001)), "another node at the same address");
    let mut map = old(second.clone());
    map.unreachable(&at(7002));
    learn(&mut map, &[node(1, 50, &[0..=4]), second.clone()]);
    assert_eq!(map.learn(&alien, &at(7001)).moved, slots(&[0..=4]), "it was seen alive since");
    map.unreachable(&at(7002));
    assert_eq!(map.learn(&alien, &at(7001)).moved, slots(&[0..=9]));

    let mut map = old(second);
    let elsewhere = [Node { address: address("192.168.0.1", 7001), ..alien[0].clone() }];
    assert_eq!(map.learn(&elsewhere, &at(7001)).moved, slots(&[0..=4]), "whoever answers there now");
}

#[test]
fn late_view_does_not_revert_address() {
    let mut map = SlotMap::default();
    let at_port = |port: u16, epoch: u64, slots: &[RangeInclusive<u16>]| Node {
        address: at(port),
        ..node(1, epoch, slots)
    };
    learn(&mut map, &[at_port(7001, 5, &[0..=9]), replica(2, 1, 5)]);
    assert_eq!(learn(&mut map, &[at_port(7009, 6, &[0..=9])]).moved, slots(&[0..=9]));
    assert!(learn(&mut map, &[at_port(7001, 5, &[0..=9])]).moved.is_empty());
    assert_eq!(
        learn(&mut map, &[at_port(7001, 6, &[0..=9])]).moved,
        slots(&[0..=9]),
        "it may go back, though"
    );
}

#[test]
fn a_view_that_contradicts_itself() {
    let owner = |view: &[Node]| {
        let mut map = SlotMap::default();
        learn(&mut map, view);
        map.owner(0).cloned()
    };
    let claim = |id, epoch| node(id, epoch, &[0..=0]);
    assert_eq!(owner(&[claim(1, 2), claim(2, 3)]), Some(at(7002)), "two claim one slot");
    assert_eq!(owner(&[claim(1, 3), claim(2, 2)]), Some(at(7001)));
    assert_eq!(owner(&[claim(1, 2), claim(2, 2)]), Some(at(7001)));
    assert_eq!(owner(&[Node { is_primary: false, ..claim(1, 3) }]), None, "a replica claims one");
    assert_eq!(owner(&[node(1, 2, &[]), claim(1, 3)]), None, "a node is named twice");
    let mut map = SlotMap::default();
    learn(&mut map, &[claim(3, 3), failed(replica(1, 3, 3)), Node { address: at(7001), ..replica(2, 3, 3) }]);
    assert!(map.moved(0, &at(7001)), "two are at one address");
    assert_eq!(learn(&mut map, &[]).primaries, [at(7003), at(7001)], "the living is meant");
}

#[test]
fn nodes_that_left_are_forgotten() {
    let mut map = SlotMap::default();
    learn(&mut map, &[node(1, 1, &[0..=9]), replica(2, 1, 1), replica(3, 1, 1), failed(replica(4, 1, 1))]);
    assert_eq!(map.replicas_too().count(), 3);
    map.unreachable(&at(7002));
    assert_eq!(map.replicas_too().last(), Some(&at(7002)));
    learn(&mut map, &[node(1, 1, &[0..=9]), replica(3, 1, 1)]);
    assert!(
        map.known_as(&at(7001)).is_some()
            && map.known_as(&at(7002)).is_none()
            && map.known_as(&at(7003)).is_some()
    );
    assert_eq!(format!("{map:?}"), "{\"10.0.0.1:7001\": {0..=9}, \"10.0.0.1:7003\": {}}");
}

/// Six nodes and eight groups of slots.
const NODES: u16 = 6;
const GROUPS: u16 = 8;
const GROUP: u16 = SLOTS / GROUPS;

/// The events of a cluster. Every gain of slots has an epoch above all others, as in Redis.
#[derive(Clone, Copy, Debug)]
enum Event {
    Import { group: u16, to: u16 },
    Failover { replica: u16 },
    Fails { node: u16 },
    Recovers { node: u16 },
}

#[derive(Clone, Debug)]
struct Cluster {
    epoch: u64,
    nodes: Vec<Node>,
    owners: Vec<u16>,
}

impl Cluster {
    fn new() -> Self {
        let nodes = (0..NODES)
            .map(|id| if id < 3 { node(id, id.into(), &[]) } else { replica(id, id - 3, (id - 3).into()) });
        Self { epoch: 2, nodes: nodes.collect(), owners: (0..GROUPS).map(|group| group % 3).collect() }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Import { group, to } if self.nodes[usize::from(to)].is_primary => {
                self.gain(to);
                self.owners[usize::from(group)] = to;
            }
            Event::Failover { replica } => {
                let id = |node: &Node| node.id.trim_start_matches("id").parse::<u16>().unwrap();
                let Some(primary) = self.nodes[usize::from(replica)].primary_id.clone() else { return };
                let old = self.nodes.iter().find(|node| node.id == primary).map(id).unwrap();
                let taken = &mut self.nodes[usize::from(replica)];
                (taken.is_primary, taken.primary_id, taken.is_failed) = (true, None, false);
                self.gain(replica);
                self.owners.iter_mut().filter(|owner| **owner == old).for_each(|owner| *owner = replica);
                let deposed = &mut self.nodes[usize::from(old)];
                (deposed.is_primary, deposed.primary_id) = (false, Some(format!("id{replica}")));
                for node in &mut self.nodes {
                    if node.primary_id.as_deref() == Some(primary.as_str()) {
                        node.primary_id = Some(format!("id{replica}"));
                    }
                }
            }
            Event::Fails { node } => self.nodes[usize::from(node)].is_failed = true,
            Event::Recovers { node } => self.nodes[usize::from(node)].is_failed = false,
            Event::Import { .. } => {}
        }
    }

    fn gain(&mut self, node: u16) {
        self.epoch += 1;
        self.nodes[usize::from(node)].epoch = self.epoch;
    }

    fn view(&self) -> Vec<Node> {
        let epoch_of = |id: &str| self.nodes.iter().find(|node| node.id == id).map_or(0, |node| node.epoch);
        let seen = |node: &Node| Node {
            epoch: node.primary_id.as_deref().map_or(node.epoch, epoch_of),
            slots: (0..GROUPS)
                .filter(|group| format!("id{}", self.owners[usize::from(*group)]) == node.id)
                .map(|group| group * GROUP..=(group + 1) * GROUP - 1)
                .collect(),
            ..node.clone()
        };
        self.nodes.iter().map(seen).collect()
    }

    fn owner(&self, slot: u16) -> Address {
        at(7000 + self.owners[usize::from(slot / GROUP)])
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0..GROUPS, 0..NODES).prop_map(|(group, to)| Event::Import { group, to }),
        (0..NODES).prop_map(|replica| Event::Failover { replica }),
        (0..NODES).prop_map(|node| Event::Fails { node }),
        (0..NODES).prop_map(|node| Event::Recovers { node }),
    ]
}

/// Any view that a parser accepts. Ids, addresses, epochs and slots come from small ranges, so that they collide.
fn any_view() -> impl Strategy<Value = Vec<Node>> {
    let range = (0..SLOTS, 0..SLOTS).prop_map(|(a, b)| a.min(b)..=a.max(b));
    let node = (0..8_u16, 0..8_u16, 0..5_u64, vec(range, 0..3), any::<[bool; 4]>()).prop_map(
        |(id, port, epoch, slots, [is_primary, is_failed, has_host, has_name])| {
            let by_ip = address(if has_host { "10.0.0.1" } else { "" }, 7000 + port);
            let named = has_name.then(|| address(&format!("n{port}"), 7000 + port));
            Node { is_primary, is_failed, address: by_ip, alias: named, ..node(id, epoch, &slots) }
        },
    );
    (vec(node, 0..6), any::<bool>()).prop_map(|(mut view, by_name)| {
        for node in view.iter_mut().filter(|_| by_name) {
            if let Some(alias) = &mut node.alias {
                std::mem::swap(alias, &mut node.address);
            }
        }
        view
    })
}

fn all_owners(map: &SlotMap) -> Vec<Option<Address>> {
    (0..SLOTS).map(|slot| map.owner(slot).cloned()).collect()
}

proptest! {
    #[test]
    fn late_views_leave_newest_ownership(
        events in vec(event(), 0..30), heard in vec(any::<proptest::sample::Index>(), 1..12)
    ) {
        let mut history = vec![Cluster::new()];
        for event in events {
            let mut next = history[history.len() - 1].clone();
            next.apply(event);
            history.push(next);
        }
        let mut map = SlotMap::default();
        let mut newest = 0;
        for index in heard {
            let index = index.index(history.len());
            newest = newest.max(index);
            learn(&mut map, &history[index].view());
            for slot in (0..SLOTS).step_by(usize::from(GROUP / 2)) {
                prop_assert_eq!(map.owner(slot), Some(&history[newest].owner(slot)), "{}", slot);
            }
        }
    }

    #[test]
    fn true_view_corrects_any_map(
        views in vec(any_view(), 0..6), events in vec(event(), 0..10), others: bool
    ) {
        let mut map = SlotMap::default();
        for view in views {
            map.learn(&view, &at(7000));
        }
        let mut cluster = Cluster::new();
        events.into_iter().for_each(|event| cluster.apply(event));
        let mut truth = cluster.view();
        if others {
            truth.iter_mut().for_each(|node| node.id.push('x'));
        }
        // In the worst case, every owner is wrong, has the highest epoch, and is not up to send MOVED.
        for owner in all_owners(&map).into_iter().flatten().collect::<HashSet<_>>() {
            map.unreachable(&owner);
        }
        learn(&mut map, &truth);
        for slot in (0..SLOTS).step_by(usize::from(GROUP / 2)) {
            prop_assert_eq!(map.owner(slot), Some(&cluster.owner(slot)), "{}", slot);
        }
    }

    #[test]
    fn any_views_are_merged_consistently(views in vec((any_view(), 0..9_u16, any::<bool>()), 0..8)) {
        let mut map = SlotMap::default();
        for (view, port, is_unreachable) in views {
            if is_unreachable {
                map.unreachable(&at(7000 + port));
            }
            let before = all_owners(&map);
            let learnt = map.learn(&view, &at(7008));
            let after = all_owners(&map);
            for slot in 0..SLOTS {
                let slot_index = usize::from(slot);
                prop_assert_eq!(learnt.moved.contains(slot), before[slot_index] != after[slot_index], "{}", slot);
            }
            prop_assert_eq!(map.is_covered(), after.iter().all(Option::is_some));
            prop_assert!(after.iter().flatten().chain(&learnt.primaries).all(|owner| map.known_as(owner).is_some()));
            prop_assert!(map.replicas_too().all(|node| map.known_as(node).is_some()));
            prop_assert!(map.nodes.len() <= view.len() + 8, "who neither speaks nor owns is forgotten");

            let again = map.learn(&view, &at(7008));
            prop_assert!(again.moved.is_empty(), "{:?}", again.moved);
            prop_assert_eq!(&again.primaries, &learnt.primaries);

            let to = at(7000 + port);
            let slot = port * 1800;
            let owner_before = map.owner(slot).cloned();
            if map.moved(slot, &to) {
                prop_assert!(map.owner(slot).is_some_and(|owner| map.nodes.iter().any(|(_, n)| n.is_at(&to) && n.address == *owner)));
            } else {
                prop_assert!(map.known_as(&to).is_none());
                prop_assert_eq!(map.owner(slot), owner_before.as_ref());
            }
        }
    }
}
