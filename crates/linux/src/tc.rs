//! Traffic control: limits the rate at which a link sends, and redirects packets that it receives.
//!
//! - Sizes are in bytes, rates in bytes per second.
//! - The root of a link belongs to weft: setting it replaces the present one.
//! - u32 filters are in [`filter`].
//!
//! Source: tc(8), tc-tbf(8), tc-htb(8); kernel `include/uapi/linux/pkt_sched.h`, `net/sched/sch_tbf.c`, `sch_htb.c`,
//! `sch_fifo.c`.

pub mod filter;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE};
use rustix::io::Errno;

use crate::attributes::{find, ne32_of, ne64_of, text};
use crate::error::Error;
use crate::netlink::Request;
use crate::rtnl::Rtnl;
use crate::rtnl::message::{DELETE_QDISC, GET_CLASS, GET_QDISC, Message, NEW_CLASS, NEW_QDISC};

/// `TCA_KIND`
pub(crate) const KIND: u16 = 1;
/// `TCA_OPTIONS`
pub(crate) const OPTIONS: u16 = 2;
/// `TCA_TBF_PARMS`; the same number for `TCA_HTB_PARMS`.
const PARAMETERS: u16 = 1;
/// `TCA_TBF_RATE64`
const TBF_RATE64: u16 = 4;
/// `TCA_TBF_BURST`
const TBF_BURST: u16 = 6;
/// `TCA_HTB_INIT`
const HTB_INIT: u16 = 2;
/// `TCA_HTB_RATE64`
const HTB_RATE64: u16 = 6;
/// `TCA_HTB_CEIL64`
const HTB_CEIL64: u16 = 7;

/// `TC_H_ROOT`
const ROOT: u32 = 0xffff_ffff;
/// `TC_H_INGRESS`
const INGRESS: u32 = 0xffff_fff1;
/// `ffff:`, the fixed handle for the ingress discipline.
const INGRESS_HANDLE: u32 = 0xffff_0000;
/// `1:`, the handle for weft's root discipline.
const HANDLE: u32 = 0x1_0000;

/// `TC_LINKLAYER_ETHERNET`
const ETHERNET: u8 = 1;
/// Length of a tick in nanoseconds. The kernel uses ticks to measure how long a full bucket lasts.
const TICK: u64 = 64;
/// `TC_HTB_PROTOVER`
const HTB_VERSION: u32 = 3;
/// Bytes that a class may send in one round. The kernel's default depends on the rate and may be unsuitable.
const QUANTUM: u32 = 60_000;

/// Token bucket: tokens arrive at a steady rate, and a full bucket may be spent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Bytes per second; at least 1.
    pub rate: u64,
    /// Bucket size in bytes, which is also the maximum packet size.
    pub burst: u32,
    /// Bytes that may wait for tokens; any more packets are dropped.
    pub limit: u32,
}

/// Token bucket as the kernel reports it: instead of the size, it has the time that a full bucket lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes per second.
    pub rate: u64,
    /// Time that a full bucket lasts, in ticks of 64 ns.
    pub ticks: u32,
    /// Bytes that may wait; `None` for classes.
    pub limit: Option<u32>,
}

/// Queueing discipline at a link's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// One bucket for all packets (`tbf`).
    Bucket(Measured),
    /// Classes (`htb`); a packet that matches no filter goes to the default class.
    Classes {
        /// Minor number of the default class.
        default: u32,
    },
    /// Another discipline, by name.
    Other(String),
}

// === impl Bucket ===

impl Bucket {
    /// Returns the time that a full bucket lasts, in ticks, up to the maximum that the kernel can represent.
    fn ticks(&self) -> u32 {
        let time = u128::from(self.burst) * 1_000_000_000 / u128::from(self.rate.max(1) * TICK);
        u32::try_from(time).unwrap_or(u32::MAX)
    }

    /// Whether the kernel has this bucket. The comparison is not exact: the kernel's conversions lose up to a
    /// thousandth of the bucket, other tools measure in microseconds, and the kernel reports values beyond the maximum
    /// as that maximum.
    pub fn is(&self, measured: &Measured) -> bool {
        let ticks = self.ticks();
        let close = measured.ticks.abs_diff(ticks) <= 32 + ticks / 1000;
        measured.rate == self.rate
            && measured.limit.is_none_or(|limit| limit == self.limit)
            && (close || ticks == u32::MAX)
    }

    /// Encodes `struct tc_ratespec`: 12 bytes.
    fn rate_bytes(rate: u64) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[1] = ETHERNET;
        bytes[8..].copy_from_slice(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
        bytes
    }

    /// Encodes `struct tc_tbf_qopt`.
    fn filter_bytes(&self) -> Vec<u8> {
        let mut bytes = Bucket::rate_bytes(self.rate).to_vec();
        // There is no second, faster limit.
        bytes.extend([0; 12]);
        for number in [self.limit, self.ticks(), 0] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes
    }

    /// Encodes `struct tc_htb_opt`; the rate is also the ceiling.
    fn class_bytes(&self) -> Vec<u8> {
        let rate = Bucket::rate_bytes(self.rate);
        let mut bytes = [rate, rate].concat();
        for number in [self.ticks(), self.ticks(), QUANTUM, 0, 0] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes
    }
}

impl Rtnl {
    /// Limits the rate at which a link sends. `tc qdisc replace dev NAME root handle 1: tbf rate R burst B limit L`
    pub fn limit(&mut self, link: u32, name: &str, bucket: &Bucket) -> Result<(), Error> {
        let mut message = Message::traffic(NEW_QDISC, link, HANDLE, ROOT, 0);
        message.attributes.text(KIND, "tbf").nested(OPTIONS, |options| {
            options.bytes(PARAMETERS, &bucket.filter_bytes());
            // In bytes, because a large bucket on a slow link would not fit as a time.
            options.ne32(TBF_BURST, bucket.burst);
            if bucket.rate > u64::from(u32::MAX) {
                options.bytes(TBF_RATE64, &bucket.rate.to_ne_bytes());
            }
        });
        self.execute(NLM_F_CREATE | NLM_F_REPLACE, message, || {
            format!("limit {name} to {} bytes/s with bursts of {} bytes", bucket.rate, bucket.burst)
        })
    }

    /// Puts classes at a link's root. `tc qdisc replace dev NAME root handle 1: htb default MINOR`
    pub fn classify(&mut self, link: u32, name: &str, default: u16) -> Result<(), Error> {
        let mut message = Message::traffic(NEW_QDISC, link, HANDLE, ROOT, 0);
        let mut init = Vec::new();
        for number in [HTB_VERSION, 10, u32::from(default), 0, 0] {
            init.extend(number.to_ne_bytes());
        }
        message.attributes.text(KIND, "htb").nested(OPTIONS, |options| {
            options.bytes(HTB_INIT, &init);
        });
        self.execute(NLM_F_CREATE | NLM_F_REPLACE, message, || format!("put classes at the root of {name}"))
    }

    /// Adds a class with the limit, and the queue for waiting packets.
    ///
    /// `tc class add dev NAME parent 1: classid 1:MINOR htb rate R ceil R burst B`, then `tc qdisc add dev NAME parent
    /// 1:MINOR bfifo limit L`
    pub fn add_class(&mut self, link: u32, name: &str, minor: u16, bucket: &Bucket) -> Result<(), Error> {
        let id = HANDLE | u32::from(minor);
        let mut class = Message::traffic(NEW_CLASS, link, id, HANDLE, 0);
        class.attributes.text(KIND, "htb").nested(OPTIONS, |options| {
            options.bytes(PARAMETERS, &bucket.class_bytes());
            if bucket.rate > u64::from(u32::MAX) {
                options.bytes(HTB_RATE64, &bucket.rate.to_ne_bytes());
                options.bytes(HTB_CEIL64, &bucket.rate.to_ne_bytes());
            }
        });
        let mut queue = Message::traffic(NEW_QDISC, link, 0, id, 0);
        queue.attributes.text(KIND, "bfifo").bytes(OPTIONS, &bucket.limit.to_ne_bytes());
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let requests = [class, queue].map(|message| Request { flags, message }).into();
        self.execute_all(requests, |_| format!("add class 1:{minor:x} to {name}"))
    }

    /// Adds an ingress discipline, so that filters see the packets that a link receives. `tc qdisc add dev NAME
    /// ingress`
    ///
    /// # Errors
    /// [`crate::Kind::Exists`]: there is one already.
    pub fn add_ingress(&mut self, link: u32, name: &str) -> Result<(), Error> {
        let mut message = Message::traffic(NEW_QDISC, link, INGRESS_HANDLE, INGRESS, 0);
        message.attributes.text(KIND, "ingress").nested(OPTIONS, |_| {});
        self.execute(NLM_F_CREATE | NLM_F_EXCL, message, || format!("add ingress to {name}"))
    }

    /// Whether there is an ingress discipline that nothing uses: `ingress`, not `clsact`, and without filters. `tc
    /// qdisc show dev NAME ingress`
    pub fn has_unused_ingress(&mut self, link: u32, name: &str) -> Result<bool, Error> {
        let is_ingress = |answer: &Message| {
            answer.kind() == NEW_QDISC
                && answer.word_at(12) == INGRESS
                && answer.attributes.find(KIND).map(text).as_deref() == Some("ingress")
        };
        let query = Message::traffic(GET_QDISC, link, 0, INGRESS, 0);
        let request = Request { flags: NLM_F_ECHO, message: query };
        match self.ask_all(vec![request], || format!("read the ingress of {name}")) {
            Ok(answers) if answers.iter().any(is_ingress) => Ok(!self.has_filters(link, name)?),
            Ok(_) => Ok(false),
            Err(error) if matches!(error.errno(), Some(Errno::INVAL | Errno::NOENT)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the ingress discipline and all filters in it. `tc qdisc del dev NAME ingress`
    pub fn remove_ingress(&mut self, link: u32, name: &str) -> Result<(), Error> {
        let message = Message::traffic(DELETE_QDISC, link, 0, INGRESS, 0);
        self.execute(0, message, || format!("remove ingress from {name}"))
    }

    /// Removes the root discipline, so that the link sends without a limit. `tc qdisc del dev NAME root`
    pub fn unlimit(&mut self, link: u32, name: &str) -> Result<(), Error> {
        let message = Message::traffic(DELETE_QDISC, link, 0, ROOT, 0);
        self.execute(0, message, || format!("remove the root of {name}"))
    }

    /// Returns a link's root discipline, if one was configured. `tc qdisc show dev NAME root`
    pub fn root(&mut self, link: u32, name: &str) -> Result<Option<Root>, Error> {
        let message = Message::traffic(GET_QDISC, link, 0, ROOT, 0);
        // Without the echo flag, the kernel notifies every listener except the one that asked.
        let answers =
            self.ask_all(vec![Request { flags: NLM_F_ECHO, message }], || format!("read the root of {name}"));
        match answers {
            Ok(answers) => Ok(answers.iter().find_map(root_of)),
            Err(error) if matches!(error.errno(), Some(Errno::INVAL | Errno::NOENT)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a class's limit. `tc class show dev NAME classid 1:MINOR`
    pub fn class(&mut self, link: u32, name: &str, minor: u16) -> Result<Option<Measured>, Error> {
        let query = Message::traffic(GET_CLASS, link, 0, 0, 0);
        let answers = self.dump(&query, || format!("list the classes of {name}"))?;
        let id = HANDLE | u32::from(minor);
        let found = answers.iter().filter(|answer| answer.kind() == NEW_CLASS && answer.word_at(8) == id);
        Ok(found.filter_map(|answer| class_of(answer.attributes.find(OPTIONS)?)).next())
    }
}

fn root_of(message: &Message) -> Option<Root> {
    if message.kind() != NEW_QDISC || message.word_at(12) != ROOT {
        return None;
    }
    let kind = text(message.attributes.find(KIND)?);
    let options = message.attributes.find(OPTIONS).unwrap_or_default();
    Some(match kind.as_str() {
        "tbf" => bucket_of(options).map_or(Root::Other(kind), Root::Bucket),
        "htb" => Root::Classes {
            default: find(options, HTB_INIT)
                .and_then(|init| init.get(8..12))
                .and_then(ne32_of)
                .unwrap_or_default(),
        },
        _ => Root::Other(kind),
    })
}

fn bucket_of(options: &[u8]) -> Option<Measured> {
    let parameters = find(options, PARAMETERS)?;
    let number = |at: usize| parameters.get(at..at + 4).and_then(ne32_of);
    let rate = find(options, TBF_RATE64).and_then(ne64_of);
    Some(Measured {
        rate: rate.or_else(|| number(8).map(u64::from))?,
        limit: Some(number(24)?),
        ticks: number(28)?,
    })
}

fn class_of(options: &[u8]) -> Option<Measured> {
    let parameters = find(options, PARAMETERS)?;
    let number = |at: usize| parameters.get(at..at + 4).and_then(ne32_of);
    let rate = find(options, HTB_RATE64).and_then(ne64_of);
    Some(Measured { rate: rate.or_else(|| number(8).map(u64::from))?, limit: None, ticks: number(24)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tc_bucket_matches_within_conversion_losses() {
        let bucket = Bucket { rate: 1_000_000, burst: 250_000, limit: 275_000 };
        assert_eq!(bucket.ticks(), 3_906_250, "a quarter of a second");
        let measured = |rate, ticks, limit| Measured { rate, ticks, limit: Some(limit) };
        assert!(bucket.is(&measured(1_000_000, 3_906_250, 275_000)));
        assert!(bucket.is(&measured(1_000_000, 3_906_234, 275_000)), "Go counts microseconds");
        for other in
            [(1_000_001, 3_906_250, 275_000), (1_000_000, 3_806_250, 275_000), (1_000_000, 3_906_250, 1)]
        {
            assert!(!bucket.is(&measured(other.0, other.1, other.2)), "{other:?}");
        }
    }

    #[test]
    fn tc_bucket_beyond_the_maximum_matches_the_maximum() {
        let bucket = Bucket { rate: 125_000, burst: u32::MAX, limit: u32::MAX };
        assert_eq!(bucket.ticks(), u32::MAX);
        assert!(bucket.is(&Measured { rate: 125_000, ticks: 7, limit: None }));
    }
}
