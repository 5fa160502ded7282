//! How the machine is doing while it works: energy, battery, heat, memory pressure, load, the person in front of it.
//!
//! Every value is optional. What a machine cannot tell is named once, with the reason, by [`Sensors::absent`].
//! A host application that knows better than the files of the system (a phone) implements [`Sensors`] itself.

mod activity;
mod command;
#[cfg(test)]
mod fake;
mod files;
pub(crate) mod gauge;
mod heat;
mod linux;
mod macos;
mod power_supply;
mod rapl;
mod windows;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use linux::LinuxSensors;

/// What the sensors said at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reading {
    /// The calendar, seconds since 1970 UTC. May jump and run backwards.
    pub unix_seconds: f64,
    /// Seconds since the sensors were opened, by a clock that never runs backwards.
    pub monotonic_seconds: f64,
    /// Minutes since local midnight, 0 to 1439.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_minute: Option<u16>,
    /// Joules used since the sensors were opened, idle power included. It never falls. None while nothing measures it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_source: Option<EnergySource>,
    /// The smallest change that the source of `energy_j` has shown: a battery gauge moves in coarse steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_resolution_j: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub battery: Option<Battery>,
    /// Whether a charger or the mains feed the machine. A machine that has no battery is on the mains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_power: Option<bool>,
    /// The hottest place that belongs to the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<f64>,
    /// Whether the system says that it slows itself down. It may say so late or never: see [`crate::Slowdown`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled: Option<bool>,
    /// Clock frequency of the fastest core now, as a part of what it can reach, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_ratio: Option<f64>,
    /// Part of the last ten seconds in which something waited for memory, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_pressure: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_available_bytes: Option<u64>,
    /// Tasks that ran or wanted to run in the last minute, for each processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// Seconds since the person last touched the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_idle_s: Option<f64>,
}

/// All batteries that feed the machine, taken as one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Battery {
    /// Part of a full charge, 0 to 1.
    pub charge: f64,
    pub state: BatteryState,
    /// Energy of a full charge as the battery is now, in watt hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_wh: Option<f64>,
    /// Power that flows out of the battery now (or into it, while it charges), in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatteryState {
    Charging,
    Discharging,
    /// Neither charged nor drained: full, or held at a limit.
    Idle,
    Unknown,
}

/// What `energy_j` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnergySource {
    /// Processor packages and memory, by the processor's own counters (RAPL); without screen, disks and losses.
    ProcessorCounters,
    /// The whole machine, by the falling charge of its battery.
    BatteryGauge,
    /// A simulated device.
    Simulation,
    /// Whatever the host application measures.
    Host,
}

/// Something that sensors may tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    Energy,
    Battery,
    Charger,
    Temperature,
    Throttling,
    Frequency,
    MemoryPressure,
    Load,
    UserActivity,
}

impl Quantity {
    pub const ALL: [Quantity; 9] = [
        Quantity::Energy,
        Quantity::Battery,
        Quantity::Charger,
        Quantity::Temperature,
        Quantity::Throttling,
        Quantity::Frequency,
        Quantity::MemoryPressure,
        Quantity::Load,
        Quantity::UserActivity,
    ];

    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Energy => "energy",
            Quantity::Battery => "battery",
            Quantity::Charger => "charger",
            Quantity::Temperature => "temperature",
            Quantity::Throttling => "throttling",
            Quantity::Frequency => "clock frequency",
            Quantity::MemoryPressure => "memory pressure",
            Quantity::Load => "load",
            Quantity::UserActivity => "user activity",
        }
    }

    /// Whether `reading` has it.
    pub fn is_in(self, reading: &Reading) -> bool {
        match self {
            Quantity::Energy => reading.energy_j.is_some(),
            Quantity::Battery => reading.battery.is_some(),
            Quantity::Charger => reading.external_power.is_some(),
            Quantity::Temperature => reading.temperature_c.is_some(),
            Quantity::Throttling => reading.throttled.is_some(),
            Quantity::Frequency => reading.frequency_ratio.is_some(),
            Quantity::MemoryPressure => reading.memory_pressure.is_some(),
            Quantity::Load => reading.load.is_some(),
            Quantity::UserActivity => reading.user_idle_s.is_some(),
        }
    }
}

/// Something that cannot be read here, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Absent {
    pub quantity: Quantity,
    pub reason: String,
}

/// Where readings come from: the system, a host application, a simulation.
pub trait Sensors {
    /// What is known now. Called after every step of training, so it must take far less time than one.
    fn read(&mut self) -> Reading;

    /// What the last reading lacks and why, in the order of [`Quantity::ALL`].
    fn absent(&self) -> Vec<Absent> {
        Vec::new()
    }

    /// Lets time pass while training is on hold. Simulated devices let theirs pass; a host may return early.
    fn wait(&mut self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// Sensors that know nothing but the time.
#[derive(Debug, Default)]
pub struct NoSensors {
    watch: Option<crate::Stopwatch>,
}

impl Sensors for NoSensors {
    fn read(&mut self) -> Reading {
        let watch = self.watch.get_or_insert_with(crate::Stopwatch::start);
        Reading {
            unix_seconds: crate::unix_time_seconds(),
            monotonic_seconds: watch.seconds(),
            local_minute: Some(crate::local_minute()),
            ..Reading::default()
        }
    }
    fn absent(&self) -> Vec<Absent> {
        let reason = "no sensors were given to this run";
        Quantity::ALL.map(|quantity| Absent { quantity, reason: reason.to_owned() }).to_vec()
    }
}

/// The sensors of this machine. Linux is read in full; macOS and Windows as far as their own programs tell; elsewhere
/// only the time is known.
pub fn system_sensors() -> Box<dyn Sensors + Send> {
    // Every system's part is ordinary code and is compiled and tested on all of them.
    match std::env::consts::OS {
        "linux" | "android" => Box::new(LinuxSensors::open(std::path::Path::new("/"))),
        "macos" => Box::new(macos::MacSensors::open()),
        "windows" => Box::new(windows::WindowsSensors::open()),
        _ => Box::<NoSensors>::default(),
    }
}
