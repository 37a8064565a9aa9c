//! What is measured, in which unit, and what it must be.

use crate::{admission, etcd, failover, memory, oplogs, placement, processes, pushes, recovery, renewals, requests};
use futures::future::LocalBoxFuture;
use leasehold::cli::table;

/// Whatever keeps a figure from being measured ends the run.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The present state of a measurement, or why there is none.
pub type Result<T> = std::result::Result<T, Error>;

/// A subject and its baseline, as medians of their rounds.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// The subject.
    pub value: f64,
    /// What it is compared with.
    pub baseline: f64,
}

impl Measured {
    fn ratio(self) -> f64 {
        self.value / self.baseline
    }
}

/// What a figure must be.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// value / baseline.
    RatioAtLeast(f64),
    /// value / baseline.
    RatioAtMost(f64),
    /// The value, in its unit.
    AtMost(f64),
    /// Printed, to be looked at.
    None,
}

/// One line of the table in docs/benchmarks.md.
pub struct Figure {
    /// Its name on the command line.
    pub name: &'static str,
    /// Of value and baseline.
    pub unit: &'static str,
    /// What it must be.
    pub bound: Bound,
    /// Takes the measurement.
    pub measure: fn() -> LocalBoxFuture<'static, Result<Measured>>,
}

/// One figure; the last argument is an async function without arguments.
macro_rules! figure {
    ($name:literal, $unit:literal, $bound:expr, $measure:path) => {
        Figure { name: $name, unit: $unit, bound: $bound, measure: || Box::pin($measure()) }
    };
}

/// All, in the order in which they run.
pub const FIGURES: &[Figure] = &[
    figure!("renewal_vs_state_cas_sqlite", "renewals/s", Bound::RatioAtLeast(20.0), renewals::against_state_cas),
    figure!("renewal_vs_bare_tonic", "renewals/s", Bound::RatioAtLeast(0.6), renewals::against_bare_tonic),
    figure!("durable_writes_per_renewal", "writes/renewal", Bound::AtMost(0.0), renewals::durable_writes),
    figure!("plan_vs_counting", "us", Bound::RatioAtMost(5.0), placement::plan_against_counting),
    figure!("plan_excess_moves", "moves", Bound::AtMost(0.0), placement::excess_moves),
    figure!("admission_ns", "ns", Bound::AtMost(100.0), admission::alone),
    figure!("admission_two_threads", "ns", Bound::RatioAtMost(1.3), admission::on_two_threads),
    figure!("register_per_s", "registrations/s", Bound::RatioAtLeast(0.3), requests::registrations),
    figure!("routing_table_per_s", "tables/s", Bound::RatioAtLeast(0.6), requests::routing_tables),
    figure!("port_open_ms", "ms", Bound::AtMost(50.0), processes::port_open),
    figure!("fenced_append_sqlite", "appends/s", Bound::RatioAtLeast(0.95), oplogs::fenced),
    figure!("fenced_append_postgres", "appends/s", Bound::RatioAtLeast(0.95), oplogs::fenced_postgres),
    figure!("fenced_append_redis", "appends/s", Bound::RatioAtLeast(0.9), oplogs::fenced_redis),
    figure!("grouped_append_sqlite", "appends/s", Bound::RatioAtLeast(5.0), oplogs::grouped),
    figure!("grouped_append_vs_raw_sqlite", "appends/s", Bound::RatioAtLeast(0.8), oplogs::grouped_sqlite),
    figure!("grouped_append_postgres", "appends/s", Bound::RatioAtLeast(0.8), oplogs::grouped_postgres),
    figure!("grouped_append_redis", "appends/s", Bound::RatioAtLeast(0.8), oplogs::grouped_redis),
    figure!("recover_agents_per_s", "agents/s", Bound::RatioAtLeast(0.5), recovery::agents),
    figure!("replay_100k_ms", "ms", Bound::None, recovery::replay),
    figure!("manager_bytes_per_shard", "bytes", Bound::AtMost(64.0), memory::per_shard),
    figure!("manager_bytes_per_executor", "bytes", Bound::AtMost(2048.0), memory::per_executor),
    figure!("renewal_vs_state_cas_etcd", "renewals/s", Bound::RatioAtLeast(20.0), etcd::renewals_against_state_cas),
    figure!("etcd_revisions_per_10k_renewals", "revisions", Bound::AtMost(0.0), etcd::revisions),
    figure!("first_assignment_bytes", "bytes", Bound::RatioAtMost(1.5), etcd::assignment_bytes),
    figure!("first_assignment_time", "ms", Bound::RatioAtMost(2.0), etcd::assignment_time),
    figure!("failover_kill_s", "s", Bound::AtMost(failover::TTL_S + 0.5), failover::killed),
    figure!("failover_graceful_ms", "ms", Bound::AtMost(100.0), failover::stopped),
    figure!("push_p99_ms", "ms", Bound::AtMost(20.0), pushes::p99_beyond_bare),
    figure!("dev_rss_mib", "MiB", Bound::AtMost(150.0), processes::dev_resident),
];

/// A figure and what came out.
pub struct Outcome {
    /// Which.
    pub figure: &'static Figure,
    /// What.
    pub measured: Measured,
}

/// Six significant digits are more than a measurement has.
fn rounded(number: f64) -> serde_json::Value {
    let digits = format!("{number:.5e}").parse().unwrap_or(number);
    // Not a number (0 / 0) becomes null.
    serde_json::Number::from_f64(digits).map_or(serde_json::Value::Null, serde_json::Value::Number)
}

impl Outcome {
    /// `{"name","value","unit","baseline","ratio"}`.
    pub fn line(&self) -> serde_json::Value {
        let Measured { value, baseline } = self.measured;
        serde_json::json!({
            "name": self.figure.name,
            "value": rounded(value),
            "unit": self.figure.unit,
            "baseline": rounded(baseline),
            "ratio": rounded(self.measured.ratio()),
        })
    }
}

/// Whether `measured` is what it must be.
pub fn holds(bound: Bound, measured: Measured) -> bool {
    match bound {
        Bound::RatioAtLeast(least) => measured.ratio() >= least,
        Bound::RatioAtMost(most) => measured.ratio() <= most,
        Bound::AtMost(most) => measured.value <= most,
        Bound::None => true,
    }
}

/// For people.
pub fn summary(outcomes: &[Outcome]) -> String {
    let mut rows = table(&["figure", "value", "unit", "baseline", "ratio", "must be", ""]);
    for Outcome { figure, measured } in outcomes {
        let must = match figure.bound {
            Bound::RatioAtLeast(least) => format!("ratio >= {least}"),
            Bound::RatioAtMost(most) => format!("ratio <= {most}"),
            Bound::AtMost(most) => format!("value <= {most}"),
            Bound::None => "-".to_owned(),
        };
        rows.add_row([
            figure.name.to_owned(),
            format!("{:.2}", measured.value),
            figure.unit.to_owned(),
            format!("{:.2}", measured.baseline),
            format!("{:.3}", measured.ratio()),
            must,
            if holds(figure.bound, *measured) { "pass".to_owned() } else { "FAIL".to_owned() },
        ]);
    }
    rows.to_string()
}
