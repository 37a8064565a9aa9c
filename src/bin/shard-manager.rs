//! shard-manager
fn main() {}
