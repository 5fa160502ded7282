//! Batteries and chargers as `/sys/class/power_supply` lists them.

use super::files::{Found, Root, unreadable};
use super::{Battery, BatteryState};

const FOLDER: &str = "/sys/class/power_supply";

/// What feeds the machine.
#[derive(Debug)]
pub(super) struct PowerSupplies {
    pub battery: Found<Battery>,
    pub external_power: Found<bool>,
    /// Energy left in all batteries; none where a battery tells its charge in percent only.
    pub remaining_j: Option<f64>,
}

pub(super) fn read(root: &Root) -> PowerSupplies {
    let names = match root.names(FOLDER) {
        Ok(names) => names,
        Err(error) => {
            let reason = unreadable(FOLDER, &error);
            return PowerSupplies { battery: Err(reason.clone()), external_power: Err(reason), remaining_j: None };
        }
    };
    let (mut cells, mut chargers) = (Vec::new(), Vec::new());
    for name in names {
        let text = |file: &str| root.text(&format!("{FOLDER}/{name}/{file}")).unwrap_or_default();
        match text("type").as_str() {
            // Batteries of mice and headsets say so; a bay without a battery says that it is not present.
            "Battery" if text("scope") != "Device" && text("present") != "0" => cells.push(Cell::read(root, &name)),
            "Mains" | "USB" | "Wireless" => chargers.push(text("online") == "1"),
            _ => {}
        }
    }
    let states: Vec<BatteryState> = cells.iter().map(|cell| cell.state).collect();
    let external_power = match (cells.is_empty(), chargers.is_empty()) {
        // A machine without a battery runs only on the mains, whether or not it lists them.
        (true, _) => Ok(true),
        (_, false) => Ok(chargers.contains(&true)),
        _ if states.contains(&BatteryState::Charging) => Ok(true),
        _ if states.contains(&BatteryState::Discharging) => Ok(false),
        _ => Err("the battery does not say whether a charger is connected".to_owned()),
    };
    PowerSupplies { battery: joined(&cells), external_power, remaining_j: total(&cells, |cell| cell.remaining_j) }
}

struct Cell {
    charge: Option<f64>,
    state: BatteryState,
    remaining_j: Option<f64>,
    capacity_j: Option<f64>,
    power_w: Option<f64>,
}

impl Cell {
    /// Units of the kernel: microwatt hours, microampere hours, microvolts, microwatts, microamperes, percent.
    fn read(root: &Root, name: &str) -> Cell {
        let number = |file: &str| root.number(&format!("{FOLDER}/{name}/{file}"));
        // Charge times one fixed voltage: with the present one, the capacity would follow the load.
        let volts = number("voltage_min_design").or(number("voltage_now")).filter(|uv| *uv > 0.0).map(|uv| uv * 1e-6);
        let joules = |energy: &str, charge: &str| {
            let from_energy = number(energy).map(|uwh| uwh * 3.6e-3);
            from_energy.or_else(|| Some(number(charge)? * 3.6e-3 * volts?)).filter(|joules| *joules >= 0.0)
        };
        let capacity_j = joules("energy_full", "charge_full").filter(|joules| *joules > 0.0);
        let remaining_j = joules("energy_now", "charge_now");
        let by_energy = || Some((remaining_j? / capacity_j?).clamp(0.0, 1.0));
        let by_percent = number("capacity").filter(|percent| (0.0..=100.0).contains(percent)).map(|p| p / 100.0);
        let volts_now = number("voltage_now").map(|uv| uv * 1e-6);
        // Some drivers give a discharging current a sign.
        let power_w = number("power_now").map(|uw| uw * 1e-6);
        let power_w = power_w.or_else(|| Some(number("current_now")? * 1e-6 * volts_now?)).map(f64::abs);
        let state = match root.text(&format!("{FOLDER}/{name}/status")).unwrap_or_default().as_str() {
            "Charging" => BatteryState::Charging,
            "Discharging" => BatteryState::Discharging,
            "Full" | "Not charging" => BatteryState::Idle,
            _ => BatteryState::Unknown,
        };
        Cell { charge: by_energy().or(by_percent), state, remaining_j, capacity_j, power_w }
    }
}

/// All batteries as one.
fn joined(cells: &[Cell]) -> Found<Battery> {
    if cells.is_empty() {
        return Err("this machine has no battery".to_owned());
    }
    let known: Vec<&Cell> = cells.iter().filter(|cell| cell.charge.is_some()).collect();
    if known.is_empty() {
        return Err("the battery does not tell its charge".to_owned());
    }
    let weight = |cell: &Cell| cell.capacity_j.unwrap_or(1.0);
    let weights: f64 = known.iter().map(|cell| weight(cell)).sum();
    let charge = known.iter().map(|cell| weight(cell) * cell.charge.unwrap_or(0.0)).sum::<f64>() / weights;
    let has = |state| cells.iter().any(|cell| cell.state == state);
    // One battery that drains means that the machine lives on it, even while another is idle.
    let state = [BatteryState::Discharging, BatteryState::Charging, BatteryState::Idle].into_iter().find(|s| has(*s));
    Ok(Battery {
        charge,
        state: state.unwrap_or(BatteryState::Unknown),
        capacity_wh: total(cells, |cell| cell.capacity_j).map(|joules| joules / 3600.0),
        power_w: total(cells, |cell| cell.power_w),
    })
}

/// The sum, if every battery has the value.
fn total(cells: &[Cell], value: impl Fn(&Cell) -> Option<f64>) -> Option<f64> {
    if cells.is_empty() { None } else { cells.iter().map(value).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::fake::Tree;

    fn laptop() -> Tree {
        let tree = Tree::new();
        tree.write_all(&format!("{FOLDER}/AC"), &[("type", "Mains"), ("online", "0")]);
        tree.write_all(
            &format!("{FOLDER}/BAT0"),
            &[
                ("type", "Battery"),
                ("present", "1"),
                ("status", "Discharging"),
                ("energy_now", "30000000"),
                ("energy_full", "50000000"),
                ("power_now", "12500000"),
                ("capacity", "61"),
            ],
        );
        tree
    }

    #[test]
    fn a_laptop_on_its_battery() {
        let supplies = read(&laptop().root());
        let expected =
            Battery { charge: 0.6, state: BatteryState::Discharging, capacity_wh: Some(50.0), power_w: Some(12.5) };
        assert_eq!(supplies.battery, Ok(expected));
        assert_eq!(supplies.external_power, Ok(false));
        assert_eq!(supplies.remaining_j, Some(30.0 * 3600.0));
    }

    #[test]
    fn charge_in_ampere_hours_is_multiplied_by_the_design_voltage() {
        let tree = Tree::new();
        let battery = [
            ("type", "Battery"),
            ("status", "Not charging"),
            ("charge_now", "2000000"),
            ("charge_full", "4000000"),
            ("voltage_min_design", "10000000"),
            ("voltage_now", "12000000"),
            ("current_now", "-1000000"),
        ];
        tree.write_all(&format!("{FOLDER}/BAT1"), &battery);
        tree.write_all(&format!("{FOLDER}/usb"), &[("type", "USB"), ("online", "1")]);
        let supplies = read(&tree.root());
        let battery = supplies.battery.unwrap();
        assert_eq!((battery.charge, battery.capacity_wh, battery.power_w), (0.5, Some(40.0), Some(12.0)));
        assert_eq!((battery.state, supplies.external_power), (BatteryState::Idle, Ok(true)));
    }

    #[test]
    fn two_batteries_are_one_and_those_of_mice_are_none() {
        let tree = laptop();
        let second =
            [("type", "Battery"), ("status", "Unknown"), ("energy_now", "10000000"), ("energy_full", "10000000")];
        tree.write_all(&format!("{FOLDER}/BAT1"), &second);
        tree.write_all(
            &format!("{FOLDER}/hidpp_battery_0"),
            &[("type", "Battery"), ("scope", "Device"), ("capacity", "5")],
        );
        tree.write_all(&format!("{FOLDER}/BAT2"), &[("type", "Battery"), ("present", "0"), ("capacity", "0")]);
        let supplies = read(&tree.root());
        let battery = supplies.battery.unwrap();
        assert!((battery.charge - 40.0 / 60.0).abs() < 1e-12);
        assert_eq!((battery.state, battery.capacity_wh), (BatteryState::Discharging, Some(60.0)));
        assert_eq!(battery.power_w, None, "one of the two does not tell");
    }

    #[test]
    fn a_desktop_is_on_the_mains_and_an_unknown_machine_is_unknown() {
        let tree = Tree::new();
        tree.folder(FOLDER);
        let supplies = read(&tree.root());
        assert_eq!(supplies.battery, Err("this machine has no battery".to_owned()));
        assert_eq!(supplies.external_power, Ok(true));
        assert_eq!(supplies.remaining_j, None);
        let supplies = read(&Tree::new().root());
        assert!(supplies.external_power.unwrap_err().contains(FOLDER));
    }

    #[test]
    fn percent_alone_is_a_charge_without_energy_and_nonsense_is_none() {
        let tree = Tree::new();
        let write = |charge: &str| {
            tree.write_all(
                &format!("{FOLDER}/battery"),
                &[("type", "Battery"), ("status", "Charging"), ("capacity", charge), ("energy_full", "0")],
            );
            read(&tree.root())
        };
        let supplies = write("85");
        assert_eq!(supplies.battery.map(|battery| battery.charge), Ok(0.85));
        assert_eq!((supplies.remaining_j, supplies.external_power), (None, Ok(true)));
        for nonsense in ["-3", "400", "nan", "full", ""] {
            assert!(write(nonsense).battery.is_err(), "{nonsense}");
        }
    }
}
