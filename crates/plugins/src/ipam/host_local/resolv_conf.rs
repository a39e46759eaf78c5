//! DNS settings from a resolver configuration file.
//!
//! Rules: `#` and `;` begin a comment line. A keyword needs a value. The last `domain` counts, lists accumulate, and
//! unknown keywords are ignored.
//!
//! Source: resolv.conf(5); plugins `plugins/ipam/host-local/dns.go`.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cni::Error;
use cni::result::Dns;
use rustix::fs::OFlags;

/// Maximum file size, in bytes.
const FILE_MAX: u64 = 64 * 1024;

/// Reads the settings in the file named by `ipam.resolvConf`.
pub fn read(path: &Path) -> Result<Dns, Error> {
    let wrong = |error: std::io::Error| {
        Error::config(linux::Error::io(format!("ipam.resolvConf: {path:?}"), &error).to_string())
    };
    // Opening a named pipe must not block.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(wrong)?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() as u64 > FILE_MAX {
        let why = format!("larger than {FILE_MAX} bytes");
        return Err(Error::key("ipam.resolvConf", format!("{path:?}"), why));
    }
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let keyword = words.next().unwrap_or_default();
        match (keyword.as_str(), words.next()) {
            ("nameserver", Some(server)) => dns.nameservers.push(server),
            ("domain", Some(domain)) => dns.domain = domain,
            ("search", Some(first)) => dns.search.extend([first].into_iter().chain(words)),
            ("options", Some(first)) => dns.options.extend([first].into_iter().chain(words)),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_parsed_line_by_line() {
        let text = "# c\n; c\nnameserver 192.0.2.0\r\n  nameserver 192.0.2.1 extra\nnameserver\n\
                    domain old\ndomain example.com\nsearch a b\nsearch c\noptions ndots:2 rotate\nsortlist x\n";
        let dns = parse(text);
        assert_eq!(dns.nameservers, ["192.0.2.0", "192.0.2.1"]);
        assert_eq!((dns.domain.as_str(), dns.search.join(" ").as_str()), ("example.com", "a b c"));
        assert_eq!(dns.options, ["ndots:2", "rotate"]);
    }

    #[test]
    fn resolv_conf_that_cannot_be_read_is_reported_by_path() {
        for (path, why) in
            [("/no/such", "no such file"), ("/", "is a directory"), ("/dev/zero", "larger than")]
        {
            let error = read(Path::new(path)).unwrap_err();
            let start = format!("ipam.resolvConf: {path:?}: ");
            assert!(error.code == 7 && error.msg.starts_with(&start) && error.msg.contains(why), "{error}");
        }
    }
}
