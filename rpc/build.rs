//! Compiles the protos without a system protoc.
fn main() {}
