//! When to train, as options of commands that train.

use train::TrainConfig;

/// Conditions under which training runs. They are looked at before every update. While one is not met the run is on hold:
/// everything is saved, `hold.json` in its folder says what it waits for, and it goes on by itself. Ctrl-C leaves at once
/// (exit code 130), and `--resume` goes back into the hold. Percentages are 30% or 0.3; `0` or `none` lifts a condition.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "When to train (a run on hold is saved and goes on by itself)")]
pub struct GoverningArguments {
    /// Only while a charger is connected; a machine without a battery always is
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    only_charging: Option<bool>,
    /// While on battery, hold below this charge, and go on 5 % above it or on a charger
    #[arg(long, value_parser = share, value_name = "30%")]
    battery_floor: Option<f64>,
    /// Train only inside these hours of local time, when nobody needs the machine (over midnight is fine)
    #[arg(long, value_name = "22:00-07:00")]
    quiet_hours: Option<String>,
    /// Hold above this temperature of the processor in degrees Celsius, and go on 10 degrees below it: a thermostat, which
    /// keeps a machine cool and makes no run faster
    #[arg(long = "max-temp", value_parser = number, value_name = "80")]
    temperature_max_c: Option<f64>,
    /// Hold while something waits for memory more than this part of the time, and go on at half of it
    #[arg(long = "max-memory-pressure", value_parser = share, value_name = "20%")]
    memory_pressure_max: Option<f64>,
    /// Train only when nobody has touched the machine for so long: 90s, 5min, 1h
    #[arg(long = "when-idle", value_parser = seconds, value_name = "5min")]
    idle_seconds_min: Option<f64>,
}

impl GoverningArguments {
    /// Puts what was given over `config`, which the caller validates.
    pub fn apply(&self, config: &mut TrainConfig) {
        config.only_charging = self.only_charging.unwrap_or(config.only_charging);
        config.battery_floor = self.battery_floor.unwrap_or(config.battery_floor);
        config.temperature_max_c = self.temperature_max_c.unwrap_or(config.temperature_max_c);
        config.memory_pressure_max = self.memory_pressure_max.unwrap_or(config.memory_pressure_max);
        config.idle_seconds_min = self.idle_seconds_min.unwrap_or(config.idle_seconds_min);
        if let Some(hours) = &self.quiet_hours {
            config.quiet_hours = if ["none", "0"].contains(&hours.as_str()) { String::new() } else { hours.clone() };
        }
    }
}

fn number(text: &str) -> Result<f64, String> {
    if text == "none" {
        return Ok(0.0);
    }
    text.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(|| "expected a number, or none".to_owned())
}

/// A part of a whole, given as `30%` or `0.3`.
fn share(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => number(percent.trim()).map(|percent| percent / 100.0),
        None => number(text),
    };
    share
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "expected a part such as 30% or 0.3".to_owned())
}

/// A stretch of time with its unit.
fn seconds(text: &str) -> Result<f64, String> {
    if text == "none" || text == "0" {
        return Ok(0.0);
    }
    let (digits, unit) = text.split_at(text.find(|letter: char| letter.is_alphabetic()).unwrap_or(text.len()));
    let factor = match unit {
        "s" => Some(1.0),
        "min" | "m" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    let seconds = digits.trim().parse::<f64>().ok().zip(factor).map(|(number, factor)| number * factor);
    seconds
        .filter(|seconds| seconds.is_finite() && *seconds >= 0.0)
        .ok_or_else(|| "expected a time such as 90s, 5min or 1h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_and_bare_or_odd_values_refused() {
        assert_eq!((share("30%"), share("0.3"), share("none")), (Ok(0.3), Ok(0.3), Ok(0.0)));
        for text in ["30", "130%", "-5%", "nan", "a lot", "%"] {
            assert!(share(text).unwrap_err().contains("30% or 0.3"), "{text}");
        }
        assert_eq!(
            (seconds("90s"), seconds("5min"), seconds("1.5h"), seconds("0")),
            (Ok(90.0), Ok(300.0), Ok(5400.0), Ok(0.0))
        );
        for text in ["5", "5 years", "-3min", "min", ""] {
            assert!(seconds(text).unwrap_err().contains("5min"), "{text}");
        }
    }

    #[test]
    fn what_is_given_wins_and_none_lifts_a_condition() {
        let mut config =
            TrainConfig { battery_floor: 0.5, quiet_hours: "22:00-07:00".into(), ..TrainConfig::default() };
        let arguments = GoverningArguments {
            quiet_hours: Some("none".into()),
            only_charging: Some(true),
            ..GoverningArguments::default()
        };
        arguments.apply(&mut config);
        assert_eq!((config.only_charging, config.battery_floor, config.quiet_hours.as_str()), (true, 0.5, ""));
    }
}
