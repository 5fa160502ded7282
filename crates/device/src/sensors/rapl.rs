//! Energy by the processor's own counters (RAPL), as `/sys/class/powercap` offers them on Intel and AMD.

use super::files::{Found, Root, unreadable};

const FOLDER: &str = "/sys/class/powercap";
/// No package or memory of a personal machine draws this; a backward step that would need more is a counter that
/// started again, as after suspend, and not one that wrapped.
const POWER_MAX_W: f64 = 2000.0;

/// Joules of all packages and their memory since the counters were opened.
#[derive(Debug)]
pub(super) struct ProcessorCounters {
    domains: Vec<Domain>,
    total_j: f64,
    read_at_s: f64,
}

#[derive(Debug)]
struct Domain {
    path: String,
    /// Where the counter starts again from zero, in microjoules.
    range_uj: f64,
    last_uj: f64,
}

impl ProcessorCounters {
    /// Packages contain cores and graphics, so these are not added; memory is outside. `intel-rapl-mmio` shows the same
    /// package a second time.
    pub fn open(root: &Root, now_s: f64) -> Found<Self> {
        let names =
            root.names(FOLDER).map_err(|_| "the processor's energy counters are not offered here".to_owned())?;
        let mut domains = Vec::new();
        for name in names {
            let Some(numbers) = name.strip_prefix("intel-rapl:") else { continue };
            let kind = root.text(&format!("{FOLDER}/{name}/name")).unwrap_or_default();
            let is_whole = !numbers.contains(':') && kind.starts_with("package");
            if !is_whole && kind != "dram" {
                continue;
            }
            let path = format!("{FOLDER}/{name}/energy_uj");
            let last_uj = counter(root, &path)?;
            let range_uj = root.number(&format!("{FOLDER}/{name}/max_energy_range_uj")).unwrap_or(0.0);
            domains.push(Domain { path, range_uj, last_uj });
        }
        if domains.is_empty() {
            return Err("the processor has no energy counters".to_owned());
        }
        Ok(Self { domains, total_j: 0.0, read_at_s: now_s })
    }

    pub fn read(&mut self, root: &Root, now_s: f64) -> Found<f64> {
        let elapsed_s = now_s - self.read_at_s;
        for domain in &mut self.domains {
            let now_uj = counter(root, &domain.path)?;
            self.total_j += joules_between(domain.last_uj, now_uj, domain.range_uj, elapsed_s);
            domain.last_uj = now_uj;
        }
        self.read_at_s = now_s;
        Ok(self.total_j)
    }
}

fn counter(root: &Root, path: &str) -> Found<f64> {
    let text = root.text(path).map_err(|error| unreadable(path, &error))?;
    // The counter goes up to 2^63 at most, of which float64 drops less than a millijoule.
    text.parse::<u64>().map(|count| count as f64).map_err(|_| format!("{path} holds `{text}`, expected microjoules"))
}

/// Joules between two readings of a counter that starts again from zero at `range_uj`.
fn joules_between(before_uj: f64, now_uj: f64, range_uj: f64, elapsed_s: f64) -> f64 {
    if now_uj >= before_uj {
        return (now_uj - before_uj) * 1e-6;
    }
    let wrapped_j = (range_uj - before_uj + now_uj) * 1e-6;
    let is_plausible = wrapped_j >= 0.0 && wrapped_j <= POWER_MAX_W * elapsed_s.max(1.0);
    if is_plausible { wrapped_j } else { now_uj * 1e-6 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::fake::Tree;

    fn tree() -> Tree {
        let tree = Tree::new();
        for (name, kind, energy) in [
            ("intel-rapl:0", "package-0", "1000000"),
            ("intel-rapl:0:0", "core", "900000"),
            ("intel-rapl:0:1", "dram", "500000"),
            ("intel-rapl:1", "psys", "7000000"),
            ("intel-rapl-mmio:0", "package-0", "1000000"),
        ] {
            tree.write(&format!("{FOLDER}/{name}/name"), kind);
            tree.write(&format!("{FOLDER}/{name}/energy_uj"), energy);
            tree.write(&format!("{FOLDER}/{name}/max_energy_range_uj"), "262143328850");
        }
        tree
    }

    #[test]
    fn packages_and_memory_are_added_once() {
        let tree = tree();
        let mut counters = ProcessorCounters::open(&tree.root(), 0.0).unwrap();
        assert_eq!(counters.read(&tree.root(), 1.0).unwrap(), 0.0, "energy counts from the opening");
        tree.write(&format!("{FOLDER}/intel-rapl:0/energy_uj"), "4000000");
        tree.write(&format!("{FOLDER}/intel-rapl:0:0/energy_uj"), "3000000");
        tree.write(&format!("{FOLDER}/intel-rapl:0:1/energy_uj"), "750000");
        assert_eq!(counters.read(&tree.root(), 2.0).unwrap(), 3.25);
    }

    #[test]
    fn a_counter_that_wraps_goes_on_and_one_that_restarts_loses_nothing_it_had() {
        // 262143 J of range: 10 J before the end, 5 J after the wrap, half a minute apart.
        let range = 262_143_328_850.0;
        assert!((joules_between(range - 10e6, 5e6, range, 30.0) - 15.0).abs() < 1e-6);
        // 100 kJ in ten seconds is no consumption: the machine slept and the counter began anew.
        assert_eq!(joules_between(162_143_328_850.0, 2e6, range, 10.0), 2.0);
        // No range is known.
        assert_eq!(joules_between(5e6, 1e6, 0.0, 10.0), 1.0);
        let tree = tree();
        let root = tree.root();
        tree.write(&format!("{FOLDER}/intel-rapl:0/energy_uj"), "262143328850");
        let mut counters = ProcessorCounters::open(&root, 0.0).unwrap();
        tree.write(&format!("{FOLDER}/intel-rapl:0/energy_uj"), "2000000");
        assert!((counters.read(&root, 5.0).unwrap() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_missing_or_forbidden_or_garbage_is_said() {
        let reason = |tree: &Tree| ProcessorCounters::open(&tree.root(), 0.0).unwrap_err();
        assert!(reason(&Tree::new()).contains("not offered"));
        let empty = Tree::new();
        empty.write(&format!("{FOLDER}/intel-rapl/uevent"), "");
        assert!(reason(&empty).contains("no energy counters"));
        let garbage = tree();
        garbage.write(&format!("{FOLDER}/intel-rapl:0/energy_uj"), "lots");
        assert!(reason(&garbage).contains("intel-rapl:0/energy_uj holds `lots`"));
        let error = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        assert!(unreadable("/sys/x/energy_uj", &error).contains("only be read by the administrator"));
    }

    #[cfg(unix)]
    #[test]
    fn counters_that_only_root_may_read_are_absent_for_others() {
        use std::os::unix::fs::PermissionsExt;
        let tree = tree();
        let path = tree.path(&format!("{FOLDER}/intel-rapl:0/energy_uj"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
        let opened = ProcessorCounters::open(&tree.root(), 0.0);
        match std::fs::read(&path) {
            // The administrator may read everything.
            Ok(_) => assert!(opened.is_ok()),
            Err(_) => assert!(opened.unwrap_err().contains("may only be read by the administrator")),
        }
    }
}
