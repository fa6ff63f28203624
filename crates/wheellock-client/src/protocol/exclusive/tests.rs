//! Tests of `exclusive`.

use super::*;

fn objection_to(line: &str) -> Option<&'static str> {
    let mut words = line.split(' ');
    objection(&Command::new(words.next().unwrap()).args(words))
}

#[test]
fn shared_state_commands_are_refused() {
    for line in ["SELECT 1", "select 1", "Multi", "SUBSCRIBE news", "blpop k 0", "RESET", "HELLO 3"] {
        assert!(objection_to(line).is_some(), "{line}");
    }
    for line in [
        "SCRIPT DEBUG YES",
        "script debug sync",
        "CLIENT CAPA redirect",
        "CLIENT NO-TOUCH on",
        "CLIENT SETNAME me",
    ] {
        assert!(objection_to(line).is_some(), "{line}");
    }
    for line in
        ["CLIENT NO-EVICT on", "CLIENT OF-LATER-SERVERS", "SCRIPT OF-LATER-SERVERS", "REPLCONF capa eof"]
    {
        assert!(objection_to(line).is_some(), "{line}");
    }
    for line in ["CLIENT REPLY OFF", "client tracking on", "XREAD COUNT 2 block 0 STREAMS s $"] {
        assert!(objection_to(line).is_some(), "{line}");
    }
    assert!(objection_to("XREADGROUP GROUP g c BLOCK 5 STREAMS s >").is_some());
}

/// A second client of this crate refuses the command, too, so the text names another library.
#[test]
fn objection_names_another_library() {
    for line in
        ["PSUBSCRIBE news*", "MONITOR", "CLIENT TRACKING on", "BLPOP k 0", "XREAD BLOCK 0 STREAMS s $"]
    {
        let objection = objection_to(line).unwrap();
        assert!(
            objection.contains("another library") && objection.contains("no Client"),
            "{line}: {objection}"
        );
    }
}

#[test]
fn what_is_ones_own_is_not() {
    for line in [
        "SET select 1",
        "PING",
        "PUBLISH news x",
        "S",
        "",
        "EXISTS exec",
        "AUTH user token",
        "CLIENT ID",
        "client kill id 7",
        "CLIENT",
        "SCRIPT",
        "script load x",
        "SCRIPT EXISTS abc",
        "SELECTS",
    ] {
        assert_eq!(objection_to(line), None, "{line}");
    }
    // A stream, a group or a consumer may have this name.
    for line in ["XREAD STREAMS BLOCK 0", "XREADGROUP GROUP BLOCK BLOCK STREAMS s >", "XREAD BLOC 5"] {
        assert_eq!(objection_to(line), None, "{line}");
    }
    // The lock layer tests the server's abilities with this command, and the command ends by itself.
    assert_eq!(objection_to("WAIT 0 1"), None);
    assert_eq!(objection(&Command::new("XREAD").arg(5)), None);
}
