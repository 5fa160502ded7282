//! Memory of this process and of the machine.

use serde::Serialize;

/// Memory that the system counts for this process, in bytes.
///
/// Mapped model files are resident too, but the system may drop their pages under pressure at no cost but reading
/// them again: judge a plan by `anonymous_bytes`, judge the machine by `resident_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessMemory {
    /// In physical memory now.
    pub resident_bytes: Option<u64>,
    /// The most that was ever resident.
    pub peak_resident_bytes: Option<u64>,
    /// Of the resident: heap, stacks, everything that has no file behind it.
    pub anonymous_bytes: Option<u64>,
    /// Of the resident: pages of mapped files.
    pub file_mapped_bytes: Option<u64>,
}

impl ProcessMemory {
    pub fn read() -> Self {
        read_proc("/proc/self/status").map_or_else(Self::default, |status| Self::parse(&status))
    }

    fn parse(status: &str) -> Self {
        Self {
            resident_bytes: kibibytes(status, "VmRSS"),
            peak_resident_bytes: kibibytes(status, "VmHWM"),
            anonymous_bytes: kibibytes(status, "RssAnon"),
            file_mapped_bytes: kibibytes(status, "RssFile"),
        }
    }
}

/// Physical memory of the machine, or the limit of the control group that holds this process if that is lower.
pub fn physical_memory_bytes() -> Option<u64> {
    let total = kibibytes(&read_proc("/proc/meminfo")?, "MemTotal");
    lower(total, control_group_bytes("memory.max"))
}

/// Memory that could be taken now without swapping, by the system's own estimate and within the control group.
pub fn available_memory_bytes() -> Option<u64> {
    let available = kibibytes(&read_proc("/proc/meminfo")?, "MemAvailable");
    let group = control_group_bytes("memory.max")
        .zip(control_group_bytes("memory.current"))
        .map(|(limit, used)| limit.saturating_sub(used));
    lower(available, group)
}

fn lower(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A value of this process's control group (version 2). "max", the word for no limit, is `None`.
fn control_group_bytes(file: &str) -> Option<u64> {
    let groups = read_proc("/proc/self/cgroup")?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/');
    let path = std::path::Path::new("/sys/fs/cgroup").join(group).join(file);
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

pub(crate) fn read_proc(path: &str) -> Option<String> {
    // Device names and the like need not be UTF-8.
    std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The value of a line such as `VmRSS:      1234 kB`, in bytes.
fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let (number, unit) = value.trim().split_once(' ')?;
    if unit.trim() != "kB" {
        return None;
    }
    number.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tcat\nVmPeak:\t   9000 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n\
                          RssAnon:\t     256 kB\nRssFile:\t     768 kB\nThreads:\t1\n";

    #[test]
    fn values_are_read_in_bytes_by_their_whole_key() {
        let memory = ProcessMemory::parse(STATUS);
        assert_eq!(memory.peak_resident_bytes, Some(2048 * 1024));
        assert_eq!(memory.resident_bytes, Some(1024 * 1024));
        assert_eq!(memory.anonymous_bytes, Some(256 * 1024));
        assert_eq!(memory.file_mapped_bytes, Some(768 * 1024));
        assert_eq!(kibibytes(STATUS, "Vm"), None);
        assert_eq!(kibibytes(STATUS, "Threads"), None);
        assert_eq!(kibibytes("VmRSS:\t99999999999999999999 kB\n", "VmRSS"), None);
        assert_eq!(kibibytes("VmRSS:\t18446744073709551615 kB\n", "VmRSS"), None);
        assert_eq!(ProcessMemory::parse(""), ProcessMemory::default());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_large_buffer_shows_in_anonymous_memory() {
        let before = ProcessMemory::read().anonymous_bytes.unwrap();
        let buffer = vec![1u8; 64 << 20];
        std::hint::black_box(&buffer);
        let after = ProcessMemory::read();
        assert!(after.anonymous_bytes.unwrap() >= before + (60 << 20));
        assert!(after.peak_resident_bytes.unwrap() >= after.resident_bytes.unwrap());
        assert!(physical_memory_bytes().unwrap() >= available_memory_bytes().unwrap());
    }
}
