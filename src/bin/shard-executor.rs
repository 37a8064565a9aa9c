//! shard-executor
fn main() {}
