//! The simulated devices.

/// The constants of a device. Those of heat are fitted to published curves, not measured inside a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceModel {
    pub name: &'static str,
    /// What it stands for and where its numbers come from.
    pub about: &'static str,
    pub tokens_per_second_cold: f64,
    /// Power of the work alone at the highest clock, and the exponent with which it follows the clock.
    pub work_w: f64,
    pub power_exponent: f64,
    pub idle_w: f64,
    pub air_c: f64,
    /// Heat capacities of chip (with what is tied to it) and body; resistances between chip and body, body and air.
    pub chip_j_per_k: f64,
    pub body_j_per_k: f64,
    pub chip_to_body_k_per_w: f64,
    pub body_to_air_k_per_w: f64,
    /// The clock falls from the highest at the first temperature to (in theory) nothing after the second's degrees more,
    /// in so many steps, never below a least clock.
    pub slows_from_c: f64,
    pub slows_over_k: f64,
    pub clock_steps: u32,
    pub clock_min: f64,
    /// How fast the system lets the clock fall and rise, in parts of the highest clock a second.
    pub clock_fall_per_s: f64,
    pub clock_rise_per_s: f64,
    pub battery_j: f64,
    pub gauge_step: f64,
    pub off_at_charge: f64,
    pub charger_w: f64,
    /// Heat that the charger adds inside.
    pub charger_heat_w: f64,
    /// The system's own thermal warning comes and goes with the body's temperature.
    pub warning_from_body_c: f64,
    pub warning_until_body_c: f64,
}

/// All simulated devices.
pub const DEVICES: [DeviceModel; 1] = [PAPER_PHONE];

/// The study's phone (its sections 3 and 6): 166 tokens a second from cold, half of it at the plateau; 55.6 kJ, shown in
/// steps of 5 %, off at 1 %; 0.26 W when idle. The constants of heat, power and clock were searched for so that they meet
/// the study's numbers: half of the loss in 6 minutes, within 5 % of the plateau after 32 to 38; half of it back after 4
/// minutes of rest, 95 % after 6; steps per hour with pauses and bursts; 4.0 to 4.2 W and 0.04 J a token on battery.
const PAPER_PHONE: DeviceModel = DeviceModel {
    name: "paper-phone",
    about: "the paper's phone with a 3B model, fitted to its figures 6 and 7, its schedules and its table 6",
    tokens_per_second_cold: 166.0,
    work_w: 9.4,
    power_exponent: 1.5615,
    idle_w: 0.26,
    air_c: 22.0,
    chip_j_per_k: 116.4,
    body_j_per_k: 1581.0,
    chip_to_body_k_per_w: 5.437,
    body_to_air_k_per_w: 1.29,
    slows_from_c: 22.0 + 24.3,
    slows_over_k: 0.4256,
    clock_steps: 40,
    clock_min: 0.2,
    clock_fall_per_s: 0.0484,
    clock_rise_per_s: 0.0014,
    battery_j: 55_600.0,
    gauge_step: 0.05,
    off_at_charge: 0.01,
    charger_w: 10.0,
    charger_heat_w: 0.378,
    warning_from_body_c: 22.0 + 3.5,
    warning_until_body_c: 22.0 + 2.95,
};
