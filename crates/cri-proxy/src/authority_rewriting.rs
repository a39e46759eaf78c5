//! Rewrites the `:authority` header for clients that send the socket path in it, which HTTP/2 libraries reject.
//!
//! On a Unix socket, gRPC for C++, Python and Java sends the path as authority, and so does a kubelet before 1.26.
//! Container runtimes ignore the header, so clients expect this to work.
//!
//! - Only an invalid authority is changed, and the new value has the same length, because the header tables on both
//!   sides count the bytes (RFC 7541, 4.1).
//! - Bytes that cannot be parsed pass unchanged, so that the HTTP/2 library reports the error.
//! - At most one HEADERS frame is buffered.
//!
//! Source: RFC 9113, 4.1, 6.2, 8.3.1; RFC 7541, 5 and 6.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::http::uri::Authority;
use tokio::io::{AsyncRead, ReadBuf};

/// Length of the client connection preface.
const PREFACE: usize = 24;
/// Length of a frame header: length, type, flags, stream.
const HEAD: usize = 9;
/// Maximum size of a frame that a client may send, in bytes.
const FRAME_MAX: usize = 16 << 10;
/// Frame type that starts a request.
const HEADERS: u8 = 1;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;
/// Number of bytes read at once.
const READ_MAX: usize = 8 << 10;
/// Index of `:authority` in the static table, and the header name.
const INDEX: usize = 1;
const NAME: &[u8] = b":authority";

/// Client stream with rewritten authorities.
pub(crate) struct RewrittenAuthority<R> {
    inner: R,
    input: Box<[u8]>,
    rewriter: FrameRewriter,
    output: Vec<u8>,
    /// Number of `output` bytes that have been read.
    read: usize,
}

/// Frame parser, which buffers only what it may have to change.
struct FrameRewriter {
    held: Vec<u8>,
    expected: Expected,
}

/// Bytes that come next, and whether to buffer them.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// This many bytes pass unchanged.
    Passing(usize),
    /// This many bytes are buffered: a frame header, or a complete HEADERS frame.
    Whole(usize),
}

// === impl RewrittenAuthority ===

impl<R> RewrittenAuthority<R> {
    /// Wraps `inner`, which must be at the beginning of a connection.
    pub(crate) fn of(inner: R) -> RewrittenAuthority<R> {
        let rewriter = FrameRewriter { held: Vec::new(), expected: Expected::Passing(PREFACE) };
        RewrittenAuthority { inner, input: vec![0; READ_MAX].into(), rewriter, output: Vec::new(), read: 0 }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for RewrittenAuthority<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.read == this.output.len() {
            this.output.clear();
            this.read = 0;
            let mut input = ReadBuf::new(&mut this.input);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut input))?;
            if input.filled().is_empty() {
                // At the end of the stream, an incomplete frame passes unchanged.
                this.output.append(&mut this.rewriter.held);
                break;
            }
            this.rewriter.push(input.filled(), &mut this.output);
        }
        let rest = &this.output[this.read..];
        let part = &rest[..rest.len().min(buffer.remaining())];
        buffer.put_slice(part);
        this.read += part.len();
        Poll::Ready(Ok(()))
    }
}

// === impl FrameRewriter ===

impl FrameRewriter {
    fn push(&mut self, mut input: &[u8], output: &mut Vec<u8>) {
        while !input.is_empty() {
            match self.expected {
                Expected::Passing(length) => {
                    let (part, rest) = input.split_at(length.min(input.len()));
                    output.extend_from_slice(part);
                    input = rest;
                    self.expect(Expected::Passing(length - part.len()));
                }
                Expected::Whole(length) => {
                    let (part, rest) = input.split_at((length - self.held.len()).min(input.len()));
                    self.held.extend_from_slice(part);
                    input = rest;
                    if self.held.len() == length {
                        self.pass(output);
                    }
                }
            }
        }
    }

    fn expect(&mut self, expected: Expected) {
        self.expected = match expected {
            Expected::Passing(0) => Expected::Whole(HEAD),
            expected => expected,
        };
    }

    /// Passes the buffered bytes on, or goes on buffering until the frame is complete.
    fn pass(&mut self, output: &mut Vec<u8>) {
        let [high, middle, low, kind, ..] = self.held[..] else { return };
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let is_head = self.held.len() == HEAD;
        if is_head && kind == HEADERS && (1..=FRAME_MAX).contains(&length) {
            self.expected = Expected::Whole(HEAD + length);
            return;
        }
        match if is_head { None } else { rewritten(&self.held) } {
            Some(frame) => output.extend(frame),
            None => output.extend_from_slice(&self.held),
        }
        self.held.clear();
        self.expect(Expected::Passing(if is_head { length } else { 0 }));
    }
}

/// Returns the frame with a valid authority; `None` if nothing has to change or the frame cannot be parsed.
fn rewritten(frame: &[u8]) -> Option<Vec<u8>> {
    let (head, payload) = frame.split_at_checked(HEAD)?;
    let flags = head[4];
    let padding = if flags & PADDED == 0 { 0 } else { usize::from(*payload.first()?) };
    let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY == 0 { 0 } else { 5 };
    let end = payload.len().checked_sub(padding)?;
    let (place, value) = authority(payload.get(start..end)?)?;
    if value.is_empty() || Authority::try_from(value.as_slice()).is_ok() {
        return None;
    }
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let mut text = Vec::with_capacity(value.len() + 4);
    put_length(value.len(), &mut text);
    text.extend(value.iter().map(|byte| if is_plain(byte) { *byte } else { b'-' }));

    let length = payload.len() - place.len() + text.len();
    if length > FRAME_MAX {
        return None;
    }
    let [.., high, middle, low] = length.to_be_bytes();
    let mut frame = vec![high, middle, low];
    frame.extend_from_slice(&head[3..]);
    frame.extend_from_slice(&payload[..start + place.start]);
    frame.extend(text);
    frame.extend_from_slice(&payload[start + place.end..]);
    Some(frame)
}

/// Finds a literal authority in a header block, and returns the position and the value.
fn authority(block: &[u8]) -> Option<(Range<usize>, Vec<u8>)> {
    let mut at = 0;
    while let Some(first) = block.get(at) {
        match first {
            // An indexed header, or a new table size.
            0x80.. => drop(integer(block, &mut at, 7)?),
            0x20..0x40 => drop(integer(block, &mut at, 5)?),
            _ => {
                let is_named = match integer(block, &mut at, if *first & 0x40 == 0 { 4 } else { 6 })? {
                    0 => text(string(block, &mut at)?)? == NAME,
                    index => index == INDEX,
                };
                let start = at;
                let value = string(block, &mut at)?;
                if is_named {
                    return Some((start..at, text(value)?));
                }
            }
        }
    }
    None
}

/// Reads an integer with a prefix of `bits` bits.
fn integer(block: &[u8], at: &mut usize, bits: u32) -> Option<usize> {
    let mut next = || {
        let byte = usize::from(*block.get(*at)?);
        *at += 1;
        Some(byte)
    };
    let full = (1 << bits) - 1;
    let mut number = next()? & full;
    if number < full {
        return Some(number);
    }
    for shift in [0, 7, 14] {
        let byte = next()?;
        number += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    // The number exceeds any frame.
    None
}

/// Reads a string; returns whether it is Huffman coded, and the bytes.
fn string<'a>(block: &'a [u8], at: &mut usize) -> Option<(bool, &'a [u8])> {
    let is_coded = block.get(*at)? & 0x80 != 0;
    let length = integer(block, at, 7)?;
    let bytes = block.get(*at..*at + length)?;
    *at += length;
    Some((is_coded, bytes))
}

fn text((is_coded, bytes): (bool, &[u8])) -> Option<Vec<u8>> {
    if !is_coded {
        return Some(bytes.to_vec());
    }
    let mut text = Vec::new();
    httlib_huffman::decode(bytes, &mut text, httlib_huffman::DecoderSpeed::FourBits).ok()?;
    Some(text)
}

/// Writes the length for a string without Huffman coding.
fn put_length(length: usize, output: &mut Vec<u8>) {
    let Some(mut rest) = length.checked_sub(0x7f) else {
        output.push(length.to_le_bytes()[0]);
        return;
    };
    output.push(0x7f);
    while rest >= 0x80 {
        output.push(rest.to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    output.push(rest.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATH: &str = "/run/weft/cri.sock";
    const LEGAL: &str = "-run-weft-cri.sock";

    fn coded(text: &[u8]) -> Vec<u8> {
        let mut code = Vec::new();
        httlib_huffman::encode(text, &mut code).expect("a text");
        let mut written = Vec::new();
        put_length(code.len(), &mut written);
        written[0] |= 0x80;
        [written, code].concat()
    }

    fn plain(text: &[u8]) -> Vec<u8> {
        let mut written = Vec::new();
        put_length(text.len(), &mut written);
        [written, text.to_vec()].concat()
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [.., high, middle, low] = payload.len().to_be_bytes();
        [&[high, middle, low, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Returns the output for a connection preface followed by `frames`, when `step` bytes arrive at a time.
    fn passed(frames: &[u8], step: usize) -> Vec<u8> {
        let received = [&[b'P'; PREFACE], frames].concat();
        let mut rewriter = FrameRewriter { held: Vec::new(), expected: Expected::Passing(PREFACE) };
        let mut output = Vec::new();
        received.chunks(step).for_each(|part| rewriter.push(part, &mut output));
        output.append(&mut rewriter.held);
        output.split_off(PREFACE)
    }

    /// Returns the header block for a request: POST, http, a literal path, this authority, and one more header.
    fn block(authority: &[u8]) -> Vec<u8> {
        let path = [&[0x44], &plain(b"/runtime.v1.RuntimeService/Version")[..]].concat();
        let behind = [&[0x40], &plain(b"te")[..], &coded(b"trailers")].concat();
        [&[0x3f, 0xe1, 0x1f, 0x83, 0x86], &path[..], authority, &behind, &[0xc0]].concat()
    }

    #[test]
    fn authority_with_a_path_is_rewritten_to_the_same_length() {
        let wanted = |head: &[u8]| block(&[head, &plain(LEGAL.as_bytes())].concat());
        let by_name = |name: Vec<u8>| [vec![0x40], name].concat();
        let (data, ping) = (frame(0, 1, b"\0\0\0\0\0"), frame(6, 0, &[7; 8]));
        for head in [vec![0x41], vec![0x01], vec![0x11], by_name(plain(NAME)), by_name(coded(NAME))] {
            for value in [plain(PATH.as_bytes()), coded(PATH.as_bytes())] {
                let request = block(&[&head[..], &value].concat());
                let frames = |block: &[u8]| [&frame(HEADERS, 4, block), &data[..], &ping].concat();
                for step in [1, 7, 4096] {
                    assert_eq!(passed(&frames(&request), step), frames(&wanted(&head)));
                }
                let padded = |block: &[u8]| {
                    frame(HEADERS, 4 | PADDED | PRIORITY, &[&[3, 0, 0, 0, 0, 9], block, &[0; 3]].concat())
                };
                assert_eq!(passed(&padded(&request), 4096), padded(&wanted(&head)));
            }
        }
    }

    #[test]
    fn authority_with_a_long_path_keeps_its_length() {
        let path = format!("/{}", "a".repeat(299));
        let request = block(&[&[0x41], &coded(path.as_bytes())[..]].concat());
        let wanted = block(&[&[0x41], &plain(format!("-{}", &path[1..]).as_bytes())[..]].concat());
        assert_eq!(passed(&frame(HEADERS, 4, &request), 4096), frame(HEADERS, 4, &wanted));
    }

    #[test]
    fn authority_that_is_valid_or_missing_passes_unchanged() {
        for authority in ["localhost", "[::1]:80", "unix", ""] {
            let frame = frame(HEADERS, 4, &block(&[&[0x41], &coded(authority.as_bytes())[..]].concat()));
            assert_eq!(passed(&frame, 5), frame, "{authority}");
        }
        let other = frame(HEADERS, 4, &block(&[&[0x44], &plain(PATH.as_bytes())[..]].concat()));
        assert_eq!(passed(&other, 5), other);
        // A frame above the limit, or one that would exceed it after the change, is neither buffered nor changed.
        let long = frame(HEADERS, 4, &[&[0x41], &plain(&[b'/'; FRAME_MAX])[..]].concat());
        assert_eq!(passed(&long, 4096), long);
        let grows = frame(HEADERS, 4, &[&[0x41], &coded(&[b'/'; FRAME_MAX])[..]].concat());
        assert_eq!(passed(&grows, 4096), grows);
    }

    proptest! {
        #[test]
        fn authority_rewriting_accepts_any_bytes_at_any_pace(sent in prop::collection::vec(any::<u8>(), 0..300), step in 1usize..40) {
            prop_assert_eq!(passed(&sent, step), passed(&sent, 4096));
            let framed = frame(HEADERS, 4, &sent);
            prop_assert_eq!(passed(&framed, step).len() >= HEAD, true);
            prop_assert_eq!(passed(&framed, step), passed(&framed, 4096));
        }
    }
}
