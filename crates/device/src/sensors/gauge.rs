//! Energy by the falling charge of a battery.

/// Adds up what leaves a battery. Gauges move in steps of up to a twentieth of a charge, so short stretches are measured
/// badly or not at all; the size of the steps is reported beside the sum.
#[derive(Clone, Debug, Default)]
pub(crate) struct BatteryMeter {
    last_j: Option<f64>,
    total_j: f64,
    smallest_step_j: Option<f64>,
}

impl BatteryMeter {
    /// Takes a reading of the energy that remains in the battery. Joules drawn so far while discharging; none while a
    /// charger feeds the machine, because then the battery says nothing about what the machine uses.
    pub fn read(&mut self, remaining_j: f64, is_discharging: bool) -> Option<f64> {
        let last_j = self.last_j.replace(remaining_j);
        if !is_discharging {
            return None;
        }
        // A gauge that corrects itself upwards has not made energy.
        if let Some(drawn_j) = last_j.map(|last_j| last_j - remaining_j).filter(|drawn_j| *drawn_j > 0.0) {
            self.total_j += drawn_j;
            self.smallest_step_j = Some(self.smallest_step_j.map_or(drawn_j, |step_j| step_j.min(drawn_j)));
        }
        Some(self.total_j)
    }

    /// The smallest change seen.
    pub fn resolution_j(&self) -> Option<f64> {
        self.smallest_step_j
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leaves_the_battery_counts() {
        let mut meter = BatteryMeter::default();
        assert_eq!(meter.read(50_000.0, true), Some(0.0));
        assert_eq!(meter.read(50_000.0, true), Some(0.0), "a gauge stands still between its steps");
        assert_eq!(meter.resolution_j(), None);
        assert_eq!(meter.read(47_220.0, true), Some(2780.0));
        assert_eq!(meter.read(48_000.0, true), Some(2780.0), "a correction upwards is no gain");
        assert_eq!(meter.read(48_500.0, false), None, "charging");
        assert_eq!(meter.read(53_000.0, false), None);
        assert_eq!(meter.read(52_000.0, true), Some(3780.0));
        assert_eq!(meter.resolution_j(), Some(1000.0));
    }
}
