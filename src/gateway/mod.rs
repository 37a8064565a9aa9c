//! The gateway (`shard-executor route`): a [`Router`] served over gRPC and HTTP/JSON. Stateless, any number of replicas.

mod http;
mod problem;
#[cfg(test)]
mod tests;
