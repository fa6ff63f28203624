//! Tests of `watchdog`.

#[cfg(feature = "testing")]
mod on_doubles;

use super::*;
use crate::base::lease::Lease;
use crate::kind;

fn renewals(slots: &[(u16, bool)]) -> Vec<Renewal> {
    let named = |(number, &(slot, alone)): (usize, &(u16, bool))| Renewal {
        hold: u32::try_from(number).unwrap(),
        serial: 0,
        name: Arc::new(Name::new(&format!("{slot}"), &kind::REENTRANT, false)),
        owner: 0,
        lease: Lease::DEFAULT,
        extend: true,
        with_source: false,
        alone,
        remembers: false,
        reclaim: None,
        slot: 0,
    };
    slots.iter().enumerate().map(named).collect()
}

fn grouped(slots: &[(u16, bool)]) -> Vec<Vec<u32>> {
    let mut renewals = renewals(slots);
    let slot_of = |renewal: &Renewal| renewal.name.key().parse().unwrap();
    let numbers = |group: &[Renewal]| group.iter().map(|renewal| renewal.hold).collect();
    batches(&mut renewals, slot_of).map(numbers).collect()
}

#[test]
fn batches_separate_slots_and_isolated_renewals() {
    assert_eq!(grouped(&[]), [[0; 0]; 0]);
    assert_eq!(grouped(&[(0, false); 3]), [[0, 1, 2]]);
    assert_eq!(grouped(&[(7, false), (3, false), (7, false), (3, false)]), [[1, 3], [0, 2]]);
    let alone = grouped(&[(7, true), (7, false), (7, true), (7, false), (3, false)]);
    assert_eq!(alone, [vec![4], vec![1, 3], vec![0], vec![2]]);
    let many = grouped(&vec![(9, false); 2 * BATCH + 1]);
    assert_eq!(many.iter().map(Vec::len).collect::<Vec<_>>(), [BATCH, BATCH, 1]);
}
