//! Who may write an oplog: the rule that every store applies in one step with the write itself (F1 to F4).

use crate::ids::{ExecutorId, ShardEpoch};

/// Who writes: the epoch under which it owns the shard, and its own identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Writer {
    /// The fencing token.
    pub epoch: ShardEpoch,
    /// The executor life; an equal epoch from another life is refused.
    pub executor: ExecutorId,
}

impl Writer {
    /// F1: whether this writer may take the record over from `recorded`: it is absent, lower, or its own. An equal epoch of
    /// another life means that the manager's state was lost, and is refused.
    #[must_use]
    pub fn may_claim(self, recorded: Option<Self>) -> bool {
        recorded.is_none_or(|recorded| recorded == self || recorded.epoch < self.epoch)
    }

    /// F2, F3: whether this writer may append to, read or delete an oplog whose record is `recorded`.
    #[must_use]
    pub fn may_write(self, recorded: Option<Self>) -> bool {
        recorded == Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::Writer;
    use crate::ids::{ExecutorId, ShardEpoch};

    fn writer(epoch: u64, executor: u128) -> Writer {
        Writer { epoch: ShardEpoch::new(epoch).unwrap(), executor: ExecutorId::from_u128(executor) }
    }

    /// S6, F1, F3.
    #[test]
    fn a_record_is_claimed_by_a_higher_epoch_and_written_by_its_own_writer_alone() {
        let ours = writer(5, 1);
        for (recorded, claims, writes) in [
            (None, true, false),
            (Some(writer(4, 1)), true, false),
            (Some(writer(4, 2)), true, false),
            (Some(writer(5, 1)), true, true),
            (Some(writer(5, 2)), false, false),
            (Some(writer(6, 1)), false, false),
            (Some(writer(6, 2)), false, false),
        ] {
            assert_eq!((ours.may_claim(recorded), ours.may_write(recorded)), (claims, writes), "{recorded:?}");
        }
    }
}
