//! Who speaks plain HTTP where TLS is spoken is told so, in the bytes of Go's server.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The beginnings by which Go's server knows a request.
const REQUESTS: [&[u8; 5]; 5] = [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"];
const ANSWER: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
/// Bytes of the request, and time, that are waited for behind the answer.
const REST: (u64, Duration) = (64 << 10, Duration::from_secs(1));

/// Whether a connection begins with the first byte of such a request. Takes nothing from it.
pub(super) async fn is_spoken(socket: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    let seen = socket.peek(&mut first).await?;
    Ok(seen == 1 && REQUESTS.iter().any(|request| request[0] == first[0]))
}

/// Answers what is a request, and nothing to what only begins like one.
pub(super) async fn refuse(mut socket: TcpStream) -> io::Result<()> {
    let mut begun = [0; 5];
    socket.read_exact(&mut begun).await?;
    if !REQUESTS.contains(&&begun) {
        return Ok(());
    }
    socket.write_all(ANSWER).await?;
    socket.shutdown().await?;
    // What was left unread would end the connection before the answer is read. Whoever sends more has the answer already.
    let _ = tokio::time::timeout(REST.1, tokio::io::copy(&mut socket.take(REST.0), &mut tokio::io::sink())).await;
    Ok(())
}
