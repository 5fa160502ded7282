//! What the user sees: text on standard output, progress on standard error, or JSON for programs.

use crate::failure::Failure;
use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;

pub const STRONG: Style = Style::new().bold();
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const QUIET: Style = Style::new().dimmed();
pub const MARK: Style = AnsiColor::Cyan.on_default();

#[derive(clap::Args)]
pub struct OutputArguments {
    /// Print one JSON object instead of text (keys: docs/json.md). Progress goes to standard error
    #[arg(long, global = true)]
    json: bool,
    /// No progress and no remarks, only results and errors
    #[arg(long, short, global = true)]
    quiet: bool,
    /// When to use colours; `auto` also respects NO_COLOR
    #[arg(long, global = true, value_enum, default_value_t = ColorWhen::Auto)]
    color: ColorWhen,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ColorWhen {
    Auto,
    Always,
    Never,
}

/// How this run talks to its user.
pub struct Terminal {
    json: bool,
    quiet: bool,
    /// The first error of standard output; what comes after it is not written.
    output_error: Mutex<Option<std::io::Error>>,
}

impl Terminal {
    pub fn new(arguments: &OutputArguments) -> Self {
        let choice = match arguments.color {
            ColorWhen::Auto => anstream::ColorChoice::Auto,
            ColorWhen::Always => anstream::ColorChoice::AlwaysAnsi,
            ColorWhen::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
        Self { json: arguments.json, quiet: arguments.quiet, output_error: Mutex::new(None) }
    }

    /// Says nothing.
    pub fn silent() -> Self {
        Self { json: false, quiet: true, output_error: Mutex::new(None) }
    }

    /// One for another thread, that speaks in the same way.
    pub fn another(&self) -> Self {
        Self { json: self.json, quiet: self.quiet, output_error: Mutex::new(None) }
    }

    pub fn is_json(&self) -> bool {
        self.json
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Writes to standard output. A command goes on when it cannot be written to; [`Terminal::output_failure`] tells.
    fn write(&self, text: &str) {
        let mut failed = self.output_error.lock().expect("no panic while writing");
        if failed.is_none() {
            let mut out = anstream::stdout().lock();
            *failed = out.write_all(text.as_bytes()).and_then(|()| out.flush()).err();
        }
    }

    /// Writes a part of a line at once, for answers that come word by word.
    pub fn piece(&self, text: &str) {
        if !self.json {
            self.write(text);
        }
    }

    /// Why standard output did not take everything; a reader that has gone away is no fault.
    pub fn output_failure(&self) -> Option<Failure> {
        let error = self.output_error.lock().expect("no panic while writing").take()?;
        (error.kind() != ErrorKind::BrokenPipe)
            .then(|| Failure::from(anyhow::Error::new(error).context("cannot write to standard output")))
    }

    /// A line of the result; nothing under `--json`.
    pub fn line(&self, text: impl AsRef<str>) {
        if !self.json {
            self.write(&format!("{}\n", text.as_ref()));
        }
    }

    /// A heading of the result.
    pub fn heading(&self, text: impl AsRef<str>) {
        self.line(format!("\n{STRONG}{}{STRONG:#}", text.as_ref()));
    }

    /// A remark that is not part of the result.
    pub fn remark(&self, text: impl AsRef<str>) {
        if !self.quiet {
            self.say(&format!("{QUIET}{}{QUIET:#}", text.as_ref()));
        }
    }

    /// Something that the user should know although the command goes on.
    pub fn warning(&self, text: impl AsRef<str>) {
        let style = AnsiColor::Yellow.on_default().bold();
        self.say(&format!("{style}note:{style:#} {}", text.as_ref()));
    }

    /// A line on standard error. Nobody can be told when that fails, so nothing stops for it.
    fn say(&self, text: &str) {
        let _ = writeln!(anstream::stderr().lock(), "{text}");
    }

    /// The one JSON object of this run; nothing without `--json`.
    pub fn json(&self, value: &serde_json::Value) {
        if self.json {
            self.write(&format!("{value}\n"));
        }
    }

    /// One event of a run, under `--json`.
    pub fn event(&self, event: &impl serde::Serialize) {
        if let Ok(value) = serde_json::to_value(event) {
            self.json(&value);
        }
    }

    pub fn failure(&self, failure: &Failure) {
        let message = failure.message();
        if self.json {
            self.json(&serde_json::json!({"error": {"kind": failure.exit.name(), "message": message}}));
        }
        self.say(&format!("{BAD}error:{BAD:#} {message}"));
    }

    /// A bar with rate and ETA on standard error. Hidden when standard error is no terminal, and under `--quiet`.
    pub fn bar(&self, total: u64, what: &str, unit: &str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(total), self.draw_target());
        let template = format!("{what:<12} {{bar:28.cyan/dim}} {{pos}}/{{len}} {unit}  {{elapsed}} + {{eta}}  {{msg}}");
        bar.set_style(style(&template));
        bar
    }

    /// A bar for bytes.
    pub fn bytes_bar(&self, total: u64, what: &str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(total), self.draw_target());
        let template = format!("{what:<12} {{bar:28.cyan/dim}} {{bytes}}/{{total_bytes}}  {{eta}}  {{msg}}");
        bar.set_style(style(&template));
        bar
    }

    /// For work of unknown length.
    pub fn spinner(&self, what: &str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(None, self.draw_target());
        bar.set_style(style("{spinner} {msg}  {elapsed}"));
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    }

    /// Whether live progress is visible; if not, long work should print a line now and then.
    pub fn shows_progress(&self) -> bool {
        !self.quiet && std::io::stderr().is_terminal()
    }

    /// Whether text on standard output can have colours; without, marks must stand in for them.
    pub fn has_colours(&self) -> bool {
        anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
    }

    /// Characters in a line; 100 when standard output is no terminal.
    pub fn columns(&self) -> usize {
        let terminal = console::Term::stdout();
        terminal.size_checked().filter(|_| terminal.is_term()).map_or(100, |(_, columns)| usize::from(columns))
    }

    fn draw_target(&self) -> ProgressDrawTarget {
        if self.shows_progress() { ProgressDrawTarget::stderr_with_hz(8) } else { ProgressDrawTarget::hidden() }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("progress templates are constants").progress_chars("━━─")
}

/// `1.23 GB`, `456 MB`, `7.8 kB`: decimal units, as disks and specifications count.
pub fn human_bytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        b => format!("{b:.0} B"),
    }
}

/// `45 s`, `3 min 20 s`, `2 h 05 min`.
pub fn human_seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 if seconds < 10.0 => format!("{seconds:.1} s"),
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// `850 J`, `26.2 kJ`, `1.20 MJ`.
pub fn human_joules(joules: f64) -> String {
    match joules {
        j if j >= 1e6 => format!("{:.2} MJ", j / 1e6),
        j if j >= 1e3 => format!("{:.1} kJ", j / 1e3),
        j => format!("{j:.0} J"),
    }
}

/// `12,345`.
pub fn human_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_read_well() {
        assert_eq!(human_bytes(999), "999 B");
        assert_eq!(human_bytes(98_362_432), "98.4 MB");
        assert_eq!((human_joules(850.4), human_joules(26_200.0)), ("850 J".into(), "26.2 kJ".into()));
        assert_eq!(human_seconds(3.21), "3.2 s");
        assert_eq!(human_seconds(59.8), "1 min 00 s");
        assert_eq!(human_seconds(200.0), "3 min 20 s");
        assert_eq!(human_seconds(7500.0), "2 h 05 min");
        assert_eq!(human_count(1_234_567), "1,234,567");
        assert_eq!(human_count(12), "12");
    }
}
