//! Processor time of this process.

/// Seconds that all threads of this process have spent on processors so far. Other programs hardly change it, so it
/// measures work on a busy machine better than a clock does; threads that wait in a loop count.
#[cfg(unix)]
pub fn process_processor_seconds() -> Option<f64> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// Seconds that all threads of this process have spent on processors so far.
#[cfg(not(unix))]
pub fn process_processor_seconds() -> Option<f64> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn work_takes_processor_time() {
        let before = process_processor_seconds().unwrap();
        let start = std::time::Instant::now();
        while process_processor_seconds().unwrap() < before + 0.01 {
            assert!(start.elapsed().as_secs() < 60, "no processor time passes");
        }
    }
}
