//! The invariants, checked from outside by code that shares nothing with what it checks.

use crate::world::{Node, SHARDS, World};
use leasehold_model::{ShardEpoch, ShardId};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[derive(Clone, Default)]
pub struct Checker {
    nodes: Rc<RefCell<Vec<Rc<Node>>>>,
    epochs: Rc<RefCell<Vec<ShardEpoch>>>,
    checks: Rc<RefCell<u64>>,
    lenient_until: Rc<RefCell<Option<Instant>>>,
}

impl Checker {
    pub fn add(&self, node: &Rc<Node>) {
        self.nodes.borrow_mut().push(Rc::clone(node));
    }

    /// Checks again and again. Ends by a panic only.
    pub async fn watch(self, world: Rc<World>) {
        loop {
            self.check(&world);
            sleep(world.terms.check_every).await;
        }
    }

    pub fn check(&self, world: &World) {
        *self.checks.borrow_mut() += 1;
        self.one_admits();
        self.epochs_rise(world);
    }

    pub fn checks(&self) -> u64 {
        *self.checks.borrow()
    }

    /// S1: no two executors would admit work for one shard, by their own clocks. Dead and superseded lives count too.
    fn one_admits(&self) {
        if self.lenient_until.borrow().is_some_and(|until| Instant::now() < until) {
            return;
        }
        for shard in (0..SHARDS).map(ShardId) {
            let nodes = self.nodes.borrow();
            let admitting: Vec<_> =
                nodes.iter().filter(|node| node.admits(shard)).map(|node| (&node.name, node.id())).collect();
            assert!(admitting.len() <= 1, "S1: shard {shard} is admitted by {admitting:?}");
        }
    }

    /// S3: epochs only rise.
    fn epochs_rise(&self, world: &World) {
        let Some(state) = world.store.peek() else { return };
        let now: Vec<_> = state.shards().map(|(_, row)| row.epoch).collect();
        let before = self.epochs.replace(now.clone());
        for (shard, (before, now)) in before.iter().zip(&now).enumerate() {
            assert!(before <= now, "S3: shard {shard} fell from epoch {before} to {now}");
        }
    }

    /// The store was wiped: its epochs may begin again, and for `span` two may admit what neither knows of the other (R40).
    pub fn forget_for(&self, span: Duration) {
        self.epochs.borrow_mut().clear();
        self.lenient_until.replace(Some(Instant::now() + span));
    }

    /// Shards that nobody admits.
    pub fn unserved(&self) -> Vec<ShardId> {
        let nodes = self.nodes.borrow();
        (0..SHARDS).map(ShardId).filter(|shard| !nodes.iter().any(|node| node.admits(*shard))).collect()
    }
}
