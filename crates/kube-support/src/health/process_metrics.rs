//! Metrics about the process and the program, with the names that every Prometheus client uses.
//!
//! Source: Prometheus, "Writing client libraries", process metrics; proc(5),
//! `/proc/self/{stat,status,limits,fd}`, `/proc/stat`.

use std::fmt::Write;
use std::fs;

/// Clock ticks a second in `/proc`; the kernel's interface has this value on every architecture that weft is built for.
const TICKS: f64 = 100.0;
/// Fields in `/proc/self/stat` after the name in parentheses, counted from 0.
const USER_TIME: usize = 11;
const SYSTEM_TIME: usize = 12;
const START_TIME: usize = 19;
const VIRTUAL_SIZE: usize = 20;

/// Returns the metrics as OpenMetrics lines without the end mark. A value that cannot be read is left out.
pub(super) fn page() -> String {
    let mut page = format!(
        "# HELP weft_build_info Version and commit of the program.\n# TYPE weft_build_info gauge\n\
         weft_build_info{{version=\"{}\",commit=\"{}\"}} 1\n",
        build_info::VERSION,
        build_info::COMMIT
    );
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        // The state is a letter.
        .map(|field| field.parse().unwrap_or_default())
        .collect();
    let field = |index: usize| fields.get(index).copied();
    let cpu = field(USER_TIME).zip(field(SYSTEM_TIME)).map(|(user, system)| (user + system) / TICKS);
    let started = boot_time().zip(field(START_TIME)).map(|(boot, ticks)| boot + ticks / TICKS);
    let descriptors = fs::read_dir("/proc/self/fd").ok().map(|all| all.count() as f64);
    for (name, kind, help, value) in [
        ("process_cpu_seconds", "counter", "Processor time of the process in seconds.", cpu),
        ("process_resident_memory_bytes", "gauge", "Resident memory in bytes.", resident()),
        ("process_virtual_memory_bytes", "gauge", "Virtual memory in bytes.", field(VIRTUAL_SIZE)),
        ("process_open_fds", "gauge", "Number of open file descriptors.", descriptors),
        ("process_max_fds", "gauge", "Maximum number of open file descriptors.", open_files_limit()),
        ("process_start_time_seconds", "gauge", "Start of the process in seconds of Unix time.", started),
    ] {
        let suffix = if kind == "counter" { "_total" } else { "" };
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{suffix} {value}");
        }
    }
    page
}

/// Returns when the machine started, in seconds since 1970.
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Returns the resident memory in bytes.
fn resident() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024.0)
}

fn open_files_limit() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_metrics_have_plausible_values() {
        let page = page();
        let value = |name: &str| -> f64 {
            let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} is not in\n{page}")).parse().unwrap()
        };
        assert!(page.contains("weft_build_info{version=\"0."), "{page}");
        let resident = value("process_resident_memory_bytes");
        assert!(
            (1e6..1e10).contains(&resident) && resident < value("process_virtual_memory_bytes"),
            "{page}"
        );
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_open_fds") >= 3.0 && value("process_max_fds") >= value("process_open_fds"));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds");
        assert!((-2.0..3600.0).contains(&age), "{age}");
    }
}
