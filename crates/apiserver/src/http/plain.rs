//! Refusal of plain HTTP on the TLS port, in the bytes of Go's server.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Prefixes by which Go's server recognizes a request.
const REQUESTS: [&[u8; 5]; 5] = [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"];
const ANSWER: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
/// Limits of bytes and time for reading the rest of the request after the response.
const REST: (u64, Duration) = (64 << 10, Duration::from_secs(1));

/// Peeks at the first bytes and returns true if they begin such a request.
pub(super) async fn is_spoken(socket: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    let seen = socket.peek(&mut first).await?;
    Ok(seen == 1 && REQUESTS.iter().any(|request| request[0] == first[0]))
}

/// Sends the response to a request; text that only resembles one gets none.
pub(super) async fn refuse(mut socket: TcpStream) -> io::Result<()> {
    let mut begun = [0; 5];
    socket.read_exact(&mut begun).await?;
    if !REQUESTS.contains(&&begun) {
        return Ok(());
    }
    socket.write_all(ANSWER).await?;
    socket.shutdown().await?;
    // Unread data would reset the connection before the client reads the response. A client that sends more has it
    // already.
    let _ = tokio::time::timeout(REST.1, tokio::io::copy(&mut socket.take(REST.0), &mut tokio::io::sink())).await;
    Ok(())
}
