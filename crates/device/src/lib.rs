//! What the machine under a run is and how it is doing: memory, processors, disk space, clocks.
//!
//! Everything is optional: a reading that a system does not offer is `None`, never an error and never a panic.
//! Linux is read in full, from `/proc`; other systems give what the standard library knows.

mod clock;
mod disk;
mod machine;
mod memory;
mod processor;
mod sensors;
pub mod simulated;
mod slowdown;

pub use clock::{Stopwatch, local_minute, local_time, unix_time_seconds};
pub use disk::free_disk_bytes;
pub use machine::Machine;
pub use memory::{ProcessMemory, available_memory_bytes, physical_memory_bytes};
pub use processor::process_processor_seconds;
pub use sensors::{
    Absent, Battery, BatteryState, EnergySource, LinuxSensors, NoSensors, Quantity, Reading, Sensors, system_sensors,
};
pub use slowdown::Slowdown;
