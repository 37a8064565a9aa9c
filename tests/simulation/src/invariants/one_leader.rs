//! One leader speaks: nothing leaves a manager after another one has taken over, and nobody speaks in another's name.

use super::{Invariant, View};
use crate::world::{Event, World};
use std::sync::Arc;
use std::time::Duration;

pub struct OneLeader {
    world: Arc<World>,
    leads: Option<String>,
}

impl OneLeader {
    pub fn new(world: Arc<World>) -> Self {
        Self { world, leads: None }
    }
}

impl Invariant for OneLeader {
    fn id(&self) -> &'static str {
        "one leader"
    }

    fn hear(&mut self, _: Duration, event: &Event, _: &View) -> Result<(), String> {
        match event {
            Event::TookOver { host } => self.leads = Some(host.clone()),
            Event::Told { host, to, set } => {
                if self.leads.as_ref() != Some(host) {
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
