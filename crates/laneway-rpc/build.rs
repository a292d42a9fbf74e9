//! Makes Rust of `proto/laneway.proto`, without the compiler of Protocol Buffers having to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/laneway.proto");
    let files = protox::compile(["laneway.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // Payloads are handed on without a copy.
        .bytes(".")
        // The same content is the same bytes.
        .btree_map(".")
        .compile_fds(files)?;
    Ok(())
}
