//! Clients that name the socket's path as `:authority`, which HTTP/2's libraries refuse: it is respelled before one sees it.
//!
//! gRPC's libraries in C++, Python and Java do so on a unix socket, and kubelets before 1.26. A runtime does not look at it.
//!
//! Rules:
//! - only what cannot be an authority is changed, into as many bytes: the table of headers that both sides keep is counted in
//!   them (RFC 7541, 4.1);
//! - what is not understood passes as it is: who reads it next says what is wrong with it;
//! - no more than one frame of headers is held.
//!
//! Source: RFC 9113, 4.1, 6.2, 8.3.1; RFC 7541, 5 and 6.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::http::uri::Authority;
use tokio::io::{AsyncRead, ReadBuf};

/// What a client says first.
const PREFACE: usize = 24;
/// The head of a frame: length, kind, flags, stream.
const HEAD: usize = 9;
/// The largest frame that we let a client send.
const FRAME_MAX: usize = 16 << 10;
/// The kind of frame that begins a request.
const HEADERS: u8 = 1;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;
/// What is read at a time.
const READ_MAX: usize = 8 << 10;
/// `:authority` in the table that everybody knows, and by its name.
const INDEX: usize = 1;
const NAME: &[u8] = b":authority";

/// What a client says, respelled.
pub(crate) struct RewrittenAuthority<R> {
    inner: R,
    input: Box<[u8]>,
    speller: Speller,
    output: Vec<u8>,
    /// So much of `output` has been read.
    read: usize,
}

/// Where in the stream of frames we are.
struct Speller {
    held: Vec<u8>,
    expected: Expected,
}

/// So many bytes…
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// … that pass as they are.
    Passing(usize),
    /// … that are gathered: a head, or a head and the headers behind it.
    Whole(usize),
}

// === impl RewrittenAuthority ===

impl<R> RewrittenAuthority<R> {
    /// What is read from `inner`, from the beginning of a connection.
    pub(crate) fn of(inner: R) -> RewrittenAuthority<R> {
        let speller = Speller { held: Vec::new(), expected: Expected::Passing(PREFACE) };
        RewrittenAuthority { inner, input: vec![0; READ_MAX].into(), speller, output: Vec::new(), read: 0 }
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
                // A frame that was cut off is somebody else's to judge; nothing, if there is none.
                this.output.append(&mut this.speller.held);
                break;
            }
            this.speller.push(input.filled(), &mut this.output);
        }
        let rest = &this.output[this.read..];
        let part = &rest[..rest.len().min(buffer.remaining())];
        buffer.put_slice(part);
        this.read += part.len();
        Poll::Ready(Ok(()))
    }
}

// === impl Speller ===

impl Speller {
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

    /// Passes what was gathered, or goes on gathering.
    fn pass(&mut self, output: &mut Vec<u8>) {
        let [high, middle, low, kind, ..] = self.held[..] else { return };
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let is_head = self.held.len() == HEAD;
        if is_head && kind == HEADERS && (1..=FRAME_MAX).contains(&length) {
            self.expected = Expected::Whole(HEAD + length);
            return;
        }
        match if is_head { None } else { respelled(&self.held) } {
            Some(frame) => output.extend(frame),
            None => output.extend_from_slice(&self.held),
        }
        self.held.clear();
        self.expect(Expected::Passing(if is_head { length } else { 0 }));
    }
}

/// The frame with an authority that can be one; nothing, if it has one already, or none, or is none of ours to judge.
fn respelled(frame: &[u8]) -> Option<Vec<u8>> {
    let (head, payload) = frame.split_at_checked(HEAD)?;
    let flags = head[4];
    let padding = if flags & PADDED == 0 { 0 } else { usize::from(*payload.first()?) };
    let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY == 0 { 0 } else { 5 };
    let end = payload.len().checked_sub(padding)?;
    let (place, said) = authority(payload.get(start..end)?)?;
    if said.is_empty() || Authority::try_from(said.as_slice()).is_ok() {
        return None;
    }
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let mut text = Vec::with_capacity(said.len() + 4);
    put_length(said.len(), &mut text);
    text.extend(said.iter().map(|byte| if is_plain(byte) { *byte } else { b'-' }));

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

/// Where in a block of headers the authority is written out, and what it says; nothing, if it is not.
fn authority(block: &[u8]) -> Option<(Range<usize>, Vec<u8>)> {
    let mut at = 0;
    while let Some(first) = block.get(at) {
        match first {
            // Both are in a table, or a table's size.
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

/// A number whose first byte has so many bits for it.
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
    // Longer than any frame.
    None
}

/// A text as it is written: whether by Huffman's code, and its bytes.
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

/// The length of a text that is written as it is.
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

    /// What comes out of a connection's beginning with `frames` behind it, by so many bytes at a time.
    fn passed(frames: &[u8], step: usize) -> Vec<u8> {
        let said = [&[b'P'; PREFACE], frames].concat();
        let mut speller = Speller { held: Vec::new(), expected: Expected::Passing(PREFACE) };
        let mut output = Vec::new();
        said.chunks(step).for_each(|part| speller.push(part, &mut output));
        output.append(&mut speller.held);
        output.split_off(PREFACE)
    }

    /// A request's block: POST, http, a path in no table, the authority as it is given, a header behind it.
    fn block(authority: &[u8]) -> Vec<u8> {
        let path = [&[0x44], &plain(b"/runtime.v1.RuntimeService/Version")[..]].concat();
        let behind = [&[0x40], &plain(b"te")[..], &coded(b"trailers")].concat();
        [&[0x3f, 0xe1, 0x1f, 0x83, 0x86], &path[..], authority, &behind, &[0xc0]].concat()
    }

    #[test]
    fn a_path_as_authority_becomes_one_of_the_same_length_however_it_is_written() {
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
    fn a_long_path_keeps_its_length() {
        let path = format!("/{}", "a".repeat(299));
        let request = block(&[&[0x41], &coded(path.as_bytes())[..]].concat());
        let wanted = block(&[&[0x41], &plain(format!("-{}", &path[1..]).as_bytes())[..]].concat());
        assert_eq!(passed(&frame(HEADERS, 4, &request), 4096), frame(HEADERS, 4, &wanted));
    }

    #[test]
    fn what_can_be_an_authority_or_is_none_passes_as_it_is() {
        for authority in ["localhost", "[::1]:80", "unix", ""] {
            let frame = frame(HEADERS, 4, &block(&[&[0x41], &coded(authority.as_bytes())[..]].concat()));
            assert_eq!(passed(&frame, 5), frame, "{authority}");
        }
        let other = frame(HEADERS, 4, &block(&[&[0x44], &plain(PATH.as_bytes())[..]].concat()));
        assert_eq!(passed(&other, 5), other);
        // Of a frame that is longer than one may be, or that grows so long, nothing is held or changed.
        let long = frame(HEADERS, 4, &[&[0x41], &plain(&[b'/'; FRAME_MAX])[..]].concat());
        assert_eq!(passed(&long, 4096), long);
        let grows = frame(HEADERS, 4, &[&[0x41], &coded(&[b'/'; FRAME_MAX])[..]].concat());
        assert_eq!(passed(&grows, 4096), grows);
    }

    proptest! {
        #[test]
        fn any_bytes_pass_at_any_pace(said in prop::collection::vec(any::<u8>(), 0..300), step in 1usize..40) {
            prop_assert_eq!(passed(&said, step), passed(&said, 4096));
            let framed = frame(HEADERS, 4, &said);
            prop_assert_eq!(passed(&framed, step).len() >= HEAD, true);
            prop_assert_eq!(passed(&framed, step), passed(&framed, 4096));
        }
    }
}
