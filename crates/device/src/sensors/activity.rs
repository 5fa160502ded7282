//! How long nobody has touched the machine, where that can be known without a display library.

use std::time::{Duration, SystemTime};

use super::command::CommandReader;
use super::files::{Found, Root};

const SESSIONS: &str = "/run/systemd/sessions";

/// The person's activity on a Linux machine.
///
/// With a graphical session only the desktop knows about keys and pointer; GNOME answers on the session bus. Without one,
/// people work in terminals, and the kernel notes when each was last read from (as `w` shows), to about eight seconds.
#[derive(Debug)]
pub(super) struct UserActivity {
    desktop: CommandReader,
}

impl UserActivity {
    pub fn new() -> Self {
        const MUTTER: &str = "org.gnome.Mutter.IdleMonitor";
        let arguments = [
            "call",
            "--session",
            "--timeout=2",
            "--dest",
            MUTTER,
            "--object-path",
            "/org/gnome/Mutter/IdleMonitor/Core",
            "--method",
            "org.gnome.Mutter.IdleMonitor.GetIdletime",
        ];
        Self { desktop: CommandReader::new("gdbus", &arguments, Duration::from_secs(10)) }
    }

    pub fn idle_seconds(&mut self, root: &Root) -> Found<f64> {
        if has_graphical_session(root) {
            let told = self.desktop.latest().ok().and_then(milliseconds_told);
            return told
                .map(|ms| ms / 1000.0)
                .ok_or_else(|| "a graphical session is open and its desktop does not tell (GNOME does)".to_owned());
        }
        idle_terminal_seconds(root, SystemTime::now())
    }
}

/// `(uint64 12345,)`
fn milliseconds_told(output: &str) -> Option<f64> {
    output.trim().strip_prefix("(uint64 ")?.strip_suffix(",)")?.parse().ok()
}

/// The session files that the login service keeps are readable by everyone.
fn has_graphical_session(root: &Root) -> bool {
    let graphical = |text: String| {
        let has = |line: &str| text.lines().any(|found| found == line);
        has("CLASS=user") && ["TYPE=x11", "TYPE=wayland", "TYPE=mir"].into_iter().any(has)
    };
    let names = root.names(SESSIONS).unwrap_or_default();
    names.iter().any(|name| root.text(&format!("{SESSIONS}/{name}")).is_ok_and(graphical))
}

fn idle_terminal_seconds(root: &Root, now: SystemTime) -> Found<f64> {
    let names = |folder: &str, wanted: fn(&str) -> bool| {
        let names = root.names(folder).unwrap_or_default().into_iter().filter(move |name| wanted(name));
        names.map(|name| format!("{folder}/{name}")).collect::<Vec<_>>()
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut terminals = names("/dev/pts", |name| name != "ptmx");
    terminals.extend(names("/dev", |name| name.starts_with("tty")).into_iter().filter(|path| {
        // Consoles that nobody logged in to were touched when the system started; they change nothing.
        path.strip_prefix("/dev/tty").is_some_and(|rest| rest != "0" && is_number(rest))
    }));
    let touched = terminals.iter().filter_map(|path| std::fs::metadata(root.path(path)).ok()?.accessed().ok()).max();
    let touched = touched.ok_or("no terminal is open and no desktop can be asked")?;
    // A clock that was set back makes the last touch lie in the future.
    let idle = now.duration_since(touched).map_or(0.0, |idle| idle.as_secs_f64());
    // Times from before the machine started come from a clock that was set forward, or from the making of an image:
    // nobody can be known to be away for longer than the machine is on.
    let uptime = root.text("/proc/uptime").ok().and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    Ok(uptime.map_or(idle, |uptime| idle.min(uptime)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::fake::Tree;

    fn touch(tree: &Tree, path: &str, at: SystemTime) {
        tree.write(path, "");
        let file = std::fs::File::options().write(true).open(tree.path(path)).unwrap();
        file.set_times(std::fs::FileTimes::new().set_accessed(at)).unwrap();
    }

    #[test]
    fn the_terminal_touched_last_counts() {
        let tree = Tree::new();
        let now = SystemTime::now();
        let ago = |seconds: u64| now - Duration::from_secs(seconds);
        assert!(idle_terminal_seconds(&tree.root(), now).unwrap_err().contains("no terminal"));
        touch(&tree, "/dev/pts/ptmx", ago(1));
        touch(&tree, "/dev/ttyS0", ago(2));
        touch(&tree, "/dev/tty", ago(3));
        assert!(idle_terminal_seconds(&tree.root(), now).is_err());
        touch(&tree, "/dev/pts/4", ago(900));
        touch(&tree, "/dev/tty2", ago(300));
        let idle = idle_terminal_seconds(&tree.root(), now).unwrap();
        assert!((299.0..302.0).contains(&idle), "{idle}");
        assert_eq!(idle_terminal_seconds(&tree.root(), ago(1000)), Ok(0.0), "the clock was set back");
        tree.write("/proc/uptime", "120.50 200.00\n");
        assert_eq!(idle_terminal_seconds(&tree.root(), now), Ok(120.5), "longer than the machine is on");
    }

    #[test]
    fn a_graphical_session_hides_what_terminals_say() {
        let tree = Tree::new();
        assert!(!has_graphical_session(&tree.root()));
        tree.write(&format!("{SESSIONS}/3"), "UID=1000\nTYPE=tty\nCLASS=user");
        tree.write(&format!("{SESSIONS}/c1"), "UID=120\nTYPE=wayland\nCLASS=greeter");
        assert!(!has_graphical_session(&tree.root()), "the login screen is nobody's session");
        tree.write(&format!("{SESSIONS}/4"), "UID=1000\nTYPE=wayland\nCLASS=user");
        assert!(has_graphical_session(&tree.root()));
    }

    #[test]
    fn the_answer_of_the_desktop_is_in_milliseconds() {
        assert_eq!(milliseconds_told("(uint64 12345,)\n"), Some(12345.0));
        for other in ["", "(uint64 ,)", "Error: no such name", "(true,)"] {
            assert_eq!(milliseconds_told(other), None);
        }
    }
}
