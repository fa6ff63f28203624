//! Tests of `holder`.

use super::*;
use crate::base::owner::FIRST_THREAD;

fn holder(owner: &str) -> Holder {
    Holder {
        owner: owner.to_owned(),
        mode: Mode::Exclusive,
        hold_count: 1,
        lease_left: Duration::from_millis(29_340),
        label: None,
        held_for: None,
    }
}

#[test]
fn owner_process_is_uuid_or_none() {
    let uuid = "0f9a1b2c-0000-4000-8000-00805f9b34fb";
    assert_eq!(holder(&format!("{uuid}:1")).process(), Some(uuid));
    assert_eq!(holder(&format!("{uuid}:9223372036854775807")).process(), Some(uuid));
    for foreign in ["", ":", "token", uuid, "a:1", &format!("{uuid}:x"), &format!("{uuid}0:1")] {
        assert_eq!(holder(foreign).process(), None, "{foreign}");
    }
}

#[test]
fn holder_fits_in_one_line() {
    let mut told = holder("me\n:1");
    assert_eq!(told.to_string(), r"[me\n:1] holds it alone, for 29.3 s more unless it renews");
    told.label = Some("host/1/nightly\u{1b}[2J".to_owned());
    (told.mode, told.hold_count, told.lease_left) = (Mode::Write, 2, Duration::MAX);
    let line = r"host/1/nightly\u{1b}[2J [me\n:1] holds it for writing, 2 times, without an end";
    assert_eq!(told.to_string(), line);
}

#[test]
fn age_is_shown_in_largest_unit() {
    let mut told = holder("me:1");
    for (seconds, shown) in [(7, "7 s"), (600, "10 min"), (7_300, "2 h"), (300_000, "3 d")] {
        told.held_for = Some(Duration::from_secs(seconds));
        let line = format!("[me:1] holds it alone, granted {shown} ago, for 29.3 s more unless it renews");
        assert_eq!(told.to_string(), line);
    }
    told.held_for = None;
    assert!(!told.to_string().contains("granted"), "{told}");
}

#[test]
fn spent_owner_is_told_apart() {
    let uuid = "0f9a1b2c-0000-4000-8000-00805f9b34fb";
    let told = holder(&format!("{uuid}:{}", SPENT + 7));
    assert!(told.is_spent());
    assert!(told.to_string().ends_with("has ended its work and keeps it for 29.3 s more"), "{told}");
    for living in [
        format!("{uuid}:7"),
        format!("{uuid}:{}", FIRST_THREAD + 7),
        format!("{uuid}:{}", SPENT - 1),
        format!("token:{SPENT}"),
    ] {
        assert!(!holder(&living).is_spent(), "{living}");
    }
}

#[test]
fn label_is_bounded_and_printable() {
    for good in ["host/12/billing", "é", &"x".repeat(MAX_LABEL)] {
        assert_eq!(Label::new(good.to_owned()).unwrap().text(), good);
    }
    for bad in ["", "a\nb", "\u{1b}", &"x".repeat(MAX_LABEL + 1)] {
        assert!(matches!(Label::new(bad.to_owned()), Err(Error::InvalidLabel { .. })), "{bad:?}");
    }
    assert_eq!(Label::as_found(&[b'x'; 2 * MAX_LABEL]).len(), MAX_LABEL);
    assert_eq!(Label::as_found(b"\xFF"), "\u{FFFD}");
}
