//! Histories for the checkers of readers' and writers' turns.

use super::{A, Checker, broken, complaints, right};

/// A reader from 10 to 100.
const READS: &str = "@10 1 1 1 l invoked acquire true =600 - - shared
    @12 1 1 1 l granted a:1 @600
    @13 1 1 1 l entered 1
    @100 1 1 1 l releasing
    @101 1 1 1 l released
    ";

/// A second reader, which reads for longer.
const READS_TOO: &str = "@20 2 1 1 l invoked acquire true =600 - - shared
    @22 2 1 1 l granted b:1 @600
    @150 2 1 1 l releasing
    @151 2 1 1 l released
    ";

#[test]
fn b33_writer_enters_beside_reader() {
    let writer = "@50 3 1 1 l invoked acquire true =600 - -
        @60 3 1 1 l granted c:1 @640
        @90 3 1 1 l releasing
        @91 3 1 1 l released";
    broken(&format!("{READS}{writer}"), Checker::Exclusion);
    // The writer enters after the end of the first reader, while the second reader still reads.
    broken(
        &format!("{READS}{READS_TOO}{}", writer.replace("@6", "@11").replace("@9", "@12")),
        Checker::Exclusion,
    );
}

#[test]
fn b34_reader_enters_beside_writer() {
    let reader = "@50 3 1 1 l invoked acquire true =600 - - shared
        @60 3 1 1 l granted c:1 @640
        @90 3 1 1 l releasing
        @91 3 1 1 l released";
    broken(&format!("{A}{reader}"), Checker::Exclusion);
}

#[test]
fn b35_a_reader_waits_for_readers() {
    let text = format!(
        "{READS}@400 1 1 2 l invoked acquire true =600 - - shared
        @401 1 1 2 l granted a:2 @990
        @20 2 1 1 l invoked acquire true =600 - - shared
        @700 1 1 2 l releasing
        @701 1 1 2 l released
        @702 2 1 1 l granted b:1 @1290
        @710 2 1 1 l dropped"
    );
    broken(&text, Checker::Turns);
    // A wait that ends without the lock cannot even be explained.
    let text = "@10 1 1 1 l invoked acquire true =600 - - shared
        @11 1 1 1 l granted a:1 @600
        @20 2 1 1 l invoked try-for true =600 @420 - shared
        @420.1 2 1 1 l not-granted
        @430 1 1 1 l dropped";
    assert_eq!(complaints(text), [Checker::Honesty, Checker::Turns]);
}

#[test]
fn b36_reader_refused_because_of_readers() {
    broken(
        &format!("{READS}@50 2 1 1 l invoked try true =600 - - shared\n@51 2 1 1 l not-granted"),
        Checker::Honesty,
    );
}

#[test]
fn b37_downgrade_wakes_no_reader() {
    let text = "@10 1 1 1 l invoked acquire true =600 - -
        @12 1 1 1 l granted a:1 @600
        @20 1 1 2 l invoked again true =600 - a:1 shared
        @21 1 1 2 l granted a:1 @620
        @50 2 1 1 l invoked acquire true =600 - - shared
        @100 1 1 1 l releasing
        @101 1 1 1 l released
        @450 1 1 2 l releasing
        @451 1 1 2 l released
        @452 2 1 1 l granted b:1 @1050
        @460 2 1 1 l dropped";
    broken(text, Checker::Turns);
    right(&text.replace("@452", "@102").replace("@1050", "@700").replace("@460", "@110"));
}

#[test]
fn b38_late_reader_passes_waiting_writer() {
    let text = "@10 1 1 1 l invoked acquire true =600 - - shared
        @12 1 1 1 l granted a:1 @600
        @20 3 1 1 l invoked acquire true =600 - -
        @300 2 1 1 l invoked acquire true =600 - - shared
        @301 2 1 1 l granted b:1 @890
        @400 1 1 1 l dropped
        @500 2 1 1 l dropped
        @501 3 1 1 l granted c:1 @1090
        @510 3 1 1 l dropped";
    broken(text, Checker::Turns);
    // The same is right before the server can know of the writer. It is also right for an owner that already reads, and after another
    // writer's turn.
    right(&text.replace("@300", "@30").replace("@301", "@31").replace("@890", "@600"));
    right(
        &text
            .replace(
                "@300 2 1 1 l invoked acquire true =600 - - shared",
                "@300 1 2 2 l invoked again true =600 - a:1 shared",
            )
            .replace(" 2 1 1 l", " 1 2 2 l")
            .replace("granted b:1", "granted a:1"),
    );
    right(&format!(
        "@60 4 1 1 l invoked try-for true =600 @260 -
        @260.1 4 1 1 l not-granted
        {text}"
    ));
}

/// A server that has lost its data knows of a waiting writer again after the writer's next request.
#[test]
fn b38_reader_passes_forgotten_writer() {
    let text = "@1 0 0 0 - setup =1200 =1000 =200
        @10 1 1 1 l invoked acquire false =1200 - - shared
        @12 1 1 1 l granted a:1 @1195
        @20 3 1 1 l invoked acquire true =600 - -
        @FORGOT 0 0 0 - begins forgot -
        @FORGOT.1 0 0 0 - ends forgot
        @2300 2 1 1 l invoked acquire true =600 - - shared
        @2301 2 1 1 l granted b:1 @2890
        @2310 2 1 1 l releasing
        @2311 2 1 1 l released
        @2315 3 1 1 l granted c:1 @2900
        @2320 3 1 1 l dropped";
    right(&text.replace("FORGOT", "1100"));
    broken(&text.replace("FORGOT", "800"), Checker::Turns);
}

#[test]
fn b39_last_reader_wakes_no_writer() {
    let text = format!(
        "{READS}{READS_TOO}@30 3 1 1 l invoked acquire true =600 - -
        @500 3 1 1 l granted c:1 @1000
        @510 3 1 1 l dropped"
    );
    broken(&text, Checker::WakeUps);
}

#[test]
fn right_readers_share_then_writer_enters() {
    let text = format!(
        "{READS}{READS_TOO}@30 3 1 1 l invoked acquire true =600 - -
        @35 4 1 1 l invoked try true =600 - - shared
        @36 4 1 1 l not-granted
        @152 3 1 1 l granted c:1 @740
        @40 4 1 2 l invoked acquire true =600 - - shared
        @40 5 1 1 l invoked acquire true =600 - - shared
        @180 3 1 1 l releasing
        @181 3 1 1 l released
        @182 4 1 2 l granted d:1 @770
        @182 5 1 1 l granted e:1 @770
        @190 4 1 2 l dropped
        @200 5 1 1 l dropped"
    );
    right(&text);
}

#[test]
fn right_readers_wait_behind_dead_writer() {
    let text = format!(
        "@1 3 0 0 - started
        {READS}@30 3 1 1 l invoked acquire true =600 - -
        @50 3 0 0 - killed
        @3000 2 1 1 l invoked try true =600 - - shared
        @3001 2 1 1 l not-granted
        @3002 2 1 2 l invoked acquire true =600 - - shared
        @6040 2 1 2 l granted b:1 @6600
        @6050 2 1 2 l dropped"
    );
    right(&text);
    let later = text.replace("@60", "@70").replace("@6600", "@7600");
    broken(&later, Checker::Turns);
    // The server may read the writer's request when it replies again.
    let silent = "@20 0 0 0 - begins silent -\n@END 0 0 0 - ends silent";
    right(&format!("{later}\n{}", silent.replace("END", "1100")));
    broken(&format!("{later}\n{}", silent.replace("END", "400")), Checker::Turns);
}

/// A writer dies while it waits. Its mark for readers expires by the server's clock.
#[test]
fn b52_clock_rollback_prolongs_dead_writer() {
    let text = "@10 1 1 1 l invoked acquire true =600 - - shared
        @12 1 1 1 l granted a:1 @595
        @20 2 1 1 l invoked acquire true =600 - -
        @30 2 0 0 - killed
        @40 1 1 1 l releasing
        @41 1 1 1 l released
        @50 3 1 1 l invoked acquire true =600 - - shared
        @SEEN 3 1 1 l granted c:1 @12590
        @12010 3 1 1 l releasing
        @12011 3 1 1 l released";
    right(&text.replace("SEEN", "5500"));
    let late = text.replace("SEEN", "12000");
    broken(&late, Checker::Turns);
    right(&format!("{late}\n@4000 0 0 0 - begins clock -\n@7000 0 0 0 - ends clock"));
    broken(&format!("{late}\n@1000 0 0 0 - begins clock -\n@2000 0 0 0 - ends clock"), Checker::Turns);
}
