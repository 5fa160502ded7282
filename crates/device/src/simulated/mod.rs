//! Devices that exist as a few equations: they heat up, slow down, drain, are unplugged and cut off, on a clock of their
//! own. They drive the governor's tests, and show in seconds what hours on a device would.
//!
//! Heat flows from the chip into the body and from the body into the air (two thermal masses). The system lowers the
//! clock as the chip gets hotter, in steps, and raises it again only slowly. Work is proportional to the clock, power to a
//! power of it, as voltage scaling has it.
//!
//! To add a device, add a function in `devices.rs` and a line in [`DEVICES`].

mod devices;
mod experiments;

use std::time::Duration;

use crate::sensors::gauge::BatteryMeter;
use crate::{Battery, BatteryState, EnergySource, Reading, Sensors};

pub use devices::{DEVICES, DeviceModel};
pub use experiments::{
    BlockRate, Probe, SCHEDULES, Schedule, SustainedPoint, SustainedRun, recovery, schedule_blocks, sustained,
};

/// Seconds of one step of the simulation: far below the time constants of the chip (a minute or more).
const TICK_SECONDS: f64 = 0.5;

/// Something that happens to a device at a time of its own clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    PlugIn,
    Unplug,
    /// The person begins to use it, or leaves.
    UserComes,
    UserLeaves,
    /// The system's calendar is set forward, or back.
    ClockJump {
        seconds: f64,
    },
    MemoryPressure {
        share: f64,
    },
    /// The power is gone from one instant to the next; work in progress is lost.
    PowerCut,
}

/// A piece of work ended early: the power was cut, or the battery is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the simulated device went off")]
pub struct PowerLoss;

/// A device in a state.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    model: &'static DeviceModel,
    seconds: f64,
    unix_offset: f64,
    minute_at_start: f64,
    chip_c: f64,
    body_c: f64,
    /// What the system allows of the highest clock, 0 to 1.
    allowed: f64,
    battery_j: f64,
    plugged: bool,
    user_present: bool,
    user_left_at: f64,
    memory_pressure: f64,
    /// Whether the system shows its thermal warning, which follows the body and not the speed.
    warns: bool,
    energy_j: f64,
    meter: BatteryMeter,
    events: Vec<(f64, Event)>,
}

impl SimulatedDevice {
    /// A cold device with a full battery at midnight, not plugged in, nobody near.
    pub fn new(model: &'static DeviceModel) -> Self {
        Self {
            model,
            seconds: 0.0,
            unix_offset: 1.8e9,
            minute_at_start: 0.0,
            chip_c: model.air_c,
            body_c: model.air_c,
            allowed: 1.0,
            battery_j: model.battery_j,
            plugged: false,
            user_present: false,
            user_left_at: f64::NEG_INFINITY,
            memory_pressure: 0.0,
            warns: false,
            energy_j: 0.0,
            meter: BatteryMeter::default(),
            events: Vec::new(),
        }
    }
    pub fn plugged_in(self) -> Self {
        Self { plugged: true, ..self }
    }
    /// `charge` is a part of a full one.
    pub fn charged_to(self, charge: f64) -> Self {
        Self { battery_j: charge * self.model.battery_j, ..self }
    }
    pub fn at_time(self, hour: u16, minute: u16) -> Self {
        Self { minute_at_start: f64::from(hour * 60 + minute), ..self }
    }
    /// Adds an event `seconds` after the start. What is due already has happened when the sensors are first read; a power
    /// cut ends the first work.
    pub fn with(mut self, seconds: f64, event: Event) -> Self {
        if seconds <= self.seconds && event != Event::PowerCut {
            self.apply(event);
            return self;
        }
        self.events.push((seconds, event));
        self.events.sort_by(|a, b| a.0.total_cmp(&b.0));
        self
    }

    pub fn model(&self) -> &'static DeviceModel {
        self.model
    }
    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }
    /// Joules that work took, without what the device draws when idle.
    pub fn net_energy_j(&self) -> f64 {
        self.energy_j - self.model.idle_w * self.seconds
    }
    pub fn charge(&self) -> f64 {
        self.battery_j / self.model.battery_j
    }
    pub fn tokens_per_second(&self) -> f64 {
        self.model.tokens_per_second_cold * self.clock()
    }

    /// Does work of `tokens` tokens. Seconds that it took.
    pub fn work(&mut self, tokens: f64) -> Result<f64, PowerLoss> {
        let started = self.seconds;
        let mut left = tokens;
        while left > 0.0 {
            let rate = self.tokens_per_second();
            let seconds = (left / rate).min(TICK_SECONDS);
            left -= rate * seconds;
            // What rounding leaves is no work.
            if left < 1e-9 * tokens {
                left = 0.0;
            }
            self.tick(seconds, true)?;
        }
        Ok(self.seconds - started)
    }

    /// Lets time pass without work.
    pub fn rest(&mut self, seconds: f64) -> Result<(), PowerLoss> {
        let mut left = seconds;
        while left > 0.0 {
            let tick = left.min(TICK_SECONDS);
            left -= tick;
            self.tick(tick, false)?;
        }
        Ok(())
    }

    /// The clock in steps as the system sets it, 0 to 1.
    fn clock(&self) -> f64 {
        let steps = f64::from(self.model.clock_steps);
        (self.allowed * steps - 1e-9).ceil() / steps
    }

    fn tick(&mut self, seconds: f64, works: bool) -> Result<(), PowerLoss> {
        let model = self.model;
        let work_w = if works { model.work_w * self.clock().powf(model.power_exponent) } else { 0.0 };
        let charging = self.plugged && self.battery_j < model.battery_j;
        let heat_w = work_w + if self.plugged { model.charger_heat_w } else { 0.0 };
        let to_body_w = (self.chip_c - self.body_c) / model.chip_to_body_k_per_w;
        let to_air_w = (self.body_c - model.air_c) / model.body_to_air_k_per_w;
        self.chip_c += seconds * (heat_w - to_body_w) / model.chip_j_per_k;
        self.body_c += seconds * (to_body_w - to_air_w) / model.body_j_per_k;
        self.energy_j += seconds * (work_w + model.idle_w);
        let into_battery_w = match (self.plugged, charging) {
            (true, true) => model.charger_w,
            (true, false) => 0.0,
            _ => -(work_w + model.idle_w),
        };
        self.battery_j = (self.battery_j + seconds * into_battery_w).min(model.battery_j);
        let target = 1.0 - (self.chip_c - model.slows_from_c) / model.slows_over_k;
        let target = target.clamp(model.clock_min, 1.0);
        self.allowed = target
            .clamp(self.allowed - seconds * model.clock_fall_per_s, self.allowed + seconds * model.clock_rise_per_s);
        self.warns = match self.warns {
            true => self.body_c > model.warning_until_body_c,
            false => self.body_c > model.warning_from_body_c,
        };
        self.seconds += seconds;
        self.happen()?;
        if self.charge() <= model.off_at_charge { Err(PowerLoss) } else { Ok(()) }
    }

    /// Everything that is due.
    fn happen(&mut self) -> Result<(), PowerLoss> {
        while self.events.first().is_some_and(|(at, _)| *at <= self.seconds) {
            match self.events.remove(0).1 {
                Event::PowerCut => return Err(PowerLoss),
                event => self.apply(event),
            }
        }
        Ok(())
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::PlugIn => self.plugged = true,
            Event::Unplug => self.plugged = false,
            Event::UserComes => self.user_present = true,
            Event::UserLeaves => (self.user_present, self.user_left_at) = (false, self.seconds),
            Event::ClockJump { seconds } => self.unix_offset += seconds,
            Event::MemoryPressure { share } => self.memory_pressure = share,
            // Whoever works or rests notices.
            Event::PowerCut => {}
        }
    }

    /// The charge as the device shows it: in coarse steps, but for the last percent.
    fn shown_charge(&self) -> f64 {
        let step = self.model.gauge_step;
        let shown = ((self.charge() + 1e-9) / step).floor() * step;
        if shown == 0.0 { self.model.off_at_charge } else { shown }
    }
}

impl Sensors for SimulatedDevice {
    fn read(&mut self) -> Reading {
        let shown = self.shown_charge();
        let drawn_j = self.meter.read(shown * self.model.battery_j, !self.plugged);
        let local_seconds = self.minute_at_start * 60.0 + self.seconds + (self.unix_offset - 1.8e9);
        let state = match (self.plugged, self.battery_j < self.model.battery_j) {
            (true, true) => BatteryState::Charging,
            (true, false) => BatteryState::Idle,
            _ => BatteryState::Discharging,
        };
        Reading {
            unix_seconds: self.unix_offset + self.seconds,
            monotonic_seconds: self.seconds,
            local_minute: Some((local_seconds / 60.0).rem_euclid(1440.0) as u16),
            energy_j: drawn_j,
            energy_source: Some(EnergySource::Simulation),
            energy_resolution_j: self.meter.resolution_j(),
            battery: Some(Battery {
                charge: shown,
                state,
                capacity_wh: Some(self.model.battery_j / 3600.0),
                power_w: None,
            }),
            external_power: Some(self.plugged),
            temperature_c: Some(self.chip_c),
            throttled: Some(self.warns),
            frequency_ratio: Some(self.clock()),
            memory_pressure: Some(self.memory_pressure),
            memory_available_bytes: None,
            load: Some(0.0),
            user_idle_s: Some(if self.user_present { 0.0 } else { self.seconds - self.user_left_at }),
        }
    }

    /// A device that goes off while it waits stays off; whoever simulates the run notices when work is asked of it.
    fn wait(&mut self, duration: Duration) {
        let _ = self.rest(duration.as_secs_f64());
    }
}
