//! Generates the messages of the tunnel from `proto/tunnel.proto`, without protoc.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new("../../proto");
    let file = folder.join("tunnel.proto");
    println!("cargo:rerun-if-changed={}", file.display());
    let files = protox::compile([&file], [folder])?;
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}
