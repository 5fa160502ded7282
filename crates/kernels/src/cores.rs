//! How many cores there are to work with.

/// Physical cores that the system offers this process: two logical processors of one core share its multipliers, so
/// that a second thread there gains nothing. Where the system does not say, the number of logical processors.
pub fn physical_cores() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, |count| count.get());
    allowed_cores().map_or(logical, |cores| cores.clamp(1, logical))
}

#[cfg(target_os = "linux")]
fn allowed_cores() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let siblings = |cpu| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(path).ok().map(|list| list.trim().to_owned())
    };
    count_cores(allowed.trim(), &siblings)
}

#[cfg(not(target_os = "linux"))]
fn allowed_cores() -> Option<usize> {
    None
}

/// Number of different sibling lists among the processors of `allowed`, such as `0-3,8`.
#[cfg(any(target_os = "linux", test))]
fn count_cores(allowed: &str, siblings: &dyn Fn(usize) -> Option<String>) -> Option<usize> {
    /// More than any machine has; a longer list is no list of processors.
    const PROCESSORS_MAX: usize = 1 << 16;
    let mut cores = std::collections::BTreeSet::new();
    for part in allowed.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last > PROCESSORS_MAX {
            return None;
        }
        for cpu in first..=last {
            cores.insert(siblings(cpu)?);
        }
    }
    Some(cores.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logical_processors_of_one_core_count_once() {
        let pairs = |cpu: usize| (cpu < 16).then(|| format!("{},{}", cpu % 8, cpu % 8 + 8));
        assert_eq!(count_cores("0-15", &pairs), Some(8));
        assert_eq!(count_cores("0-3,8-11", &pairs), Some(4));
        assert_eq!(count_cores("5", &pairs), Some(1));
        assert_eq!(count_cores("0-16", &pairs), None, "a processor without a sibling list");
        assert_eq!(count_cores("0-99999999999", &pairs), None);
        assert_eq!(count_cores("none", &pairs), None);
        assert!(physical_cores() >= 1);
    }
}
