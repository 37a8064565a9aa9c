//! S1: at no instant would two executors both admit work for one shard; and work begins only where it is admitted.

use super::{Invariant, View};
use crate::world::{Event, shards};
use std::time::Duration;

pub struct Admission;

impl Invariant for Admission {
    fn id(&self) -> &'static str {
        "S1"
    }

    fn hear(&mut self, _: Duration, event: &Event, _: &View) -> Result<(), String> {
        match event {
            Event::Decided { process, shard, admitted: false } => {
                Err(format!("process {process} began work for shard {shard}, which it does not admit"))
            }
            _ => Ok(()),
        }
    }

    fn look(&mut self, view: &View) -> Result<(), String> {
        if view.two_worlds {
            return Ok(());
        }
        for shard in shards() {
            let mut admitting = view.processes.iter().filter_map(|process| Some((process, process.admits(shard)?)));
            if let (Some((one, first)), Some((other, second))) = (admitting.next(), admitting.next()) {
                return Err(format!(
                    "shard {shard} is admitted by {} at epoch {} and by {} at epoch {}",
                    one.host, first.epoch, other.host, second.epoch
                ));
            }
        }
        Ok(())
    }
}
