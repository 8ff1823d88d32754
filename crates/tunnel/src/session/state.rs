//! State of a session: its streams, and the frames that wait to be sent. Pure; all under one lock.

use std::{
    collections::{HashMap, VecDeque},
    task::Waker,
};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio_util::sync::CancellationToken;

use crate::wire::{
    Frame, Goodbye, GoodbyeCode, INITIAL_WINDOW, MAX_DATA, MAX_STREAMS, Open, Reset, frame::Kind, printable,
};

use super::{
    OpenError, SessionEnd,
    window::{MAX_WINDOW, ReceiveWindow, WindowPool},
};

/// Most bytes of a stream that wait to be sent.
pub(super) const SEND_BUFFER: usize = 16 * 1024;
/// Most frames beside data that wait to be sent. A peer that makes more necessary does not read.
pub(super) const MAX_CONTROL: usize = 4 * MAX_STREAMS;
/// Most credit of a stream. Peers that grant more have a fault.
const MAX_CREDIT: u64 = 4 * MAX_WINDOW as u64;
/// Capacity that an empty buffer keeps, in bytes.
const KEPT_CAPACITY: usize = 4 * 1024;

/// Side of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRole {
    /// Opens streams.
    Server,
    /// Accepts streams.
    Agent,
}

/// One direction of bytes that wait, for the reader or for the pump.
#[derive(Default)]
pub(super) struct StreamState {
    pub(super) received: BytesMut,
    window: ReceiveWindow,
    pub(super) is_read_ended: bool,
    pub(super) unsent: BytesMut,
    credit: u64,
    pub(super) is_write_ended: bool,
    is_end_sent: bool,
    /// True while it is in the queue of streams with something to send.
    is_queued: bool,
    /// Reason of a reset by the peer.
    pub(super) failure: Option<String>,
    is_dropped: bool,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

impl StreamState {
    fn new() -> Self {
        Self { credit: INITIAL_WINDOW.into(), ..Self::default() }
    }

    fn has_something_to_send(&self) -> bool {
        let has_end = self.is_write_ended && !self.is_end_sent;
        self.failure.is_none() && if self.unsent.is_empty() { has_end } else { self.credit > 0 }
    }

    fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }
}

/// State of a session.
pub(super) struct SessionState {
    role: SessionRole,
    pub(super) epoch: u64,
    pub(super) streams: HashMap<u32, StreamState>,
    last_id: u32,
    control: VecDeque<Frame>,
    sending: VecDeque<u32>,
    pub(super) pump: Option<Waker>,
    pool: WindowPool,
    /// Bytes that may still arrive for streams that are gone.
    late: u64,
    pub(super) accepted: VecDeque<u32>,
    pub(super) acceptor: Option<Waker>,
    ping: Option<u64>,
    pong: Option<u64>,
    /// Number of servers that share the store, as last reported by the server.
    pub(super) servers: u32,
    /// Goodbye of the peer, after which no streams are opened.
    pub(super) leaving: Option<SessionEnd>,
    pub(super) end: Option<SessionEnd>,
    ended: CancellationToken,
}

impl SessionState {
    /// Creates the state of a session; `ended` is cancelled at its end.
    pub(super) fn new(role: SessionRole, epoch: u64, ended: CancellationToken) -> Self {
        Self {
            role,
            epoch,
            streams: HashMap::new(),
            last_id: 0,
            control: VecDeque::new(),
            sending: VecDeque::new(),
            pump: None,
            pool: WindowPool::default(),
            late: 0,
            accepted: VecDeque::new(),
            acceptor: None,
            ping: None,
            pong: None,
            servers: 1,
            leaving: None,
            end: None,
            ended,
        }
    }

    fn wake_pump(&mut self) {
        if let Some(pump) = self.pump.take() {
            pump.wake();
        }
    }

    /// Queues a frame that is not data.
    pub(super) fn control(&mut self, stream: u32, kind: Kind) {
        if self.control.len() >= MAX_CONTROL {
            return self.finish(SessionEnd::Violation("it does not read what is sent to it"));
        }
        self.control.push_back(Frame::of(self.epoch, stream, kind));
        self.wake_pump();
    }

    /// Ends the session. Frames beside data that are queued are still sent.
    pub(super) fn finish(&mut self, end: SessionEnd) {
        if self.end.is_some() {
            return;
        }
        let said = match &end {
            SessionEnd::Violation(what) => Some((GoodbyeCode::GoodbyeViolation, (*what).to_owned())),
            SessionEnd::Ended(code, reason) => Some((*code, reason.to_string())),
            SessionEnd::Closed | SessionEnd::Failed(_) | SessionEnd::Silent | SessionEnd::Left(..) => None,
        };
        if let Some((code, reason)) = said {
            let goodbye = Goodbye { code: code.into(), reason };
            self.control.push_back(Frame::of(self.epoch, 0, Kind::Goodbye(goodbye)));
        }
        self.end = Some(end);
        self.ended.cancel();
        self.sending.clear();
        self.streams.values_mut().for_each(StreamState::wake);
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.wake();
        }
        self.wake_pump();
    }

    /// Opens a stream and returns its id.
    pub(super) fn open(&mut self) -> Result<u32, OpenError> {
        if let Some(end) = self.end.as_ref().or(self.leaving.as_ref()) {
            return Err(OpenError::Ended(end.clone()));
        }
        if self.streams.len() >= MAX_STREAMS {
            return Err(OpenError::Full);
        }
        let Some(id) = self.last_id.checked_add(1) else {
            let out_of_ids = SessionEnd::Ended(GoodbyeCode::GoodbyeStopping, "the ids of streams are used up".into());
            self.finish(out_of_ids.clone());
            return Err(OpenError::Ended(out_of_ids));
        };
        self.last_id = id;
        self.streams.insert(id, StreamState::new());
        self.control(id, Kind::Open(Open {}));
        Ok(id)
    }

    /// Returns the next frame to send.
    pub(super) fn next_frame(&mut self) -> Option<Frame> {
        if self.end.is_none() {
            let beat = self.pong.take().map(Kind::Pong).or_else(|| self.ping.take().map(Kind::Ping));
            if let Some(beat) = beat {
                return Some(Frame::of(self.epoch, 0, beat));
            }
        }
        if let Some(frame) = self.control.pop_front() {
            return Some(frame);
        }
        while let Some(id) = self.sending.pop_front() {
            if let Some(kind) = self.next_of(id) {
                return Some(Frame::of(self.epoch, id, kind));
            }
        }
        None
    }

    /// Returns the next data of a stream, or its end. A stream with more goes behind the others.
    fn next_of(&mut self, id: u32) -> Option<Kind> {
        let stream = self.streams.get_mut(&id)?;
        stream.is_queued = false;
        if !stream.has_something_to_send() {
            return None;
        }
        if stream.unsent.is_empty() {
            stream.is_end_sent = true;
            if stream.is_dropped {
                self.remove_dropped(id);
            }
            return Some(Kind::End(crate::wire::End {}));
        }
        let credit = usize::try_from(stream.credit).unwrap_or(usize::MAX);
        let bytes = stream.unsent.len().min(MAX_DATA).min(credit);
        let data = Bytes::copy_from_slice(&stream.unsent[..bytes]);
        stream.unsent.advance(bytes);
        shrink(&mut stream.unsent);
        stream.credit -= bytes as u64;
        if let Some(writer) = stream.writer.take() {
            writer.wake();
        }
        self.queue(id);
        Some(Kind::Data(data))
    }

    /// Puts a stream into the queue of those with something to send.
    pub(super) fn queue(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !stream.is_queued && stream.has_something_to_send() {
            stream.is_queued = true;
            self.sending.push_back(id);
            self.wake_pump();
        }
    }

    /// Asks the peer for a sign of life.
    pub(super) fn ask(&mut self, number: u64) {
        self.ping = Some(number);
        self.wake_pump();
    }

    /// Takes up to `most` received bytes of a stream, and grants credit for them.
    pub(super) fn read(&mut self, id: u32, most: usize) -> Bytes {
        let Some(stream) = self.streams.get_mut(&id) else { return Bytes::new() };
        let bytes = stream.received.len().min(most);
        let taken = Bytes::copy_from_slice(&stream.received[..bytes]);
        stream.received.advance(bytes);
        shrink(&mut stream.received);
        let is_drained = stream.received.is_empty();
        let granted = stream.window.consume(u32::try_from(bytes).unwrap_or(u32::MAX), is_drained, &mut self.pool);
        let is_open = !stream.is_read_ended && stream.failure.is_none() && self.end.is_none();
        if let Some(credit) = granted.filter(|_| is_open) {
            self.control(id, Kind::Credit(credit));
        }
        taken
    }

    /// Handles a frame of the peer.
    ///
    /// # Errors
    /// The rule that the peer broke.
    pub(super) fn receive(&mut self, frame: Frame) -> Result<(), &'static str> {
        if frame.epoch != self.epoch {
            return Err("a frame of another session");
        }
        let id = frame.stream;
        match (frame.kind, id) {
            (Some(Kind::Ping(number)), 0) => {
                self.pong = Some(number);
                self.wake_pump();
            }
            (Some(Kind::Pong(_)), 0) => {}
            (Some(Kind::Servers(count)), 0) if self.role == SessionRole::Agent => self.servers = count,
            (Some(Kind::Goodbye(goodbye)), 0) => {
                let code = goodbye.code();
                self.leaving = Some(SessionEnd::Left(code, printable(&goodbye.reason).into()));
            }
            (Some(Kind::Open(_)), 1..) => self.receive_open(id)?,
            (Some(Kind::Data(data)), 1..) => self.receive_data(id, &data)?,
            (Some(Kind::Credit(bytes)), 1..) => self.receive_credit(id, bytes)?,
            (Some(Kind::End(_)), 1..) => {
                if let Some(stream) = self.known_stream(id)? {
                    if std::mem::replace(&mut stream.is_read_ended, true) {
                        return Err("a second end of a stream");
                    }
                    stream.wake();
                }
            }
            (Some(Kind::Reset(reset)), 1..) => {
                if let Some(stream) = self.known_stream(id)? {
                    stream.failure.get_or_insert_with(|| printable(&reset.reason));
                    stream.unsent = BytesMut::new();
                    stream.wake();
                    if stream.is_dropped {
                        self.remove(id);
                    }
                }
            }
            (Some(Kind::Hello(_) | Kind::Welcome(_)), _) => return Err("a second greeting"),
            (Some(_), _) => return Err("a frame that belongs to no stream, or to one"),
            (None, _) => return Err("a frame without content"),
        }
        Ok(())
    }

    /// Returns a stream; `None` if it has ended, which the peer may not know yet.
    fn known_stream(&mut self, id: u32) -> Result<Option<&mut StreamState>, &'static str> {
        if id > self.last_id {
            return Err("a frame of a stream that was not opened");
        }
        Ok(self.streams.get_mut(&id))
    }

    fn receive_open(&mut self, id: u32) -> Result<(), &'static str> {
        match self.role {
            SessionRole::Server => return Err("an agent opens no streams"),
            SessionRole::Agent if id <= self.last_id => return Err("the id of a stream is reused"),
            SessionRole::Agent => self.last_id = id,
        }
        if self.streams.len() >= MAX_STREAMS {
            return Err("too many streams");
        }
        self.streams.insert(id, StreamState::new());
        self.accepted.push_back(id);
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.wake();
        }
        Ok(())
    }

    fn receive_data(&mut self, id: u32, data: &[u8]) -> Result<(), &'static str> {
        if data.is_empty() || data.len() > MAX_DATA {
            return Err("data of a size that is not allowed");
        }
        let Some(stream) = self.known_stream(id)? else {
            // The peer sent it before it knew that the stream had ended.
            self.late = self.late.checked_sub(data.len() as u64).ok_or("data of a stream that is gone")?;
            return Ok(());
        };
        if stream.is_read_ended {
            return Err("data after the end of a stream");
        }
        if !stream.window.receive(data.len()) {
            return Err("more data than the credit of its stream");
        }
        append(&mut stream.received, data, stream.window.size());
        if let Some(reader) = stream.reader.take() {
            reader.wake();
        }
        Ok(())
    }

    fn receive_credit(&mut self, id: u32, bytes: u32) -> Result<(), &'static str> {
        if bytes == 0 {
            return Err("a grant of nothing");
        }
        let Some(stream) = self.known_stream(id)? else { return Ok(()) };
        stream.credit += u64::from(bytes);
        if stream.credit > MAX_CREDIT {
            return Err("more credit than a stream may have");
        }
        self.queue(id);
        Ok(())
    }

    /// Forgets a stream without users. What was written before its end is still sent.
    pub(super) fn drop_stream(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.is_dropped = true;
        stream.received = BytesMut::new();
        (stream.reader, stream.writer) = (None, None);
        if stream.failure.is_some() || self.end.is_some() || stream.is_end_sent {
            self.remove_dropped(id);
        } else if stream.is_write_ended {
            self.queue(id);
        } else {
            self.remove_dropped(id);
        }
    }

    /// Removes a stream, and tells the peer unless both directions have ended.
    fn remove_dropped(&mut self, id: u32) {
        let Some(stream) = self.streams.get(&id) else { return };
        let is_over = stream.failure.is_some() || (stream.is_read_ended && stream.is_write_ended);
        self.remove(id);
        if !is_over && self.end.is_none() {
            self.control(id, Kind::Reset(Reset { reason: String::new() }));
        }
    }

    fn remove(&mut self, id: u32) {
        if let Some(stream) = self.streams.remove(&id) {
            self.late += u64::from(stream.window.release(&mut self.pool));
        }
    }
}

/// Appends to a buffer that holds at most `limit` bytes. Its capacity grows by doubling, but not beyond the limit.
pub(super) fn append(buffer: &mut BytesMut, bytes: &[u8], limit: usize) {
    let needed = buffer.len() + bytes.len();
    if buffer.capacity() < needed {
        let mut larger = BytesMut::with_capacity(needed.max((2 * buffer.capacity()).min(limit)));
        larger.extend_from_slice(buffer);
        *buffer = larger;
    }
    buffer.extend_from_slice(bytes);
}

/// Returns the memory of a buffer that is empty.
fn shrink(buffer: &mut BytesMut) {
    if buffer.is_empty() && buffer.capacity() > KEPT_CAPACITY {
        *buffer = BytesMut::new();
    }
}
