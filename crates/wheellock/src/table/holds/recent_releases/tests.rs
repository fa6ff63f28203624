//! Tests of `released`.

use super::*;
use crate::kind;

fn name(key: &str) -> Arc<Name> {
    Arc::new(Name::new(key, &kind::REENTRANT, false))
}

fn everybody() -> Change {
    Change::everywhere()
}

/// Returns the owners of all releases to repeat. Each release ends at once.
fn repeated(released: &mut RecentReleases) -> Vec<u64> {
    let mut owners = Vec::new();
    while let Some(release) = released.next(&mut usize::MAX.clone()) {
        owners.push(release.owner);
        released.ended();
    }
    owners.sort_unstable();
    owners
}

/// B2: the record of releases is bounded in time. Each server's bound is its own last release.
#[test]
fn repeats_cover_window_before_last_release() {
    let (mut released, start, name) = (RecentReleases::default(), BootInstant::now(), name("n"));
    for second in 0..=20 {
        released.remember(0, &name, second, start + Duration::from_secs(second));
        if second == 7 {
            // The last release that this server confirms.
            released.remember(1, &name, 107, start + Duration::from_secs(second));
        }
    }
    released.suspect(everybody());
    assert_eq!(repeated(&mut released), [15, 16, 17, 18, 19, 20, 107]);
    assert!(released.releases.is_empty() && released.name_bytes == 0);
    released.suspect(everybody());
    assert_eq!(repeated(&mut released), [0; 0], "each is sent again once");
}

/// B2: the record of releases is bounded in number over all servers, and keeps the latest releases.
#[test]
fn excess_drops_oldest_releases() {
    let (mut released, start, name) = (RecentReleases::default(), BootInstant::now(), name("n"));
    let many = 3 * MOST as u64;
    for owner in 0..many {
        released.remember((owner % 2) as u32, &name, owner, start + Duration::from_nanos(owner));
        assert!(released.releases.len() <= MOST);
    }
    let room = released.releases.capacity();
    assert!(room * size_of::<Release>() <= 3 << 20, "{room} places");
    released.suspect(everybody());
    let owners = repeated(&mut released);
    assert_eq!((owners.len(), owners.last()), (MOST, Some(&(many - 1))));
    assert!(owners[0] >= many - MOST as u64 - 2, "{}", owners[0]);
}

/// B2: the new server lacks the latest releases of the old one. They are repeated first, and new releases do not displace them.
#[test]
fn new_releases_displace_no_latest_pending() {
    let (mut released, start, name) = (RecentReleases::default(), BootInstant::now(), name("n"));
    let (many, new) = (MOST as u64, MOST as u64 / 2);
    (0..many).for_each(|owner| released.remember(0, &name, owner, start));
    released.changed();
    released.suspect(everybody());
    (many..many + new).for_each(|owner| released.remember(0, &name, owner, start));
    assert_eq!(released.next(&mut 1).map(|release| release.owner), Some(many - 1));
    released.ended();
    assert_eq!(repeated(&mut released).first(), Some(&new), "the oldest made room");
    assert_eq!(released.releases.len() as u64, new);
}

/// B2: long names count for more.
#[test]
fn retained_name_bytes_are_bounded() {
    let (mut released, now) = (RecentReleases::default(), BootInstant::now());
    let names: Vec<_> = (0..2000).map(|number| name(&format!("{number:4096}"))).collect();
    for (owner, name) in (0..).zip(&names) {
        released.remember(0, name, owner, now);
    }
    let alive = names.iter().filter(|name| Arc::strong_count(name) > 1).count();
    assert_eq!(alive, MOST_NAME_BYTES / 4096);
    assert_eq!(released.name_bytes, alive * 4096);
}

/// B2: an idle process keeps no record of old releases.
#[test]
fn old_releases_are_forgotten_and_freed() {
    let (mut released, start) = (RecentReleases::default(), BootInstant::now());
    let (one, other) = (name("one"), name("other"));
    (0..1000).for_each(|owner| released.remember(0, &one, owner, start));
    released.remember(1, &other, 1, start + KEPT / 2);
    assert_eq!(released.forget(start + KEPT / 2), Some(start + KEPT));
    assert_eq!(released.forget(start + KEPT), Some(start + KEPT / 2 + KEPT));
    assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (1, 2));
    released.suspect(everybody());
    assert_eq!(released.forget(start + 2 * KEPT), None);
    assert_eq!((released.releases.len(), released.name_bytes, Arc::strong_count(&other)), (0, 0, 1));
    assert_eq!(repeated(&mut released), [0; 0]);
}

/// B2: after a failover the number of releases under way to a new primary is bounded.
#[test]
fn concurrent_repeated_releases_are_bounded() {
    let (mut released, now, name) = (RecentReleases::default(), BootInstant::now(), name("n"));
    (0..2000).for_each(|owner| released.remember(0, &name, owner, now));
    released.suspect(everybody());
    let mut looks = 1000;
    let first: Vec<_> = std::iter::from_fn(|| released.next(&mut looks)).collect();
    assert_eq!((first.len(), looks), (UNDER_WAY, 1000 - UNDER_WAY));
    assert!(!released.may_repeat() && released.next(&mut looks).is_none());
    (0..10).for_each(|_| released.ended());
    // Releases that arrive meanwhile are not suspects.
    released.remember(0, &name, 5000, now);
    assert_eq!(std::iter::from_fn(|| released.next(&mut looks)).count(), 10);
    (0..UNDER_WAY).for_each(|_| released.ended());
    assert_eq!(repeated(&mut released).len(), 2000 - UNDER_WAY - 10);
    assert_eq!(released.releases.len(), 1);
}
