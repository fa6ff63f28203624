//! Bounds on the decoder's memory, whatever a peer sends.

/// Bounds on the content of one frame. Every bound has a default and a hard ceiling; no bound can be disabled.
///
/// A frame that exceeds a bound is an [`ErrorKind::Limit`](crate::ErrorKind::Limit). The decoder reports it as soon as a header announces
/// too much. It does not allocate or wait because of a header alone.
///
/// ```
/// use wheellock_resp::{Decoder, Limits};
///
/// let decoder = Decoder::new(Limits { bulk: 1024 * 1024, ..Limits::default() });
/// assert_eq!(decoder.limits().depth, 32);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Maximum nesting of aggregates (arrays, sets, maps, pushes, attributes). Default 32, ceiling [`Limits::MAX_DEPTH`].
    pub depth: usize,
    /// Maximum bytes in one bulk string, bulk error or verbatim string. Default 16 MiB, ceiling [`Limits::MAX_BULK`].
    pub bulk: usize,
    /// Maximum values inside one frame at all levels together, attributes included. A map entry counts as two. Default 1 Mi, ceiling
    /// [`Limits::MAX_ELEMENTS`].
    pub elements: usize,
    /// Maximum bytes in one line: a simple string, simple error, double or big number. Default 64 KiB, ceiling [`Limits::MAX_LINE`].
    pub line: usize,
    /// Maximum bytes of payload inside one frame at all levels together, attributes included. Bulk strings, bulk errors, verbatim strings,
    /// simple strings, simple errors and big numbers count. A payload of up to [`Blob::INLINE`](crate::Blob::INLINE) bytes does not count:
    /// it is stored in its value, and [`elements`](Self::elements) bounds the values. Default 64 MiB, ceiling [`Limits::MAX_FRAME`]. A
    /// value below [`bulk`](Self::bulk) or [`line`](Self::line) is raised to them.
    pub frame: usize,
}

impl Limits {
    /// Ceiling of [`Limits::depth`]. Decoding does not recurse. Dropping, cloning, comparing, printing and encoding a
    /// [`Value`](crate::Value) recurse once per level. Even without optimisation, a stack of 64 KiB suffices to decode and drop 128 levels,
    /// and 256 KiB suffice for all other operations. At the default of 32 levels, 64 KiB suffice for everything.
    pub const MAX_DEPTH: usize = 128;
    /// Ceiling of [`Limits::bulk`]: 512 MiB, a server's default `proto-max-bulk-len`.
    pub const MAX_BULK: usize = 512 * 1024 * 1024;
    /// Ceiling of [`Limits::elements`]: 64 Mi values, which are 2 GiB of [`Value`](crate::Value)s.
    pub const MAX_ELEMENTS: usize = 64 * 1024 * 1024;
    /// Ceiling of [`Limits::line`]: 16 MiB.
    pub const MAX_LINE: usize = 16 * 1024 * 1024;
    /// Ceiling of [`Limits::frame`]: 1 GiB.
    pub const MAX_FRAME: usize = 1024 * 1024 * 1024;

    /// Returns these limits with every bound lowered to its ceiling. [`frame`](Self::frame) is raised to the size of the largest single
    /// payload.
    #[must_use]
    pub fn clamped(self) -> Self {
        let (bulk, line) = (self.bulk.min(Self::MAX_BULK), self.line.min(Self::MAX_LINE));
        Self {
            depth: self.depth.min(Self::MAX_DEPTH),
            bulk,
            elements: self.elements.min(Self::MAX_ELEMENTS),
            line,
            frame: self.frame.min(Self::MAX_FRAME).max(bulk).max(line),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            depth: 32,
            bulk: 16 * 1024 * 1024,
            elements: 1024 * 1024,
            line: 64 * 1024,
            frame: 64 * 1024 * 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bound_can_be_switched_off() {
        let all = usize::MAX;
        let limits = Limits { depth: all, bulk: all, elements: all, line: all, frame: all }.clamped();
        assert_eq!(limits.depth, Limits::MAX_DEPTH);
        assert_eq!(limits.bulk, Limits::MAX_BULK);
        assert_eq!(limits.elements, Limits::MAX_ELEMENTS);
        assert_eq!(limits.line, Limits::MAX_LINE);
        assert_eq!(limits.frame, Limits::MAX_FRAME);
        assert_eq!(Limits::default().clamped(), Limits::default());
    }

    #[test]
    fn frame_limit_covers_largest_payload() {
        let default = Limits::default();
        assert_eq!(Limits { frame: 0, ..default }.clamped().frame, default.bulk);
        assert_eq!(Limits { frame: 0, bulk: 0, ..default }.clamped().frame, default.line);
        assert_eq!(Limits { bulk: usize::MAX, ..default }.clamped().frame, Limits::MAX_BULK);
    }
}
