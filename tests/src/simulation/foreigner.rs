//! A client that takes locks as Redisson does.
//!
//! It uses only its own calls. It does not queue, and does not renew locks.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use wheellock::testing::server::Which;

use super::machine::{Machine, lock_name};
use super::plan::{Foreigner, LEASE};
use crate::history::{Kind, What};

/// Arrives at its time, polls a number of times, and leaves. Runs our scripts for a plain lock, because they have the same effect as
/// Redisson's.
pub(super) async fn come(number: u32, foreigner: Foreigner, machine: Arc<Machine>) {
    sleep(Duration::from_millis(foreigner.at)).await;
    let (lock, log) = (lock_name(foreigner.lock), &machine.log);
    let owner = format!("00000000-0000-4000-8000-000000000000:{number}");
    let record = |what| log.record(FOREIGN + number, 0, 1, &lock, what);
    let has_it = || {
        machine.change(|server| server.store.holds().any(|(key, holder, _)| key == lock && holder == owner))
    };
    for _ in 0..foreigner.asks {
        let asked = log.now();
        let lease = LEASE.to_string();
        machine.change(|server| {
            server.run_for_another(Which::Acquire, "1", &[&lock, &lease, &owner, "1"]);
        });
        if has_it() {
            let (kind, renewed, lease) = (Kind::Try, false, LEASE * MILLISECOND);
            let owner = owner.clone();
            record(What::Invoked {
                kind,
                renewed,
                lease,
                deadline: None,
                owner: owner.clone(),
                shared: false,
            });
            let valid_until = asked + lease - lease / 100 - 2 * MILLISECOND;
            record(What::Granted { owner, valid_until, token: None });
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    if !has_it() {
        return;
    }
    sleep(Duration::from_millis(foreigner.hold)).await;
    if foreigner.dies {
        log.record(FOREIGN + number, 0, 0, "", What::Killed);
        return sleep(Duration::from_millis(LEASE)).await;
    }
    record(What::Releasing);
    let had_it = has_it();
    let channel = format!("redisson_lock__channel:{{{lock}}}");
    machine.change(|server| {
        server.run_for_another(Which::Release, "1", &[&lock, &channel, &owner, "0", "PUBLISH"]);
    });
    record(if had_it { What::Released } else { What::AlreadyLost });
}

/// The offset of foreigners' process numbers. Each foreigner is a separate process in the log.
pub(super) const FOREIGN: u32 = 100;
const MILLISECOND: u64 = 1_000_000;
