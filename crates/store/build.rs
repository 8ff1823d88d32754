//! Generates the messages of etcd from `proto/etcd.proto` without protoc, and compiles the replacement of sled's sync
//! call.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new("../../proto");
    let file = folder.join("etcd.proto");
    println!("cargo:rerun-if-changed={}", file.display());
    let files = protox::compile([&file], [folder])?;
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    if std::env::var("CARGO_CFG_TARGET_OS")? == "linux" {
        let source = "src/engine/sled/sync.c";
        println!("cargo:rerun-if-changed={source}");
        // Whole, since nothing in this crate asks for it.
        cc::Build::new()
            .file(source)
            .warnings_into_errors(true)
            .link_lib_modifier("+whole-archive")
            .compile("sledsync");
    }
    Ok(())
}
