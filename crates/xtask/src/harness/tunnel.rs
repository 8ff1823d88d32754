//! A proxy that leads whatever is asked of it to one server of this machine, for programs that read files from the internet.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result, ensure};

/// No `CONNECT` with its headers is longer.
const LONGEST: usize = 8192;

/// Leads every connection to the port `target`, for the rest of the process. Returns the port of the proxy.
pub(crate) fn to(target: u16) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port for a proxy")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // Whoever asked sees what became of it.
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

/// Reads a `CONNECT` and nothing behind it.
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
