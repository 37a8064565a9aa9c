//! Compiles the protos without a system protoc, and keeps their descriptors for reflection and for the snapshot test.

use std::path::Path;

const FILES: [&str; 4] = [
    "proto/leasehold/v1/common.proto",
    "proto/leasehold/v1/manager.proto",
    "proto/leasehold/v1/executor.proto",
    "proto/leasehold/v1/agent.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_source_info(true).include_imports(true).open_files(FILES)?;
    tonic_prost_build::configure().compile_fds(compiler.file_descriptor_set())?;
    // Comments become the generated types' docs; at run time they would only be carried along.
    compiler.include_source_info(false);
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("leasehold.v1.bin"), compiler.encode_file_descriptor_set())?;
    Ok(())
}
