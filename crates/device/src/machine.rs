//! A description of the machine, for plans, run folders and benchmark headers.

use serde::{Deserialize, Serialize};

use crate::memory::{physical_memory_bytes, read_proc};

/// What a measurement was made on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub cpu_model: Option<String>,
    /// Processors that the system offers this process: a restriction to fewer than the machine has is respected.
    pub cpu_cores: usize,
    pub physical_memory_bytes: Option<u64>,
    /// `linux`, `macos`, `windows`, ...
    pub operating_system: String,
    /// `x86_64`, `aarch64`, ...
    pub architecture: String,
}

impl Machine {
    pub fn describe() -> Self {
        Self {
            cpu_model: read_proc("/proc/cpuinfo").and_then(|text| cpu_model(&text)),
            cpu_cores: std::thread::available_parallelism().map_or(1, |count| count.get()),
            physical_memory_bytes: physical_memory_bytes(),
            operating_system: std::env::consts::OS.to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
        }
    }
}

impl std::fmt::Display for Machine {
    /// One line: `Intel(R) Xeon(R) Processor, 2 cores, 23.4 GiB, linux x86_64`.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cpu = self.cpu_model.as_deref().unwrap_or("unknown processor");
        let plural = if self.cpu_cores == 1 { "" } else { "s" };
        write!(out, "{cpu}, {} core{plural}", self.cpu_cores)?;
        if let Some(bytes) = self.physical_memory_bytes {
            write!(out, ", {:.1} GiB", bytes as f64 / f64::from(1 << 30))?;
        }
        write!(out, ", {} {}", self.operating_system, self.architecture)
    }
}

/// x86 calls the line `model name`; ARM boards have `Hardware` or `Model`, if anything.
fn cpu_model(text: &str) -> Option<String> {
    ["model name", "Hardware", "Model"].into_iter().find_map(|key| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let value = value.trim();
            (name.trim() == key && !value.is_empty()).then(|| value.to_owned())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_name_is_found_in_both_spellings() {
        let x86 = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 207\nmodel name\t: A Processor @ 2 GHz\n";
        assert_eq!(cpu_model(x86).as_deref(), Some("A Processor @ 2 GHz"));
        assert_eq!(cpu_model("processor : 0\n\nHardware\t: Board 5\n").as_deref(), Some("Board 5"));
        assert_eq!(cpu_model("model name :\n"), None);
        assert_eq!(cpu_model(""), None);
    }

    #[test]
    fn this_machine_fits_one_line() {
        let machine = Machine::describe();
        assert!(machine.cpu_cores >= 1);
        let line = machine.to_string();
        assert!(line.contains(" core") && !line.contains('\n'), "{line}");
    }
}
