//! The command line of `shard-executor`.
