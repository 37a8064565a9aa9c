//! The trace: every line that the product logs, under the simulation's time and the host that logs it.

use crate::clock;
use crate::world::{World, lock};
use std::cell::RefCell;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    /// The host that runs now.
    static HOST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Where the simulator says which host runs.
const SIMULATOR: &str = "turmoil";

/// Collects the trace. Clones are one trace.
#[derive(Clone)]
pub struct Trace {
    lines: Arc<Mutex<Vec<String>>>,
    node: Arc<Mutex<String>>,
    spans: Arc<AtomicU64>,
    world: Arc<World>,
}

impl Trace {
    /// An empty trace; what it shows is counted as reached in `world`.
    pub fn new(world: Arc<World>) -> Self {
        Self { lines: Arc::default(), node: Arc::default(), spans: Arc::new(AtomicU64::new(1)), world }
    }

    /// The lines so far.
    pub fn lines(&self) -> Vec<String> {
        lock(&self.lines).clone()
    }

    /// Adds a line of the simulation's own.
    pub fn say(&self, text: &str) {
        self.add(&Level::INFO, "-", text);
    }

    fn add(&self, level: &Level, host: &str, text: &str) {
        let at = clock::now();
        let line = format!("{:>4}.{:06} {host:<7} {level:<5} {text}", at.as_secs(), at.subsec_micros());
        lock(&self.lines).push(line);
    }
}

/// An event's fields.
#[derive(Default)]
struct Fields {
    message: String,
    others: String,
    /// What tells kinds of one message apart.
    kind: Option<String>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => {
                if matches!(name, "cause" | "why") && value.len() < 20 {
                    self.kind = Some(value.to_owned());
                }
                // Writing to a string never fails.
                let _ = write!(self.others, " {name}={value}");
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }
}

/// The node that a span of the simulator names.
#[derive(Default)]
struct Node(String);

impl Visit for Node {
    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "name" {
            value.clone_into(&mut self.0);
        }
    }
}

impl Subscriber for Trace {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let ours = ["leasehold", "simulate"].iter().any(|ours| metadata.target().starts_with(ours));
        let ours = ours && *metadata.level() <= Level::DEBUG;
        ours || (metadata.is_span() && metadata.name() == "node" && metadata.target().starts_with(SIMULATOR))
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut node = Node::default();
        attributes.record(&mut node);
        *lock(&self.node) = node.0;
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let headline = fields.message.split([';', ':', '(']).next().unwrap_or_default().trim();
        self.world.reach(match &fields.kind {
            Some(kind) => format!("log: {headline} [{kind}]"),
            None => format!("log: {headline}"),
        });
        HOST.with_borrow(|host| {
            self.add(event.metadata().level(), host, &format!("{}{}", fields.message, fields.others));
        });
    }

    /// The simulator makes a span and enters it at once; nobody else's are enabled.
    fn enter(&self, _: &Id) {
        HOST.set(lock(&self.node).clone());
    }

    fn exit(&self, _: &Id) {
        HOST.take();
    }
}
