//! Generates the messages of etcd from `proto/etcd.proto`, without protoc.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new("../../proto");
    let file = folder.join("etcd.proto");
    println!("cargo:rerun-if-changed={}", file.display());
    let files = protox::compile([&file], [folder])?;
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}
