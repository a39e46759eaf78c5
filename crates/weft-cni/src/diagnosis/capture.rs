//! `weft-cni sandbox capture`: writes the frames on a sandbox interface to stdout, in the format pcap.
//!
//! - The request is the first line on stdin. The capture ends when stdin is closed, and at the requested
//!   limits.
//! - Frames are filtered here and not in the kernel: a filter is at most three comparisons.
//!
//! Source: draft-ietf-opsawg-pcap (pcap file format, version 2.4).

use std::io::{BufWriter, Read, Stdout, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cni::Error;
use linux::capture::CaptureSocket;
use plugin_support::failure::OrRefused;
use plugin_support::log;
use rpc::diagnosis::CaptureRequest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::meta_plugin::namespace;

/// Maximum length for the request, in bytes.
const LINE_MAX: usize = 16 << 10;
/// Most bytes that a frame can have: the kernel joins packets up to this size.
const FRAME_MAX: usize = 65_550;
/// Number of frames between two looks for the end of stdin.
const LOOK: u64 = 256;
/// pcap magic number for times in microseconds, and the format version.
const MAGIC: u32 = 0xa1b2_c3d4;
const VERSION: (u16, u16) = (2, 4);
/// Link type `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;
/// Header length for a file and for a frame, in bytes.
const FILE_HEADER: u64 = 24;
const FRAME_HEADER: u64 = 16;

/// Captures until stdin is closed or a limit is reached, and logs how much was captured.
pub fn run() -> Result<ExitCode, Error> {
    let request = read_request()?;
    let CaptureRequest { sandbox, interface, .. } = &request;
    let gone =
        || Error::new(cni::code::UNKNOWN_CONTAINER, format!("the namespace {} is gone", sandbox.netns));
    let netns = namespace::open(sandbox)?.ok_or_else(gone)?;
    let mut net = netns.rtnl().or_refused()?;
    let link = net.link(interface).or_refused()?;
    if !link.ethernet && !link.loopback {
        return Err(Error::config(format!("interface {interface}: only Ethernet frames can be captured")));
    }
    let socket = netns.run(|| CaptureSocket::open(interface)).or_refused()?.or_refused()?;
    let file = BufWriter::new(std::io::stdout());
    let mut capture = Capture { request, file, packets: 0, bytes: 0 };
    capture.header().map_err(failed)?;
    let outcome = capture.follow(&socket);
    capture.file.flush().map_err(failed)?;
    outcome?;
    log!("captured {} packets, {} bytes", capture.packets, capture.bytes);
    Ok(ExitCode::SUCCESS)
}

fn failed(cause: std::io::Error) -> Error {
    Error::io("write captured frames", cause)
}

/// Reads the first line from stdin, and nothing beyond it.
fn read_request() -> Result<CaptureRequest, Error> {
    let mut line = Vec::new();
    for byte in std::io::stdin().lock().bytes() {
        match byte.map_err(|cause| Error::io("read stdin", cause))? {
            b'\n' => break,
            byte if line.len() < LINE_MAX => line.push(byte),
            _ => return Err(Error::config(format!("stdin: longer than {LINE_MAX} bytes"))),
        }
    }
    serde_json::from_slice(&line).map_err(|cause| Error::config(format!("stdin: {cause}")))
}

/// Capture that is being written.
struct Capture {
    request: CaptureRequest,
    file: BufWriter<Stdout>,
    packets: u64,
    bytes: u64,
}

impl Capture {
    fn header(&mut self) -> std::io::Result<()> {
        let mut header = MAGIC.to_ne_bytes().to_vec();
        header.extend(VERSION.0.to_ne_bytes());
        header.extend(VERSION.1.to_ne_bytes());
        for field in [0, 0, self.request.snap_length, ETHERNET] {
            header.extend(field.to_ne_bytes());
        }
        self.bytes = FILE_HEADER;
        self.file.write_all(&header)?;
        // A reader of a pipe sees the format at once.
        self.file.flush()
    }

    fn follow(&mut self, socket: &CaptureSocket) -> Result<(), Error> {
        let end = Instant::now() + Duration::from_secs(self.request.seconds);
        let mut received: u64 = 0;
        let mut buffer = vec![0; (self.request.snap_length as usize).clamp(1, FRAME_MAX)];
        while self.packets < self.request.count && Instant::now() < end {
            received += 1;
            let Some(frame) = socket.receive(&mut buffer).or_refused()? else {
                self.file.flush().map_err(failed)?;
                if !wait(socket, end)? {
                    return Ok(());
                }
                continue;
            };
            // Under load a frame is always there.
            if received.is_multiple_of(LOOK) && !wait(socket, Instant::now())? {
                return Ok(());
            }
            let bytes = buffer.get(..frame.length).unwrap_or_default();
            if !self.request.filter.matches(bytes) {
                continue;
            }
            if self.bytes + FRAME_HEADER + bytes.len() as u64 > self.request.bytes {
                return Ok(());
            }
            self.frame(bytes, frame.whole).map_err(failed)?;
        }
        Ok(())
    }

    fn frame(&mut self, bytes: &[u8], whole: usize) -> std::io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut header = Vec::with_capacity(16);
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        // The format has 32 bits for the seconds.
        for field in [now.as_secs() as u32, now.subsec_micros(), number(bytes.len()), number(whole)] {
            header.extend(field.to_ne_bytes());
        }
        self.file.write_all(&header)?;
        self.file.write_all(bytes)?;
        self.packets += 1;
        self.bytes += FRAME_HEADER + bytes.len() as u64;
        Ok(())
    }
}

/// Waits for a frame until `end`; false if stdin was closed.
fn wait(socket: &CaptureSocket, end: Instant) -> Result<bool, Error> {
    let left = end.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).map_err(|_| Error::internal("invalid timeout"))?;
    let stdin = std::io::stdin();
    let mut waiting = [
        PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN),
    ];
    match poll(&mut waiting, Some(&timeout)) {
        // Nothing follows the request, so any event of stdin is its end.
        Ok(_) => Ok(waiting[1].revents().is_empty()),
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(Error::io("wait for frames", errno)),
    }
}
