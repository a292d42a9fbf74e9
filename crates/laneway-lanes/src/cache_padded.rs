//! Cache lines of one's own.

/// Something on cache lines of its own, so that two cores that write to two of them do not slow each
/// other. Two lines, because processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct CachePadded<T>(pub(super) T);
