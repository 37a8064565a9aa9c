//! One leader speaks: nothing leaves a manager after another one has taken over, and nobody speaks in another's name. Only who
//! was deposed by force may go on until it hears of it: what it writes is refused, and it grants nothing that it cannot confirm.

use super::{Invariant, View};
use crate::world::{ELECTION_TTL, Event, World};
use std::sync::Arc;
use std::time::Duration;

pub struct OneLeader {
    world: Arc<World>,
    leads: Option<String>,
    /// When somebody was deposed.
    deposed: Option<Duration>,
}

impl OneLeader {
    pub fn new(world: Arc<World>) -> Self {
        Self { world, leads: None, deposed: None }
    }
}

impl Invariant for OneLeader {
    fn id(&self) -> &'static str {
        "one leader"
    }

    fn hear(&mut self, at: Duration, event: &Event, _: &View) -> Result<(), String> {
        match event {
            Event::TookOver { host } => self.leads = Some(host.clone()),
            Event::Deposed => self.deposed = Some(at),
            Event::Told { host, to, set } => {
                let excused = self.deposed.is_some_and(|deposed| at < deposed + ELECTION_TTL);
                if self.leads.as_ref() != Some(host) && !excused {
                    return Err(format!("{host} tells {to} something; {:?} leads", self.leads));
                }
                if !self.world.speaks(set.manager, host) {
                    return Err(format!("{host} speaks as {}, which is another", set.manager));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
