//! Acknowledgements of a write by replicas or disks.

use wheellock_resp::{Command, Value};

/// The acknowledgements that a write needs before it counts as kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Acks {
    /// Acknowledgements of this number of replicas (`WAIT`).
    Replicas(u32),
    /// Fsyncs of the append-only file (`WAITAOF`, Redis 7.2): the server's own and those of `replicas` replicas.
    Disks {
        /// The number of replicas, not counting the server itself.
        replicas: u32,
    },
}

impl Acks {
    /// Returns the number of acknowledgements that are wanted.
    pub fn wanted(self) -> u32 {
        match self {
            Self::Replicas(replicas) => replicas,
            Self::Disks { replicas } => replicas.saturating_add(1),
        }
    }

    /// Returns the number of acknowledgements that the reply counts, or `None` if the command never sends such a
    /// reply.
    pub fn heard(self, reply: &Value) -> Option<u32> {
        let count = |value: &Value| value.as_i64().and_then(|count| u32::try_from(count).ok());
        match self {
            Self::Replicas(_) => count(reply),
            Self::Disks { replicas } => {
                let [own, theirs] = reply.as_array()? else { return None };
                // Additional replicas do not replace the server's own fsync, so both counts are capped.
                Some(count(own)?.min(1) + count(theirs)?.min(replicas))
            }
        }
    }

    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Replicas(_) => "WAIT",
            Self::Disks { .. } => "WAITAOF",
        }
    }

    /// Returns the command with a timeout of `millis` milliseconds. The server would take 0 as no timeout, so 0
    /// becomes 1.
    pub(crate) fn command(self, millis: u64) -> Command<'static> {
        let command = Command::new(self.verb());
        let command = match self {
            Self::Replicas(replicas) => command.arg(u64::from(replicas)),
            Self::Disks { replicas } => command.arg(1_u64).arg(u64::from(replicas)),
        };
        command.arg(millis.max(1))
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    #[test]
    fn replicas_do_not_replace_own_disk() {
        let disks = |own: i64, theirs: i64| Value::Array(vec![Value::Integer(own), Value::Integer(theirs)]);
        let acks = Acks::Disks { replicas: 1 };
        assert_eq!((acks.wanted(), acks.heard(&disks(1, 1))), (2, Some(2)));
        assert_eq!(acks.heard(&disks(0, 5)), Some(1));
        assert_eq!(acks.heard(&disks(1, 0)), Some(1));
        assert_eq!(acks.heard(&Value::Integer(3)), None);
        assert_eq!(Acks::Replicas(2).heard(&Value::Integer(3)), Some(3));
        assert_eq!(Acks::Replicas(2).heard(&disks(1, 1)), None);
        assert_eq!(Acks::Replicas(2).heard(&Value::Integer(-1)), None);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let encoded = |acks: Acks, millis| {
            let mut out = BytesMut::new();
            acks.command(millis).encode(&mut out);
            String::from_utf8(out.to_vec()).unwrap()
        };
        assert_eq!(encoded(Acks::Replicas(2), 0), "*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$1\r\n1\r\n");
        let disks = encoded(Acks::Disks { replicas: 0 }, 900);
        assert_eq!(disks, "*4\r\n$7\r\nWAITAOF\r\n$1\r\n1\r\n$1\r\n0\r\n$3\r\n900\r\n");
    }
}
