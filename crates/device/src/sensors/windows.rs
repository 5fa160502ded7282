//! Windows, through one PowerShell question to its management classes (CIM). The question takes about a second of a
//! processor, so it is asked once a minute.
//!
//! Not there: energy other than the battery's, load (Windows keeps no such number), memory pressure, and user activity,
//! which needs a call of the window system that only `unsafe` code can make.

use std::time::Duration;

use super::command::CommandReader;
use super::files::Found;
use super::gauge::BatteryMeter;
use super::linux::Absentees;
use super::{Absent, Battery, BatteryState, EnergySource, Quantity, Reading, Sensors};
use crate::Stopwatch;

const EVERY: Duration = Duration::from_secs(60);

/// Prints `key=value` lines; a class that is not there leaves its values empty.
const QUESTION: &str = "$ErrorActionPreference='SilentlyContinue'; \
    $b=Get-CimInstance Win32_Battery | Select-Object -First 1; \
    $f=Get-CimInstance -Namespace root/wmi BatteryFullChargedCapacity | Select-Object -First 1; \
    $s=Get-CimInstance -Namespace root/wmi BatteryStatus | Select-Object -First 1; \
    $t=Get-CimInstance -Namespace root/wmi MSAcpi_ThermalZoneTemperature | Select-Object -First 1; \
    $p=Get-CimInstance Win32_PerfFormattedData_Counters_ProcessorInformation -Filter \"Name='_Total'\"; \
    $o=Get-CimInstance Win32_OperatingSystem; \
    \"charge_percent=$($b.EstimatedChargeRemaining)\"; \"status=$($b.BatteryStatus)\"; \
    \"full_mwh=$($f.FullChargedCapacity)\"; \"remaining_mwh=$($s.RemainingCapacity)\"; \
    \"drawn_mw=$($s.DischargeRate)\"; \"online=$($s.PowerOnline)\"; \
    \"zone_tenths_k=$($t.CurrentTemperature)\"; \"performance_percent=$($p.PercentProcessorPerformance)\"; \
    \"limit_percent=$($p.PercentPerformanceLimit)\"; \"free_kb=$($o.FreePhysicalMemory)\"";

/// The sensors of a Windows machine.
#[derive(Debug)]
pub(super) struct WindowsSensors {
    watch: Stopwatch,
    answer: CommandReader,
    meter: BatteryMeter,
    absent: Vec<Absent>,
}

impl WindowsSensors {
    pub fn open() -> Self {
        let arguments = ["-NoProfile", "-NonInteractive", "-Command", QUESTION];
        Self {
            watch: Stopwatch::start(),
            answer: CommandReader::new("powershell", &arguments, EVERY),
            meter: BatteryMeter::default(),
            absent: Vec::new(),
        }
    }
}

impl Sensors for WindowsSensors {
    fn read(&mut self) -> Reading {
        let (mut reading, absent) = match self.answer.latest() {
            Ok(answer) => interpret(answer, &mut self.meter),
            Err(reason) => {
                let absent = |quantity| Absent { quantity, reason: reason.clone() };
                (Reading::default(), Quantity::ALL.map(absent).to_vec())
            }
        };
        self.absent = absent;
        reading.unix_seconds = crate::unix_time_seconds();
        reading.monotonic_seconds = self.watch.seconds();
        reading.local_minute = Some(crate::local_minute());
        reading
    }

    fn absent(&self) -> Vec<Absent> {
        self.absent.clone()
    }
}

fn interpret(answer: &str, meter: &mut BatteryMeter) -> (Reading, Vec<Absent>) {
    let text = |key: &str| answer.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str| text(key)?.trim().parse::<f64>().ok().filter(|number| *number >= 0.0);
    let mut reading = Reading::default();
    let mut absent = Absentees::default();

    reading.external_power =
        absent.note(Quantity::Charger, external_power(text("charge_percent"), text("status"), text("online")));
    let on_battery = reading.external_power == Some(false);
    let joules = |key: &str| number(key).map(|mwh| mwh * 3.6);
    let drawn_j = joules("remaining_mwh").and_then(|remaining_j| meter.read(remaining_j, on_battery));
    match drawn_j {
        Some(_) => {
            reading.energy_j = drawn_j;
            reading.energy_source = Some(EnergySource::BatteryGauge);
            reading.energy_resolution_j = meter.resolution_j();
        }
        None => absent
            .add(Quantity::Energy, "only the battery measures it, and only while no charger is connected".to_owned()),
    }
    let battery = match (text("charge_percent").is_none_or(|text| text.trim().is_empty()), number("charge_percent")) {
        (true, _) => Err("this machine has no battery".to_owned()),
        (_, Some(percent)) if percent <= 100.0 => Ok(Battery {
            charge: percent / 100.0,
            state: state(text("status"), on_battery),
            capacity_wh: number("full_mwh").map(|mwh| mwh / 1000.0),
            power_w: number("drawn_mw").filter(|_| on_battery).map(|mw| mw / 1000.0),
        }),
        _ => Err("the battery does not tell its charge".to_owned()),
    };
    reading.battery = absent.note(Quantity::Battery, battery);
    let temperature =
        number("zone_tenths_k").map(|tenths| tenths / 10.0 - 273.15).filter(|c| (-60.0..=150.0).contains(c));
    let temperature = temperature.ok_or_else(|| "Windows tells it to the administrator only".to_owned());
    reading.temperature_c = absent.note(Quantity::Temperature, temperature);
    let not_told = || "the processor's counters are not offered".to_owned();
    let limit = number("limit_percent").ok_or_else(not_told);
    reading.throttled = absent.note(Quantity::Throttling, limit.map(|percent| percent < 100.0));
    // Above 100 while the processor runs faster than its nominal clock.
    let performance = number("performance_percent").ok_or_else(not_told);
    reading.frequency_ratio = absent.note(Quantity::Frequency, performance.map(|percent| (percent / 100.0).min(1.0)));
    absent.add(Quantity::MemoryPressure, "Windows offers no such measure".to_owned());
    absent.add(Quantity::Load, "Windows offers no such measure".to_owned());
    absent.add(Quantity::UserActivity, "only the window system knows it, which this program does not ask".to_owned());
    reading.memory_available_bytes = number("free_kb").map(|kb| kb as u64 * 1024);
    (reading, absent.0)
}

/// `online` is exact; without it the code of the battery: 1, 4 and 5 discharge, the others are fed.
fn external_power(charge: Option<&str>, status: Option<&str>, online: Option<&str>) -> Found<bool> {
    let filled = |text: Option<&str>| text.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
    match (filled(charge), filled(status).as_deref(), filled(online).as_deref()) {
        (None, _, _) => Ok(true),
        (_, _, Some("True")) => Ok(true),
        (_, _, Some("False")) => Ok(false),
        (_, Some("1" | "4" | "5"), _) => Ok(false),
        (_, Some("2" | "3" | "6" | "7" | "8" | "9" | "11"), _) => Ok(true),
        _ => Err("the battery does not say whether a charger is connected".to_owned()),
    }
}

fn state(status: Option<&str>, on_battery: bool) -> BatteryState {
    match status.map(str::trim) {
        _ if on_battery => BatteryState::Discharging,
        Some("6" | "7" | "8" | "9") => BatteryState::Charging,
        Some("2" | "3" | "11") => BatteryState::Idle,
        _ => BatteryState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_laptop_on_its_battery() {
        let answer = "charge_percent=72\r\nstatus=1\r\nfull_mwh=50000\r\nremaining_mwh=36000\r\ndrawn_mw=9500\r\nonline=False\r\n\
                      zone_tenths_k=3232\r\nperformance_percent=143\r\nlimit_percent=100\r\nfree_kb=1024\r\n";
        let mut meter = BatteryMeter::default();
        let (reading, absent) = interpret(answer, &mut meter);
        let battery = reading.battery.unwrap();
        assert_eq!((battery.charge, battery.state), (0.72, BatteryState::Discharging));
        assert_eq!((battery.capacity_wh, battery.power_w), (Some(50.0), Some(9.5)));
        assert_eq!((reading.external_power, reading.energy_j), (Some(false), Some(0.0)));
        assert!((reading.temperature_c.unwrap() - 50.05).abs() < 1e-9);
        assert_eq!((reading.throttled, reading.frequency_ratio), (Some(false), Some(1.0)));
        assert_eq!(reading.memory_available_bytes, Some(1 << 20));
        let absent: Vec<_> = absent.iter().map(|absent| absent.quantity).collect();
        assert_eq!(absent, [Quantity::MemoryPressure, Quantity::Load, Quantity::UserActivity]);
        let (later, _) = interpret(&answer.replace("=36000", "=35000"), &mut meter);
        assert_eq!(later.energy_j, Some(3600.0));
    }

    #[test]
    fn a_desktop_has_no_battery_and_a_charging_laptop_no_energy() {
        let empty = "charge_percent=\nstatus=\nfull_mwh=\nremaining_mwh=\ndrawn_mw=\nonline=\nzone_tenths_k=\n\
                     performance_percent=\nlimit_percent=\nfree_kb=\n";
        let (reading, absent) = interpret(empty, &mut BatteryMeter::default());
        assert_eq!((reading.external_power, reading.battery), (Some(true), None));
        assert!(absent.iter().any(|absent| absent.reason == "this machine has no battery"));
        for quantity in Quantity::ALL {
            assert_ne!(
                quantity.is_in(&reading),
                absent.iter().any(|absent| absent.quantity == quantity),
                "{quantity:?}"
            );
        }
        let charging = "charge_percent=50\nstatus=6\nremaining_mwh=100\nonline=True\n";
        let (reading, _) = interpret(charging, &mut BatteryMeter::default());
        assert_eq!((reading.external_power, reading.energy_j), (Some(true), None));
        assert_eq!(reading.battery.map(|battery| battery.state), Some(BatteryState::Charging));
    }
}
