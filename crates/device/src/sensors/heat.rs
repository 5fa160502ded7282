//! Heat and what the system does against it: `/sys/class/thermal`, `/sys/class/hwmon`, cpufreq, throttle counters.

use super::files::{Found, Root};

const ZONES: &str = "/sys/class/thermal";
const MONITORS: &str = "/sys/class/hwmon";
const PROCESSORS: &str = "/sys/devices/system/cpu";
/// More processors than this are not asked one by one: each question costs microseconds, and they share their heat.
const PROCESSORS_ASKED: usize = 64;
/// A throttle event within so many seconds counts as throttling now.
const THROTTLE_EVENT_SECONDS: f64 = 30.0;

/// The hottest place that belongs to the processor, in degrees Celsius.
pub(super) fn temperature_c(root: &Root) -> Found<f64> {
    let zones = root.names(ZONES).unwrap_or_default().into_iter().filter(|name| name.starts_with("thermal_zone"));
    let zones = zones.flat_map(|name| {
        let kind = root.text(&format!("{ZONES}/{name}/type")).unwrap_or_default();
        Some((nearness(&kind)?, celsius(root, &format!("{ZONES}/{name}/temp"))?))
    });
    let monitors = root.names(MONITORS).unwrap_or_default().into_iter().flat_map(|name| {
        let folder = format!("{MONITORS}/{name}");
        let kind = root.text(&format!("{folder}/name")).unwrap_or_default();
        let inputs = root.names(&folder).unwrap_or_default();
        let inputs = inputs.into_iter().filter(|file| file.starts_with("temp") && file.ends_with("_input"));
        let near = nearness(&kind).filter(|near| *near == Nearness::Processor);
        inputs.filter_map(move |file| Some((near?, celsius(root, &format!("{folder}/{file}"))?))).collect::<Vec<_>>()
    });
    let found: Vec<(Nearness, f64)> = zones.chain(monitors).collect();
    let nearest = found.iter().map(|(near, _)| *near).min().ok_or("no thermal sensor of the processor is offered")?;
    let of_nearest = found.iter().filter(|(near, _)| *near == nearest).map(|(_, celsius)| *celsius);
    Ok(of_nearest.fold(f64::NEG_INFINITY, f64::max))
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Nearness {
    Processor,
    Board,
}

/// How near a sensor of this name is to the processor; none if it measures something else.
fn nearness(kind: &str) -> Option<Nearness> {
    let kind = kind.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| kind.contains(word));
    // x86, Intel and AMD drivers, then the names that boards and phones give their zones.
    if has(&["x86_pkg_temp", "coretemp", "k10temp", "zenpower", "cpu", "soc", "package"]) {
        return Some(Nearness::Processor);
    }
    has(&["acpitz", "thermal-fan-est", "board", "mainboard"]).then_some(Nearness::Board)
}

/// The kernel counts in thousandths of a degree. Dead sensors say 0 or something impossible.
fn celsius(root: &Root, path: &str) -> Option<f64> {
    root.number(path).map(|thousandths| thousandths / 1000.0).filter(|c| *c != 0.0 && (-60.0..=150.0).contains(c))
}

/// Clock of the fastest core now as a part of the fastest it can have.
pub(super) fn frequency_ratio(root: &Root) -> Found<f64> {
    let ratios = processors(root).filter_map(|name| {
        let number = |file: &str| root.number(&format!("{PROCESSORS}/{name}/cpufreq/{file}"));
        Some(number("scaling_cur_freq")? / number("cpuinfo_max_freq").filter(|max| *max > 0.0)?)
    });
    let fastest = ratios.fold(None, |best: Option<f64>, ratio| Some(best.map_or(ratio, |best| best.max(ratio))));
    fastest.map(|ratio| ratio.clamp(0.0, 1.0)).ok_or_else(|| "clock frequencies are not offered".to_owned())
}

/// `cpu0`, `cpu1`, ... but not `cpufreq`.
fn processors(root: &Root) -> impl Iterator<Item = String> {
    let names = root.names(PROCESSORS).unwrap_or_default();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    names.into_iter().filter(move |name| name.strip_prefix("cpu").is_some_and(is_number)).take(PROCESSORS_ASKED)
}

/// What the system says of its own throttling: counted events, or cooling devices that hold the processor back.
#[derive(Debug, Default)]
pub(super) struct ThrottleFlag {
    events: Option<f64>,
    last_event_s: Option<f64>,
}

impl ThrottleFlag {
    pub fn read(&mut self, root: &Root, now_s: f64) -> Found<bool> {
        let counted = throttle_events(root);
        if let (Some(before), Some(now)) = (self.events, counted)
            && now > before
        {
            self.last_event_s = Some(now_s);
        }
        self.events = counted;
        let recent = self.last_event_s.is_some_and(|event_s| now_s - event_s <= THROTTLE_EVENT_SECONDS);
        match (counted, processor_cooling(root)) {
            (None, None) => Err("the system does not report throttling".to_owned()),
            (_, cooling) => Ok(recent || cooling == Some(true)),
        }
    }
}

/// Events since the start of the system, all processors together.
fn throttle_events(root: &Root) -> Option<f64> {
    let files = ["core_throttle_count", "package_throttle_count"];
    let counts = processors(root)
        .flat_map(|name| files.map(|file| root.number(&format!("{PROCESSORS}/{name}/thermal_throttle/{file}"))));
    counts.flatten().fold(None, |sum: Option<f64>, count| Some(sum.unwrap_or(0.0) + count))
}

/// Whether a cooling device of the processor is at work; none if there is no such device.
fn processor_cooling(root: &Root) -> Option<bool> {
    let names = root.names(ZONES).unwrap_or_default().into_iter().filter(|name| name.starts_with("cooling_device"));
    let states = names.filter_map(|name| {
        let kind = root.text(&format!("{ZONES}/{name}/type")).unwrap_or_default().to_lowercase();
        let of_processor = kind == "processor" || kind.contains("cpufreq") || kind.contains("cpu-");
        of_processor.then(|| root.number(&format!("{ZONES}/{name}/cur_state")))?
    });
    states.fold(None, |any: Option<bool>, state| Some(any.unwrap_or(false) || state > 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::fake::Tree;

    fn zone(tree: &Tree, number: usize, kind: &str, temperature: &str) {
        tree.write_all(&format!("{ZONES}/thermal_zone{number}"), &[("type", kind), ("temp", temperature)]);
    }

    #[test]
    fn the_processor_counts_before_the_board_and_dead_sensors_never() {
        let tree = Tree::new();
        assert!(temperature_c(&tree.root()).unwrap_err().contains("no thermal sensor"));
        zone(&tree, 0, "acpitz", "45000");
        zone(&tree, 1, "iwlwifi_1", "71000");
        zone(&tree, 2, "battery", "99000");
        assert_eq!(temperature_c(&tree.root()), Ok(45.0));
        zone(&tree, 3, "x86_pkg_temp", "0");
        zone(&tree, 4, "cpu-1-thermal", "-274000");
        assert_eq!(temperature_c(&tree.root()), Ok(45.0), "sensors without a plausible value are passed over");
        zone(&tree, 3, "x86_pkg_temp", "38500");
        assert_eq!(temperature_c(&tree.root()), Ok(38.5));
        tree.write_all(&format!("{MONITORS}/hwmon2"), &[("name", "k10temp"), ("temp1_input", "61250")]);
        tree.write_all(&format!("{MONITORS}/hwmon3"), &[("name", "nvme"), ("temp1_input", "80000")]);
        assert_eq!(temperature_c(&tree.root()), Ok(61.25));
    }

    #[test]
    fn the_fastest_core_gives_the_frequency() {
        let tree = Tree::new();
        assert!(frequency_ratio(&tree.root()).is_err());
        for (cpu, now) in [("cpu0", "800000"), ("cpu1", "3000000"), ("cpu10", "1000000")] {
            let files = [("scaling_cur_freq", now), ("cpuinfo_max_freq", "4000000")];
            tree.write_all(&format!("{PROCESSORS}/{cpu}/cpufreq"), &files);
        }
        tree.write(&format!("{PROCESSORS}/cpufreq/boost"), "1");
        assert_eq!(frequency_ratio(&tree.root()), Ok(0.75));
    }

    #[test]
    fn throttling_is_a_recent_event_or_a_cooling_device_at_work() {
        let tree = Tree::new();
        let mut flag = ThrottleFlag::default();
        assert!(flag.read(&tree.root(), 0.0).is_err());
        let events = |count: &str| {
            tree.write(&format!("{PROCESSORS}/cpu3/thermal_throttle/package_throttle_count"), count);
        };
        events("1200");
        assert_eq!(flag.read(&tree.root(), 1.0), Ok(false), "events before the run do not count");
        events("1201");
        assert_eq!(flag.read(&tree.root(), 2.0), Ok(true));
        assert_eq!(flag.read(&tree.root(), 20.0), Ok(true));
        assert_eq!(flag.read(&tree.root(), 60.0), Ok(false));
        tree.write_all(&format!("{ZONES}/cooling_device0"), &[("type", "Processor"), ("cur_state", "0")]);
        tree.write_all(&format!("{ZONES}/cooling_device1"), &[("type", "Fan"), ("cur_state", "1")]);
        assert_eq!(flag.read(&tree.root(), 61.0), Ok(false), "a fan holds nothing back");
        tree.write(&format!("{ZONES}/cooling_device0/cur_state"), "3");
        assert_eq!(flag.read(&tree.root(), 62.0), Ok(true));
    }
}
