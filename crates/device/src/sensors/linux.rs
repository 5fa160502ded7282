//! Linux, and Android as far as it lets programs read: `/sys`, `/proc`, `/dev`.

use std::path::Path;

use super::activity::UserActivity;
use super::files::{Found, Root, unreadable};
use super::gauge::BatteryMeter;
use super::heat::{self, ThrottleFlag};
use super::power_supply;
use super::rapl::ProcessorCounters;
use super::{Absent, EnergySource, Quantity, Reading, Sensors};
use crate::Stopwatch;

/// Batteries answer slowly on some machines and clocks of many cores cost interrupts: these are read no more often.
const SLOW_SECONDS: f64 = 2.0;

/// The sensors of a machine whose files lie below a root.
#[derive(Debug)]
pub struct LinuxSensors {
    root: Root,
    watch: Stopwatch,
    counters: Found<ProcessorCounters>,
    meter: BatteryMeter,
    throttle: ThrottleFlag,
    activity: UserActivity,
    /// The last reading of what is slow to read, and when that was.
    slow: Option<(f64, Reading)>,
    absent: Vec<Absent>,
    processors: usize,
}

impl LinuxSensors {
    /// `root` is `/`, or a folder with the same files in tests.
    pub fn open(root: &Path) -> Self {
        let root = Root::new(root);
        Self {
            counters: ProcessorCounters::open(&root, 0.0),
            root,
            watch: Stopwatch::start(),
            meter: BatteryMeter::default(),
            throttle: ThrottleFlag::default(),
            activity: UserActivity::new(),
            slow: None,
            absent: Vec::new(),
            processors: std::thread::available_parallelism().map_or(1, |count| count.get()),
        }
    }

    fn read_slow(&mut self, now_s: f64) -> Reading {
        let mut reading = Reading::default();
        let mut absent = Absentees::default();
        let supplies = power_supply::read(&self.root);
        let is_discharging = supplies.external_power == Ok(false);
        let drawn_j = supplies.remaining_j.and_then(|remaining_j| self.meter.read(remaining_j, is_discharging));
        match (&self.counters, drawn_j) {
            // Read each time: they are cheap and exact.
            (Ok(_), _) => {}
            (Err(_), Some(drawn_j)) => {
                reading.energy_j = Some(drawn_j);
                reading.energy_source = Some(EnergySource::BatteryGauge);
                reading.energy_resolution_j = self.meter.resolution_j();
            }
            (Err(reason), None) => absent.add(Quantity::Energy, energy_reason(reason, &supplies)),
        }
        reading.battery = absent.note(Quantity::Battery, supplies.battery);
        reading.external_power = absent.note(Quantity::Charger, supplies.external_power);
        reading.temperature_c = absent.note(Quantity::Temperature, heat::temperature_c(&self.root));
        reading.throttled = absent.note(Quantity::Throttling, self.throttle.read(&self.root, now_s));
        reading.frequency_ratio = absent.note(Quantity::Frequency, heat::frequency_ratio(&self.root));
        reading.memory_pressure = absent.note(Quantity::MemoryPressure, memory_pressure(&self.root));
        reading.memory_available_bytes = self.root.text("/proc/meminfo").ok().and_then(|text| available_bytes(&text));
        reading.load = absent.note(Quantity::Load, load(&self.root, self.processors));
        reading.user_idle_s = absent.note(Quantity::UserActivity, self.activity.idle_seconds(&self.root));
        self.absent = absent.0;
        reading
    }
}

impl Sensors for LinuxSensors {
    fn read(&mut self) -> Reading {
        let now_s = self.watch.seconds();
        let mut reading = match &self.slow {
            Some((read_at_s, reading)) if now_s - read_at_s < SLOW_SECONDS => reading.clone(),
            _ => {
                let reading = self.read_slow(now_s);
                self.slow = Some((now_s, reading.clone()));
                reading
            }
        };
        reading.unix_seconds = crate::unix_time_seconds();
        reading.monotonic_seconds = now_s;
        reading.local_minute = Some(crate::local_minute());
        if let Ok(counters) = &mut self.counters
            && let Ok(energy_j) = counters.read(&self.root, now_s)
        {
            reading.energy_j = Some(energy_j);
            reading.energy_source = Some(EnergySource::ProcessorCounters);
        }
        reading
    }

    fn absent(&self) -> Vec<Absent> {
        self.absent.clone()
    }
}

fn energy_reason(counters: &str, supplies: &power_supply::PowerSupplies) -> String {
    let gauge = match (&supplies.battery, &supplies.external_power) {
        (Err(reason), _) => reason.as_str(),
        (Ok(_), Ok(true)) => "the battery is no measure while a charger feeds the machine",
        _ => "the battery tells no energy",
    };
    format!("{counters}; {gauge}")
}

/// Collects what is missing while a reading is made.
#[derive(Default)]
pub(super) struct Absentees(pub Vec<Absent>);

impl Absentees {
    pub fn add(&mut self, quantity: Quantity, reason: String) {
        self.0.push(Absent { quantity, reason });
    }
    pub fn note<T>(&mut self, quantity: Quantity, found: Found<T>) -> Option<T> {
        found.map_err(|reason| self.add(quantity, reason)).ok()
    }
}

/// Part of the last ten seconds in which at least one task waited for memory: `some avg10=1.50 avg60=...`.
fn memory_pressure(root: &Root) -> Found<f64> {
    const FILE: &str = "/proc/pressure/memory";
    let text = root.text(FILE).map_err(|error| unreadable(FILE, &error))?;
    let some = text.lines().find_map(|line| line.strip_prefix("some "));
    let percent =
        some.and_then(|line| line.split(' ').find_map(|part| part.strip_prefix("avg10=")?.parse::<f64>().ok()));
    let share = percent.map(|percent| percent / 100.0).filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("{FILE} is not of the expected form"))
}

fn available_bytes(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn load(root: &Root, processors: usize) -> Found<f64> {
    const FILE: &str = "/proc/loadavg";
    let text = root.text(FILE).map_err(|error| unreadable(FILE, &error))?;
    let first = text.split(' ').next().and_then(|word| word.parse::<f64>().ok()).filter(|load| *load >= 0.0);
    first.map(|load| load / processors as f64).ok_or_else(|| format!("{FILE} is not of the expected form"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::fake::Tree;
    use crate::{Battery, BatteryState};

    #[test]
    fn an_empty_machine_tells_nothing_and_says_why_for_each() {
        let tree = Tree::new();
        let mut sensors = LinuxSensors::open(tree.root_path());
        let reading = sensors.read();
        assert!(reading.unix_seconds > 1.7e9 && reading.local_minute.is_some());
        let absent = sensors.absent();
        assert_eq!(absent.iter().map(|absent| absent.quantity).collect::<Vec<_>>(), Quantity::ALL);
        assert!(Quantity::ALL.iter().all(|quantity| !quantity.is_in(&reading)));
        assert!(absent.iter().all(|absent| absent.reason.len() > 10), "{absent:?}");
    }

    #[test]
    fn a_laptop_without_counters_is_measured_by_its_battery() {
        let tree = Tree::new();
        let battery = |energy: &str, status: &str| {
            let files = [("type", "Battery"), ("status", status), ("energy_now", energy), ("energy_full", "50000000")];
            tree.write_all("/sys/class/power_supply/BAT0", &files);
        };
        battery("30000000", "Discharging");
        tree.write("/proc/pressure/memory", "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=0.00");
        tree.write("/proc/meminfo", "MemTotal:       16000 kB\nMemAvailable:    8000 kB");
        tree.write("/proc/loadavg", "3.00 2.00 1.00 2/500 1234");
        let mut sensors = LinuxSensors::open(tree.root_path());
        sensors.processors = 4;
        let first = sensors.read();
        assert_eq!(first.energy_j, Some(0.0));
        assert_eq!(first.energy_source, Some(EnergySource::BatteryGauge));
        let expected =
            Battery { charge: 0.6, state: BatteryState::Discharging, capacity_wh: Some(50.0), power_w: None };
        assert_eq!((first.battery, first.external_power), (Some(expected), Some(false)));
        assert_eq!((first.memory_pressure, first.memory_available_bytes), (Some(0.125), Some(8000 * 1024)));
        assert_eq!(first.load, Some(0.75));

        battery("29500000", "Discharging");
        assert_eq!(sensors.read().energy_j, Some(0.0), "slow sensors are not asked twice within two seconds");
        sensors.slow = None;
        let second = sensors.read();
        assert_eq!((second.energy_j, second.energy_resolution_j), (Some(1800.0), Some(1800.0)));
        battery("29500000", "Charging");
        sensors.slow = None;
        assert_eq!(sensors.read().energy_j, None);
        let energy = sensors.absent().into_iter().find(|absent| absent.quantity == Quantity::Energy).unwrap();
        assert!(energy.reason.contains("while a charger feeds the machine"), "{energy:?}");
    }

    #[test]
    fn counters_win_over_the_battery_and_are_read_each_time() {
        let tree = Tree::new();
        let counter = |energy: &str| {
            let files = [("name", "package-0"), ("energy_uj", energy), ("max_energy_range_uj", "262143328850")];
            tree.write_all("/sys/class/powercap/intel-rapl:0", &files);
        };
        counter("5000000");
        let mut sensors = LinuxSensors::open(tree.root_path());
        assert_eq!(sensors.read().energy_j, Some(0.0));
        counter("9500000");
        let reading = sensors.read();
        assert_eq!((reading.energy_j, reading.energy_source), (Some(4.5), Some(EnergySource::ProcessorCounters)));
        assert!(!sensors.absent().iter().any(|absent| absent.quantity == Quantity::Energy));
    }

    #[test]
    fn files_of_another_form_are_no_values() {
        let tree = Tree::new();
        for text in ["", "some avg10=x", "full avg10=1.00", "some avg10=900.00", "some avg10=-1.00"] {
            tree.write("/proc/pressure/memory", text);
            assert!(memory_pressure(&tree.root()).is_err(), "{text}");
        }
        for text in ["", "busy 1 2", "-1 0 0", "nan 0 0"] {
            tree.write("/proc/loadavg", text);
            assert!(load(&tree.root(), 1).is_err(), "{text}");
        }
        assert_eq!(available_bytes("MemAvailable:  99999999999999999999 kB"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_can_be_read() {
        let mut sensors = LinuxSensors::open(Path::new("/"));
        let reading = sensors.read();
        assert!(reading.load.is_some());
        for quantity in Quantity::ALL {
            let is_absent = sensors.absent().iter().any(|absent| absent.quantity == quantity);
            assert_ne!(quantity.is_in(&reading), is_absent, "{quantity:?} is there or its absence is explained");
        }
        assert!(sensors.read().monotonic_seconds >= reading.monotonic_seconds);
    }
}
