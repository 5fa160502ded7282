//! Whether to train now: the conditions that the user set, checked between updates.
//!
//! The governor decides start, hold and go on. It never paces: the study measured that pauses and bursts recover nothing
//! of what heat takes (0.91, 0.79 and 0.89 of the continuous rate), so a hold only ever waits for the world to change.
//!
//! To add a condition, add a field to [`Limits`], a configuration key, and a line to `CONDITIONS`.

use std::fmt;

use device::{Absent, BatteryState, Quantity, Reading};
use serde::{Deserialize, Serialize};

/// When training may run. The default is always.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Only while a charger or the mains feed the machine. A machine without a battery always is.
    pub only_charging: bool,
    /// While the battery drains, only down to this part of its charge, 0 to 1.
    pub battery_floor: Option<f64>,
    /// Only within these hours of local time.
    pub quiet_hours: Option<QuietHours>,
    /// Only up to this temperature of the processor, in degrees Celsius.
    pub temperature_max_c: Option<f64>,
    /// Only while less than this part of the time something waits for memory, 0 to 1.
    pub memory_pressure_max: Option<f64>,
    /// Only when nobody has touched the machine for so many seconds.
    pub idle_seconds_min: Option<f64>,
}

/// A stretch of the day in which nobody needs the machine; it may go over midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuietHours {
    /// Minutes since midnight, the second exclusive. Never equal.
    from: u16,
    to: u16,
}

impl QuietHours {
    /// Reads `22:00-07:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let minute = |text: &str| {
            let (hours, minutes) = text.trim().split_once(':')?;
            let number = |digits: &str| {
                let is_short = (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
                if is_short { digits.parse::<u16>().ok() } else { None }
            };
            let (hours, minutes) = (number(hours)?, number(minutes).filter(|_| minutes.len() == 2)?);
            (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
        };
        let (from, to) = text.split_once('-')?;
        let (from, to) = (minute(from)?, minute(to)?);
        (from != to).then_some(Self { from, to })
    }

    pub fn contain(self, minute: u16) -> bool {
        match self.from < self.to {
            true => (self.from..self.to).contains(&minute),
            false => minute >= self.from || minute < self.to,
        }
    }
}

impl fmt::Display for QuietHours {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [from, to] = [self.from, self.to].map(|minute| format!("{:02}:{:02}", minute / 60, minute % 60));
        write!(out, "{from}-{to}")
    }
}

/// Something that training waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The configuration key of the condition.
    pub condition: String,
    /// What it waits for, for people: `the battery to reach 35 % (now 24 %)`.
    pub waits_for: String,
}

/// A needed sensor that this machine does not have.
#[derive(Clone, Debug, PartialEq)]
pub struct MissingSensor {
    pub condition: &'static str,
    pub quantity: Quantity,
    pub reason: String,
}

/// What one condition finds in a reading.
#[derive(Debug, PartialEq)]
enum Finding {
    Met,
    /// Not met; what would meet it.
    Unmet(String),
    /// The sensor said nothing this time.
    Unknown,
}

/// A condition: its configuration key, the sensor that it needs, and the check. `held` asks for the stricter check that
/// ends a hold, so that a value near its limit does not switch to and fro.
struct Condition {
    key: &'static str,
    needs: Option<Quantity>,
    is_set: fn(&Limits) -> bool,
    check: fn(&Limits, &Reading, held: bool) -> Finding,
}

const CONDITIONS: [Condition; 6] = [
    Condition {
        key: "only_charging",
        needs: Some(Quantity::Charger),
        is_set: |limits| limits.only_charging,
        check: |_, reading, _| match reading.external_power {
            None => Finding::Unknown,
            Some(true) => Finding::Met,
            Some(false) => Finding::Unmet("a charger to be connected".to_owned()),
        },
    },
    Condition {
        key: "battery_floor",
        needs: Some(Quantity::Battery),
        is_set: |limits| limits.battery_floor.is_some(),
        check: battery_floor,
    },
    Condition {
        key: "quiet_hours",
        needs: None,
        is_set: |limits| limits.quiet_hours.is_some(),
        check: |limits, reading, _| match (limits.quiet_hours, reading.local_minute) {
            (Some(hours), Some(minute)) if !hours.contain(minute) => {
                let now = format!("{:02}:{:02}", minute / 60, minute % 60);
                Finding::Unmet(format!("the quiet hours {hours} (now {now})"))
            }
            (_, None) => Finding::Unknown,
            _ => Finding::Met,
        },
    },
    Condition {
        key: "temperature_max_c",
        needs: Some(Quantity::Temperature),
        is_set: |limits| limits.temperature_max_c.is_some(),
        check: |limits, reading, held| {
            let margin = if held { TEMPERATURE_MARGIN_C } else { 0.0 };
            let at_most =
                |limit: f64, now: f64| format!("{:.0} °C or less (now {now:.0} °C)", limit - TEMPERATURE_MARGIN_C);
            under(limits.temperature_max_c, reading.temperature_c, margin, at_most)
        },
    },
    Condition {
        key: "memory_pressure_max",
        needs: Some(Quantity::MemoryPressure),
        is_set: |limits| limits.memory_pressure_max.is_some(),
        check: |limits, reading, held| {
            let margin = if held { limits.memory_pressure_max.unwrap_or(0.0) / 2.0 } else { 0.0 };
            let at_most = |limit: f64, now: f64| {
                format!("memory pressure of {:.0} % or less (now {:.0} %)", 50.0 * limit, 100.0 * now)
            };
            under(limits.memory_pressure_max, reading.memory_pressure, margin, at_most)
        },
    },
    Condition {
        key: "idle_seconds_min",
        needs: Some(Quantity::UserActivity),
        is_set: |limits| limits.idle_seconds_min.is_some(),
        check: |limits, reading, _| match (limits.idle_seconds_min, reading.user_idle_s) {
            (_, None) => Finding::Unknown,
            (Some(least), Some(idle)) if idle < least => {
                Finding::Unmet(format!("{least:.0} s without a touch of the machine (now {idle:.0} s)"))
            }
            _ => Finding::Met,
        },
    },
];

/// A battery that went below its floor must rise by this part of a charge: the size of a coarse gauge's step.
const BATTERY_MARGIN: f64 = 0.05;
/// A processor that got too hot must cool by so many degrees.
const TEMPERATURE_MARGIN_C: f64 = 10.0;
/// A hold ends when everything it waits for has been so for this long: a loose plug or a short breath is no change.
pub const SETTLE_SECONDS: f64 = 30.0;

/// The floor protects a draining battery; while a charger keeps the charge up, it takes nothing from anyone.
fn battery_floor(limits: &Limits, reading: &Reading, held: bool) -> Finding {
    let (Some(floor), Some(battery)) = (limits.battery_floor, reading.battery) else { return Finding::Unknown };
    let drains = match battery.state {
        BatteryState::Discharging => true,
        BatteryState::Charging | BatteryState::Idle => false,
        BatteryState::Unknown => reading.external_power != Some(true),
    };
    let needed = if held { (floor + BATTERY_MARGIN).min(1.0) } else { floor };
    // Gauges count in whole percents: half of one is no difference.
    if !drains || battery.charge > needed - 0.005 {
        return Finding::Met;
    }
    let (goal, now) = (100.0 * (floor + BATTERY_MARGIN).min(1.0), 100.0 * battery.charge);
    Finding::Unmet(format!("a charger, or the battery to reach {goal:.0} % (now {now:.0} %)"))
}

fn under(limit: Option<f64>, now: Option<f64>, margin: f64, say: impl Fn(f64, f64) -> String) -> Finding {
    match (limit, now) {
        (Some(limit), Some(now)) if now > limit - margin => Finding::Unmet(say(limit, now)),
        (Some(_), None) => Finding::Unknown,
        _ => Finding::Met,
    }
}

/// Decides, one reading after the other.
#[derive(Debug)]
pub struct Governor {
    limits: Limits,
    /// What training is on hold for, by condition.
    held: Vec<Wait>,
    /// Since when (by the sensors' own clock) everything has been as it should.
    settled_since: Option<f64>,
}

impl Governor {
    pub fn new(limits: Limits) -> Self {
        Self { limits, held: Vec::new(), settled_since: None }
    }

    /// The conditions that were set and need what `absent` lists.
    pub fn missing(&self, absent: &[Absent]) -> Vec<MissingSensor> {
        let set = CONDITIONS.iter().filter(|condition| (condition.is_set)(&self.limits));
        set.filter_map(|condition| {
            let lacks = absent.iter().find(|absent| condition.needs == Some(absent.quantity))?;
            Some(MissingSensor { condition: condition.key, quantity: lacks.quantity, reason: lacks.reason.clone() })
        })
        .collect()
    }

    /// Goes back into a hold that an earlier process was in. Conditions that are no longer set are forgotten.
    pub fn go_back_to(&mut self, waits: &[Wait]) {
        let is_set = |key: &str| CONDITIONS.iter().any(|known| known.key == key && (known.is_set)(&self.limits));
        self.held = waits.iter().filter(|wait| is_set(&wait.condition)).cloned().collect();
        self.settled_since = None;
    }

    /// What training waits for, by the last decision.
    pub fn waits(&self) -> &[Wait] {
        &self.held
    }

    /// What training must wait for now; empty if it may run.
    ///
    /// A hold begins with the first reading that breaks a condition. It ends when all conditions have been met, by a
    /// margin those that broke, for [`SETTLE_SECONDS`]. A sensor that says nothing changes nothing.
    pub fn decide(&mut self, reading: &Reading) -> &[Wait] {
        let mut waits = Vec::new();
        for condition in CONDITIONS.iter().filter(|condition| (condition.is_set)(&self.limits)) {
            let before = self.held.iter().find(|wait| wait.condition == condition.key);
            let unmet = match (condition.check)(&self.limits, reading, before.is_some()) {
                Finding::Met => None,
                Finding::Unmet(waits_for) => Some(waits_for),
                Finding::Unknown => before.map(|wait| wait.waits_for.clone()),
            };
            waits.extend(unmet.map(|waits_for| Wait { condition: condition.key.to_owned(), waits_for }));
        }
        if self.held.is_empty() || !waits.is_empty() {
            self.held = waits;
            self.settled_since = None;
            return &self.held;
        }
        let since = *self.settled_since.get_or_insert(reading.monotonic_seconds);
        if reading.monotonic_seconds - since >= SETTLE_SECONDS {
            self.held.clear();
            self.settled_since = None;
        }
        // What they waited for is there: only that it stays is waited for.
        for wait in &mut self.held {
            wait.waits_for = format!("{} to stay as it should be for {SETTLE_SECONDS:.0} s", wait.condition);
        }
        &self.held
    }
}
