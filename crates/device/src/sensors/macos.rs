//! macOS, through the programs that come with it: `pmset`, `ioreg`, `sysctl`. None needs the administrator, and none
//! tells the temperature or the energy of the processor: those are only for `powermetrics`, as administrator.

use std::time::Duration;

use super::command::CommandReader;
use super::files::Found;
use super::gauge::BatteryMeter;
use super::linux::Absentees;
use super::{Absent, Battery, BatteryState, EnergySource, Quantity, Reading, Sensors};
use crate::Stopwatch;

const EVERY: Duration = Duration::from_secs(10);

/// The sensors of a Mac.
#[derive(Debug)]
pub(super) struct MacSensors {
    watch: Stopwatch,
    power: CommandReader,
    battery: CommandReader,
    heat: CommandReader,
    system: CommandReader,
    input: CommandReader,
    meter: BatteryMeter,
    absent: Vec<Absent>,
}

impl MacSensors {
    pub fn open() -> Self {
        let reader = |program, arguments: &[&str]| CommandReader::new(program, arguments, EVERY);
        Self {
            watch: Stopwatch::start(),
            power: reader("pmset", &["-g", "batt"]),
            battery: reader("ioreg", &["-rn", "AppleSmartBattery"]),
            heat: reader("pmset", &["-g", "therm"]),
            system: reader("sysctl", &["vm.loadavg", "kern.memorystatus_vm_pressure_level", "hw.logicalcpu"]),
            input: reader("ioreg", &["-c", "IOHIDSystem", "-d", "4"]),
            meter: BatteryMeter::default(),
            absent: Vec::new(),
        }
    }
}

impl Sensors for MacSensors {
    fn read(&mut self) -> Reading {
        let mut reading = Reading {
            unix_seconds: crate::unix_time_seconds(),
            monotonic_seconds: self.watch.seconds(),
            local_minute: Some(crate::local_minute()),
            ..Reading::default()
        };
        let mut absent = Absentees::default();
        let details = self.battery.latest().map(BatteryDetails::parse).unwrap_or_default();
        let power = self.power.latest().map(str::to_owned);
        reading.external_power =
            absent.note(Quantity::Charger, power.as_deref().map_err(Clone::clone).and_then(external_power));
        let on_battery = reading.external_power == Some(false);
        let drawn_j = details.remaining_j.and_then(|remaining_j| self.meter.read(remaining_j, on_battery));
        match drawn_j {
            Some(_) => {
                reading.energy_j = drawn_j;
                reading.energy_source = Some(EnergySource::BatteryGauge);
                reading.energy_resolution_j = self.meter.resolution_j();
            }
            None => absent.add(
                Quantity::Energy,
                "only the battery measures it, and only while no charger is connected".to_owned(),
            ),
        }
        let battery = power.and_then(|text| battery(&text, &details));
        reading.battery = absent.note(Quantity::Battery, battery);
        absent.add(Quantity::Temperature, "macOS tells it to the administrator only".to_owned());
        let limit = self.heat.latest().and_then(speed_limit);
        reading.throttled = absent.note(Quantity::Throttling, limit.clone().map(|limit| limit < 1.0));
        reading.frequency_ratio = absent.note(Quantity::Frequency, limit);
        let system = self.system.latest().map(str::to_owned);
        reading.memory_pressure =
            absent.note(Quantity::MemoryPressure, system.clone().and_then(|text| memory_pressure(&text)));
        reading.load = absent.note(Quantity::Load, system.and_then(|text| load(&text)));
        reading.user_idle_s = absent.note(Quantity::UserActivity, self.input.latest().and_then(idle_seconds));
        self.absent = absent.0;
        reading
    }

    fn absent(&self) -> Vec<Absent> {
        self.absent.clone()
    }
}

/// `Now drawing from 'AC Power'`
fn external_power(pmset: &str) -> Found<bool> {
    let from = |source: &str| pmset.contains(&format!("drawing from '{source}'"));
    match (from("AC Power"), from("Battery Power") || from("UPS Power")) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err("`pmset -g batt` does not say what feeds the machine".to_owned()),
    }
}

/// ` -InternalBattery-0 (id=4653155) 85%; discharging; 3:24 remaining present: true`
fn battery(pmset: &str, details: &BatteryDetails) -> Found<Battery> {
    let line = pmset.lines().find(|line| line.contains("InternalBattery")).ok_or("this machine has no battery")?;
    let mut parts = line.split(';').map(str::trim);
    let percent = parts.next().and_then(|part| part.split_whitespace().last()?.strip_suffix('%')?.parse::<f64>().ok());
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent)).ok_or("`pmset -g batt` tells no charge")?;
    let state = match parts.next().unwrap_or_default() {
        "charging" | "finishing charge" => BatteryState::Charging,
        "discharging" => BatteryState::Discharging,
        "charged" | "AC attached" => BatteryState::Idle,
        _ => BatteryState::Unknown,
    };
    Ok(Battery { charge: percent / 100.0, state, capacity_wh: details.capacity_wh, power_w: details.power_w })
}

/// What the battery's own registry entry adds.
#[derive(Debug, Default, PartialEq)]
struct BatteryDetails {
    remaining_j: Option<f64>,
    capacity_wh: Option<f64>,
    power_w: Option<f64>,
}

impl BatteryDetails {
    /// Milliampere hours, millivolts, milliamperes. A negative current is written as the 64-bit complement.
    fn parse(ioreg: &str) -> Self {
        let whole = |key: &str| registry_value(ioreg, key)?.parse::<i128>().ok();
        let number = |key: &str| whole(key).map(|value| value as f64).filter(|value| (0.0..1e9).contains(value));
        let volts = number("Voltage").map(|mv| mv / 1000.0);
        let watt_hours = |key: &str| Some(number(key)? / 1000.0 * volts?);
        let milliamperes = whole("InstantAmperage").or_else(|| whole("Amperage")).map(|value| value as u64 as i64);
        Self {
            remaining_j: watt_hours("AppleRawCurrentCapacity").map(|wh| wh * 3600.0),
            capacity_wh: watt_hours("AppleRawMaxCapacity"),
            power_w: milliamperes.zip(volts).map(|(ma, volts)| (ma as f64 / 1000.0 * volts).abs()),
        }
    }
}

/// The value of a line such as `    "Voltage" = 12345`.
fn registry_value<'a>(ioreg: &'a str, key: &str) -> Option<&'a str> {
    let start = format!("\"{key}\" = ");
    ioreg
        .lines()
        .find_map(|line| line.trim_start_matches([' ', '|', '+', '-']).strip_prefix(start.as_str()))
        .map(str::trim)
}

/// `CPU_Speed_Limit  = 100`; processors of Apple's own have no such line.
fn speed_limit(pmset: &str) -> Found<f64> {
    let line =
        pmset.lines().find(|line| line.contains("CPU_Speed_Limit")).ok_or("this processor does not report it")?;
    let percent = line.split('=').nth(1).and_then(|value| value.trim().parse::<f64>().ok());
    let ratio = percent.map(|percent| percent / 100.0).filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "`pmset -g therm` is not of the expected form".to_owned())
}

/// The value of a line such as `kern.memorystatus_vm_pressure_level: 1`.
fn system_value<'a>(sysctl: &'a str, key: &str) -> Found<&'a str> {
    let value = sysctl.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value.map(str::trim).ok_or_else(|| format!("`sysctl` does not tell {key}"))
}

/// macOS has three levels (1 normal, 2 warning, 4 critical) where Linux has a share of time: 0, a half and 1 here.
fn memory_pressure(sysctl: &str) -> Found<f64> {
    match system_value(sysctl, "kern.memorystatus_vm_pressure_level")? {
        "1" => Ok(0.0),
        "2" => Ok(0.5),
        "4" => Ok(1.0),
        other => Err(format!("memory pressure has the unknown level `{other}`")),
    }
}

/// `vm.loadavg: { 1.50 1.45 1.60 }`
fn load(sysctl: &str) -> Found<f64> {
    let first = system_value(sysctl, "vm.loadavg")?.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok());
    let processors = system_value(sysctl, "hw.logicalcpu")?.parse::<f64>().ok().filter(|count| *count >= 1.0);
    let load = first.zip(processors).map(|(load, processors)| load / processors);
    load.ok_or_else(|| "`sysctl vm.loadavg` is not of the expected form".to_owned())
}

/// `"HIDIdleTime" = 123456789`, in nanoseconds.
fn idle_seconds(ioreg: &str) -> Found<f64> {
    let nanoseconds = registry_value(ioreg, "HIDIdleTime").and_then(|value| value.parse::<f64>().ok());
    nanoseconds.map(|ns| ns * 1e-9).ok_or_else(|| "`ioreg` does not tell HIDIdleTime".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON_BATTERY: &str = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=4653155)\t85%; discharging; 3:24 remaining present: true\n";
    const CHARGED: &str =
        "Now drawing from 'AC Power'\n -InternalBattery-0 (id=4653155)\t100%; charged; 0:00 remaining present: true\n";
    const DESKTOP: &str = "Now drawing from 'AC Power'\n";
    const REGISTRY: &str = "+-o AppleSmartBattery  <class AppleSmartBattery, id 0x100000abc>\n    {\n      \"AppleRawCurrentCapacity\" = 4000\n      \"AppleRawMaxCapacity\" = 5000\n      \"Voltage\" = 12000\n      \"InstantAmperage\" = 18446744073709550616\n      \"ExternalConnected\" = No\n    }\n";

    #[test]
    fn battery_and_charger() {
        let details = BatteryDetails::parse(REGISTRY);
        let on_battery = battery(ON_BATTERY, &details).unwrap();
        assert_eq!((on_battery.charge, on_battery.state), (0.85, BatteryState::Discharging));
        assert_eq!(on_battery.capacity_wh, Some(60.0));
        // 2^64 - 1000 mA: a thousand milliamperes out of the battery, at 12 V.
        assert_eq!(on_battery.power_w, Some(12.0));
        assert_eq!(details.remaining_j, Some(48.0 * 3600.0));
        assert_eq!((external_power(ON_BATTERY), external_power(DESKTOP)), (Ok(false), Ok(true)));
        assert_eq!(battery(CHARGED, &details).unwrap().state, BatteryState::Idle);
        assert_eq!(battery(DESKTOP, &details), Err("this machine has no battery".to_owned()));
        assert!(external_power("").is_err());
        assert!(battery(&ON_BATTERY.replace("85%", "850%"), &details).is_err());
        assert_eq!(BatteryDetails::parse("no such class"), BatteryDetails::default());
    }

    #[test]
    fn heat_memory_load_and_idle_time() {
        assert_eq!(speed_limit("CPU_Scheduler_Limit \t= 100\n\tCPU_Speed_Limit \t= 62\n"), Ok(0.62));
        assert!(speed_limit("Note: No thermal warning level has been recorded\n").is_err());
        let sysctl = "vm.loadavg: { 4.00 1.45 1.60 }\nkern.memorystatus_vm_pressure_level: 2\nhw.logicalcpu: 8\n";
        assert_eq!((memory_pressure(sysctl), load(sysctl)), (Ok(0.5), Ok(0.5)));
        assert!(memory_pressure("kern.memorystatus_vm_pressure_level: 3").is_err());
        assert!(load("vm.loadavg: { }").is_err());
        let ioreg = "  | |   {\n  | |     \"HIDIdleTime\" = 2500000000\n";
        assert_eq!(idle_seconds(ioreg), Ok(2.5));
        assert!(idle_seconds("").is_err());
    }
}
