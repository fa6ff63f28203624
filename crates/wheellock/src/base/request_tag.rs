//! The context of a request without a waiting task.
//!
//! The context is packed into the number that arrives with the reply.

use wheellock_client::layer::Retry;

/// Which request the reply belongs to, and how the request was sent.
pub(crate) struct RequestTag {
    pub(crate) about: About,
    /// The request contained the script's text.
    pub(crate) with_source: bool,
}

/// Returns how the next attempt begins, after an attempt that contained the script's text or not.
pub(crate) fn retry(with_source: bool) -> Retry {
    if with_source { Retry::in_full() } else { Retry::default() }
}

/// The subject of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    Reconcile {
        hold: u32,
    },
    Renewal {
        batch: u32,
    },
    /// The reply is not of interest.
    Nothing,
    /// Other servers must acknowledge the extension by a renewal.
    Wait {
        batch: u32,
    },
}

const RENEWAL: u64 = 1 << 63;
const WAIT: u64 = 1 << 62;
const BOTH: u64 = RENEWAL | WAIT;
const WITH_SOURCE: u64 = 1 << 61;

impl From<RequestTag> for u64 {
    fn from(token: RequestTag) -> Self {
        let about = match token.about {
            About::Reconcile { hold } => Self::from(hold),
            About::Renewal { batch } => RENEWAL | Self::from(batch),
            About::Wait { batch } => WAIT | Self::from(batch),
            About::Nothing => BOTH,
        };
        if token.with_source { about | WITH_SOURCE } else { about }
    }
}

impl From<u64> for RequestTag {
    #[expect(clippy::cast_possible_truncation, reason = "takes apart what was put together above")]
    fn from(token: u64) -> Self {
        let number = token as u32;
        let about = match token & BOTH {
            RENEWAL => About::Renewal { batch: number },
            WAIT => About::Wait { batch: number },
            BOTH => About::Nothing,
            _ => About::Reconcile { hold: number },
        };
        Self { about, with_source: token & WITH_SOURCE != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_tag_round_trips() {
        for number in [0, 7, u32::MAX] {
            let all = [
                About::Reconcile { hold: number },
                About::Renewal { batch: number },
                About::Wait { batch: number },
                About::Nothing,
            ];
            for (about, with_source) in all.into_iter().flat_map(|about| [(about, false), (about, true)]) {
                let token = RequestTag::from(u64::from(RequestTag { about, with_source }));
                assert_eq!((token.about, token.with_source), (about, with_source));
            }
        }
    }
}
