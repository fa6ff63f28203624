//! Tests of `context`.

use super::*;
use crate::kind::REENTRANT;

fn kinds() -> [&'static Kind; 2] {
    let other = Kind::counted("", "other_channel:");
    [&REENTRANT, Box::leak(Box::new(other))]
}

/// B3: a rejected name is not kept, however often it is used.
#[tokio::test]
async fn refused_names_are_not_remembered() {
    let locks = crate::LockManager::builder("redis://127.0.0.1:1").lazy().unwrap();
    for length in [0, crate::base::error::MAX_NAME + 1, 8 << 20] {
        let lock = locks.lock(&"x".repeat(length));
        assert!(matches!(lock.try_acquire().await, Err(Error::InvalidName { .. })), "{length}");
    }
    let lock = locks.lock("short");
    assert_eq!(locks.context.names.lock().unwrap().len(), 1);
    drop(lock);
}

#[test]
fn name_is_shared_only_within_kind() {
    let mut names = Names::default();
    let [one, other] = kinds();
    let first = names.get("n", one, UNCLASSIFIED);
    assert!(Arc::ptr_eq(&first, &names.get("n", one, UNCLASSIFIED)));
    let second = names.get("n", other, UNCLASSIFIED);
    assert!(!Arc::ptr_eq(&first, &second) && first.channel() != second.channel());
    assert!(Arc::ptr_eq(&second, &names.find("n", other).unwrap()));
}

#[test]
fn unused_names_are_dropped_in_bulk() {
    let (mut names, kept) = (Names::default(), kinds());
    let kept = kept.map(|kind| names.get("kept", kind, UNCLASSIFIED));
    for number in 0..1000 {
        names.get(&number.to_string(), kept[number % 2].kind(), UNCLASSIFIED);
    }
    assert!(names.len() <= 2 * kept.len() + 65, "{}", names.len());
    assert!(kept.iter().all(|name| Arc::ptr_eq(name, &names.find("kept", name.kind()).unwrap())));
}
