//! Proxy that connects every request to one server of this machine, for programs that read files from the internet.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result, ensure};

/// Maximum size of a `CONNECT` with its headers.
const LONGEST: usize = 8192;

/// Connects all clients to the port `target` until the process ends. Returns the port of the proxy.
pub fn to(target: u16) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port for a proxy")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // The caller sees the outcome.
            thread::spawn(move || drop(lead(client, target)));
        }
    });
    Ok(port)
}

fn lead(mut client: TcpStream, target: u16) -> Result<()> {
    skip_head(&mut client)?;
    let mut server = TcpStream::connect(("127.0.0.1", target))?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        to.shutdown(Shutdown::Write)
    });
    io::copy(&mut server, &mut client)?;
    client.shutdown(Shutdown::Both).context("cannot end a connection")
}

/// Reads a `CONNECT` and nothing after it.
fn skip_head(client: &mut TcpStream) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
        ensure!(head.len() <= LONGEST, "more than {LONGEST} bytes");
    }
    Ok(())
}
