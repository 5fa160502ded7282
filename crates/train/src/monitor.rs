//! What the machine was like while it worked.

use device::{Reading, Sensors, Slowdown};

/// The sensors of a run, with what the last reading said.
pub(crate) struct Monitor<'a> {
    sensors: &'a mut dyn Sensors,
    reading: Reading,
    pub slowdown: Slowdown,
}

impl<'a> Monitor<'a> {
    pub fn new(sensors: &'a mut dyn Sensors) -> Self {
        let reading = sensors.read();
        Self { sensors, reading, slowdown: Slowdown::default() }
    }

    pub fn read(&mut self) -> &Reading {
        self.reading = self.sensors.read();
        &self.reading
    }

    /// Lets time pass without training.
    pub fn wait(&mut self, duration: std::time::Duration) {
        self.sensors.wait(duration);
        self.slowdown.interrupt();
    }

    pub fn absent(&self) -> Vec<device::Absent> {
        self.sensors.absent()
    }

    pub fn last(&self) -> &Reading {
        &self.reading
    }

    /// Reads, and says how many joules the machine used since the reading before, where both know.
    pub fn energy_since_last(&mut self) -> Option<f64> {
        let before = self.reading.energy_j;
        let after = self.read().energy_j;
        Some((after? - before?).max(0.0))
    }
}
