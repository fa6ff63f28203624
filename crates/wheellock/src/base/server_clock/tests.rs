//! Tests of `server_clock`.

use super::*;

fn sample(server_millis: u64, sent_millis: u64, received_millis: u64) -> Sample {
    let start = BootInstant::now();
    let at = |millis| start + Duration::from_millis(millis);
    Sample {
        server: Duration::from_millis(1_700_000_000_000 + server_millis),
        sent: at(sent_millis),
        received: at(received_millis),
    }
}

#[test]
fn slow_reply_or_drift_is_ignored() {
    for (server, sent, received) in [
        (10_000, 10_000, 10_001),
        (14_000, 10_000, 14_000),
        (10_000, 10_000, 14_000),
        (10_099, 10_000, 10_001),
    ] {
        let mut clock = ServerClocks::default();
        assert_eq!(clock.observe(1, sample(0, 0, 1)), None);
        assert_eq!(clock.observe(1, sample(server, sent, received)), None, "{server} {sent} {received}");
    }
}

#[test]
fn jump_reports_longest_possible_length() {
    let (mut clock, start) = (ServerClocks::default(), BootInstant::now());
    let heard = |server, sent, received| {
        let at = |seconds| start + Duration::from_secs(seconds);
        Sample { server: Duration::from_secs(server), sent: at(sent), received: at(received) }
    };
    assert_eq!(clock.observe(1, heard(1_000, 0, 0)), None);
    // The server read its clock when the request arrived, when it replied, or in between.
    let jumped = clock.observe(1, heard(1_040, 10, 14));
    assert_eq!(jumped, Some(Jump::Forward(Duration::from_secs(30))));
}

#[test]
fn each_server_is_compared_with_itself() {
    let start = BootInstant::now();
    let at = |server: u64, ours: u64| {
        let now = start + Duration::from_secs(ours);
        Sample { server: Duration::from_secs(server), sent: now, received: now }
    };
    let mut clocks = ServerClocks::default();
    for second in 0..2 {
        assert_eq!(clocks.observe(1, at(1_000 + second, second)), None);
        assert_eq!(clocks.observe(2, at(9_000 + second, second)), None);
    }
    assert_eq!(clocks.observe(1, at(1_002, 2)), None);
    assert_eq!(clocks.observe(2, at(9_062, 2)), Some(Jump::Forward(Duration::from_secs(60))));
    assert_eq!(clocks.observe(3, at(0, 48 * 3600)), None);
    assert_eq!(clocks.last.len(), 1, "servers that are gone are forgotten");
}

#[test]
fn jumps_are_measured_both_ways() {
    let start = BootInstant::now();
    let at = |server: u64, ours: u64| Sample {
        server: Duration::from_secs(server),
        sent: start + Duration::from_secs(ours),
        received: start + Duration::from_secs(ours),
    };
    let mut clock = ServerClocks::default();
    assert_eq!(clock.observe(1, at(1_000_000, 0)), None);
    assert_eq!(clock.observe(1, at(1_000_041, 10)), Some(Jump::Forward(Duration::from_secs(31))));
    assert_eq!(clock.observe(1, at(1_000_051, 20)), None, "once");
    assert_eq!(clock.observe(1, at(1_000_058, 30)), Some(Jump::Backward(Duration::from_secs(3))));
    assert_eq!(clock.observe(1, at(996_468, 40)), Some(Jump::Backward(Duration::from_secs(3_600))));
}
