//! Probe on a path: one ICMP echo or one TCP connection, and a capture on the interface that should receive
//! it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use cni::Error;
use linux::capture::CaptureSocket;
use linux::tcp::{self, Connection};
use linux::{Kind, echo};
use plugin_support::failure::OrRefused;
use rpc::diagnosis::{FrameFilter, FrameProtocol};

use super::Pod;

/// Number of echo requests to send, if none is answered.
const PINGS: u64 = 3;
/// Number of header bytes that are compared.
const HEADERS: usize = 128;
/// Maximum number of captured packets that are compared.
const CAPTURED_MAX: usize = 10_000;
/// Timeout for an echo request.
const PING_WAIT: Duration = Duration::from_millis(800);
/// Timeout for a connection: the kernel sends three segments within it, at 0, 1 and 3 seconds.
const CONNECT_WAIT: Duration = Duration::from_millis(3_500);

/// Packets to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) tcp: Option<u16>,
}

/// Outcome of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Replied(Duration),
    Refused,
    Unreachable(String),
    /// There was no answer in time. A pod that refuses the port silently may still answer pings.
    Silent {
        pings: bool,
    },
}

/// A probe that was sent.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) answer: Answer,
    /// Whether a packet arrived at the receiving interface, if that is known.
    arrived: Option<bool>,
}

impl Sent {
    /// Whether the other side answered.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.answer, Answer::Replied(_) | Answer::Refused)
    }

    /// Whether packets were sent, had no answer, and did not arrive.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.answer, Answer::Silent { .. }) && self.arrived == Some(false)
    }
}

impl Probe {
    /// Returns the probe for people.
    pub(super) fn describe(&self) -> String {
        match self.tcp {
            Some(port) => format!("TCP connection to {}", SocketAddr::new(self.to, port)),
            None => format!("ping to {}", self.to),
        }
    }

    /// Sends the probe from a pod.
    pub(super) fn send(&self, sender: &Pod<'_>, receiver: Option<&Pod<'_>>) -> Result<Sent, Error> {
        // The socket sees packets before the packet filter of the pod.
        let capture =
            receiver.and_then(|pod| pod.netns.run(|| CaptureSocket::open(&pod.link.name)).ok()?.ok());
        let answer = sender.netns.run(|| self.ask()).or_refused()?;
        Ok(Sent { answer, arrived: capture.map(|capture| self.is_in(&capture)) })
    }

    /// Whether one of this probe's packets was captured.
    fn is_in(&self, capture: &CaptureSocket) -> bool {
        let protocol = if self.tcp.is_some() { FrameProtocol::Tcp } else { FrameProtocol::Icmp };
        let filter = FrameFilter { protocol: Some(protocol), host: Some(self.from), port: self.tcp };
        let mut buffer = [0; HEADERS];
        for _ in 0..CAPTURED_MAX {
            let Ok(Some(frame)) = capture.receive(&mut buffer) else { return false };
            if filter.matches(buffer.get(..frame.length).unwrap_or_default()) {
                return true;
            }
        }
        // Other traffic may have displaced the probe.
        true
    }

    fn ask(&self) -> Answer {
        let Some(port) = self.tcp else { return self.ping(PINGS) };
        match tcp::connect(self.from, SocketAddr::new(self.to, port), CONNECT_WAIT) {
            Ok(Connection::Accepted(took)) => Answer::Replied(took),
            Ok(Connection::Refused) => Answer::Refused,
            Ok(Connection::Unreachable) => Answer::Unreachable("reported as unreachable".to_owned()),
            Ok(Connection::NoAnswer) => Answer::Silent { pings: matches!(self.ping(1), Answer::Replied(_)) },
            Err(error) => Answer::Unreachable(error.to_string()),
        }
    }

    fn ping(&self, count: u64) -> Answer {
        for _ in 0..count {
            match echo::ping(self.to, Some(self.from), PING_WAIT) {
                Ok(Some(took)) => return Answer::Replied(took),
                Ok(None) => {}
                // The kernel reports a neighbour that does not answer.
                Err(error) if error.kind() == Kind::TimedOut => {}
                Err(error) => return Answer::Unreachable(error.to_string()),
            }
        }
        Answer::Silent { pings: false }
    }
}
