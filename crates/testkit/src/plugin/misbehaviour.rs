//! Misbehaviour that a test can ask for.

use std::io::Write;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Signal, getpid, kill_process};

use crate::instructions::Instruction;
use crate::{Call, Refusal, print};

/// Time for which a hanging plugin hangs.
const FOREVER: Duration = Duration::from_secs(600);

/// Runs one instruction; returns the exit status, or `None` if the call continues.
pub(crate) fn run(instruction: &Instruction, call: &Call) -> Result<Option<u8>, Refusal> {
    match instruction {
        Instruction::Hang => std::thread::sleep(FOREVER),
        Instruction::HangWithChild => {
            let child = Command::new("sleep").arg(FOREVER.as_secs().to_string()).spawn();
            child.and_then(|mut child| child.wait()).expect("a child that sleeps");
        }
        Instruction::Garbage => print(b"{\"cniVersion\": \xff\xfe not JSON at all"),
        Instruction::Half => print(b"{\"cniVersion\": \"1.0.0\", \"interfaces\": [{\"name\": \"et"),
        Instruction::Flood { bytes } => flood(*bytes),
        Instruction::Signal { number } => {
            let signal = Signal::from_named_raw(*number).expect("a signal's number");
            kill_process(getpid(), signal).expect("send ourselves a signal");
            std::thread::sleep(FOREVER);
        }
        Instruction::DeleteNetns => {
            let path = call.variable("CNI_NETNS");
            unmount(path, UnmountFlags::DETACH).unwrap_or_else(|errno| panic!("unmount {path}: {errno}"));
            std::fs::remove_file(path).unwrap_or_else(|error| panic!("remove {path}: {error}"));
            return Ok(None);
        }
        Instruction::Sleep { milliseconds } => {
            std::thread::sleep(Duration::from_millis(*milliseconds));
            return Ok(None);
        }
        Instruction::Fail { code, message, details } => {
            return Err(Refusal { code: *code, message: message.clone(), details: details.clone() });
        }
        Instruction::Exit { code } => return Ok(Some(*code)),
        Instruction::Stderr { text, times } => {
            let mut stderr = std::io::stderr().lock();
            for _ in 0..*times {
                // The caller may have closed standard error.
                let _ = writeln!(stderr, "{text}");
            }
            return Ok(None);
        }
        Instruction::Result { .. } => return Ok(None),
    }
    Ok(Some(0))
}

/// Closes standard input without reading it, and answers.
pub(crate) fn be_deaf() -> ExitCode {
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null").expect("open /dev/null"))
        .expect("close stdin");
    print(b"{\"cniVersion\": \"1.0.0\"}");
    ExitCode::SUCCESS
}

/// Prints a huge result that is well-formed up to where the reader stops.
fn flood(bytes: u64) {
    let piece = [b'x'; 64 * 1024];
    let mut stdout = std::io::stdout().lock();
    let mut left = bytes;
    let mut written = stdout.write_all(b"{\"cniVersion\": \"1.0.0\", \"padding\": \"");
    while left > 0 && written.is_ok() {
        let length = left.min(piece.len() as u64) as usize;
        written = stdout.write_all(&piece[..length]);
        left -= length as u64;
    }
    // The caller may have stopped reading.
    let _ = written.and_then(|()| stdout.write_all(b"\"}")).and_then(|()| stdout.flush());
}
