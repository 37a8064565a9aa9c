//! `shard-executor`: holds shards by lease, runs the agents on them, routes calls to whoever does.

use leasehold::cli::{self, abort_on_panic, finish};
use leasehold::runtime;
use std::process::ExitCode;

fn main() -> ExitCode {
    abort_on_panic("shard-executor");
    match cli::parse::<cli::executor::Cli>() {
        Ok(command) => finish(runtime::block_on(cli::executor::run(command))),
        Err(code) => code,
    }
}
