//! Two clocks with different promises: one that never jumps, for durations, and the calendar's, for labels.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Seconds since 1970-01-01 UTC by the system's calendar clock. It may jump and it may run backwards, so it
/// labels events and never measures durations. A clock set before 1970 gives a negative number.
pub fn unix_time_seconds() -> f64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    }
}

/// Minutes since midnight in the time zone that the system is set to (`TZ` included), 0 to 1439; in UTC where none is.
pub fn local_minute() -> u16 {
    let time = jiff::ZonedDateTime::now();
    time.hour().unsigned_abs() as u16 * 60 + time.minute().unsigned_abs() as u16
}

/// A moment of the calendar in the system's time zone, to the minute: `2026-03-01 22:05`.
pub fn local_time(unix_seconds: f64) -> String {
    match jiff::Timestamp::from_second(unix_seconds as i64) {
        Ok(moment) => moment.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M").to_string(),
        Err(_) => "a time out of the calendar".to_owned(),
    }
}

/// A duration being measured, by the clock that never jumps.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    started: Instant,
}

impl Stopwatch {
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }
    /// Seconds since the start, or since the last [`Stopwatch::lap`].
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
    /// Seconds since the start, and starts again at the same instant, so that laps add up without gaps.
    pub fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let seconds = now.duration_since(self.started).as_secs_f64();
        self.started = now;
        seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_is_past_the_day_this_was_written() {
        assert!(unix_time_seconds() > 1.7e9);
    }

    #[test]
    fn moments_are_written_in_local_time() {
        let text = local_time(unix_time_seconds());
        let minute = local_minute();
        let (hour, minutes) = text.rsplit_once(' ').and_then(|(_, time)| time.split_once(':')).unwrap();
        let written = hour.parse::<u16>().unwrap() * 60 + minutes.parse::<u16>().unwrap();
        assert!((minute + 1440 - written) % 1440 <= 1, "{text} and {minute}");
        assert_eq!(local_time(f64::INFINITY), "a time out of the calendar");
    }

    #[test]
    fn a_day_has_1440_minutes() {
        assert!(local_minute() < 24 * 60);
    }

    #[test]
    fn laps_add_up_to_the_whole() {
        let whole = Stopwatch::start();
        let mut laps = Stopwatch::start();
        let mut sum = 0.0;
        for _ in 0..10 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            sum += laps.lap();
        }
        assert!(sum >= 0.010, "ten sleeps of a millisecond took {sum} s");
        assert!(sum <= whole.seconds());
    }
}
