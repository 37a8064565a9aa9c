//! `shard-manager`: decides which executor owns which shard.

use leasehold::cli::{self, abort_on_panic, finish};
use leasehold::runtime;
use std::process::ExitCode;

fn main() -> ExitCode {
    abort_on_panic("shard-manager");
    match cli::parse::<cli::manager::Cli>() {
        Ok(command) => finish(runtime::block_on(cli::manager::run(command))),
        Err(code) => code,
    }
}
