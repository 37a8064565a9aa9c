//! Registering: who may come in, and what becomes of a predecessor of the same name (R34, R35).

use super::{Effect, Leader, Purpose, RequestId};
use crate::command::Command;
use crate::ids::{ExecutorId, LeaseKeyHash};
use crate::message::Registration;
use crate::refusal::{Mismatch, Refusal};
use crate::routing::HASH_SCHEME;
use crate::state::Executor;

/// A registration that waits for a probe.
#[derive(Debug, Clone, Hash)]
pub(super) struct Knocking {
    id: ExecutorId,
    row: Executor,
    predecessor: ExecutorId,
}

impl Leader {
    /// Two clusters or two builds must never mix.
    pub(super) fn screen(&self, registration: &Registration) -> Result<(), Refusal> {
        let differs = |what, expected: String, actual: String| Err(Refusal::Mismatch { what, expected, actual });
        let (cluster, count) = (&self.state.cluster, self.state.shard_count);
        if registration.cluster != *cluster {
            return differs(Mismatch::Cluster, cluster.to_string(), registration.cluster.to_string());
        }
        if registration.hash_scheme != HASH_SCHEME {
            return differs(Mismatch::HashScheme, HASH_SCHEME.to_owned(), registration.hash_scheme.clone());
        }
        match registration.shard_count {
            Some(other) if other != count => differs(Mismatch::ShardCount, count.to_string(), other.to_string()),
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn introduce(
        &self,
        from: Registration,
        key_hash: LeaseKeyHash,
        registered_at_ms: i64,
    ) -> (ExecutorId, Executor) {
        let row = Executor {
            name: from.name,
            address: from.address,
            zone: from.zone,
            weight: from.weight,
            lease_length: self.settings.lease,
            key_hash,
            draining: false,
            superseded: false,
            registered_at_ms,
        };
        (from.executor, row)
    }

    /// R34, R35: a life that was here before and left stays gone; a predecessor at the same address is asked for first.
    pub(super) fn on_register(&mut self, request: RequestId, id: ExecutorId, row: Executor, out: &mut Vec<Effect>) {
        if self.state.executor(id).is_some() {
            // Nothing is written, so a late copy cannot bring back a life whose removal is being written.
            return match self.authenticated(id, row.key_hash) {
                Ok(_) => self.await_confirmation(request, id, out),
                Err(refusal) => Self::refuse(request, refusal, out),
            };
        }
        match self.state.named(&row.name) {
            Some((predecessor, earlier)) if earlier.address == row.address => {
                out.push(Effect::Probe { request, address: row.address.clone() });
                self.knocking.insert(request, Knocking { id, row, predecessor });
            }
            Some(_) | None => self.admit(request, (id, row), None, out),
        }
    }

    /// R35: only an answer by the new process itself proves that its predecessor is gone: a port is bound once.
    pub(super) fn on_probed(&mut self, request: RequestId, answered_by: Option<ExecutorId>, out: &mut Vec<Effect>) {
        let Some(Knocking { id, row, predecessor }) = self.knocking.remove(&request) else { return };
        let replaces = (answered_by == Some(id)).then_some(predecessor);
        self.admit(request, (id, row), replaces, out);
    }

    fn admit(
        &mut self,
        request: RequestId,
        (id, executor): (ExecutorId, Executor),
        replaces: Option<ExecutorId>,
        out: &mut Vec<Effect>,
    ) {
        if self.departed.contains(id) {
            return Self::refuse(request, Refusal::UnknownExecutor, out);
        }
        self.commit(Purpose::Register(request, id), vec![Command::Register { id, executor, replaces }], out);
    }
}
