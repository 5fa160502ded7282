//! `selftune bench`: measurements that check their own answers.

mod generate;
mod kernels;
mod step;

use crate::failure::{Failure, Outcome};
use crate::simulation;
use crate::terminal::{Terminal, human_bytes};
use ::kernels::ceiling::Ceilings;
use ::kernels::Isa;
use model::{KNOWN_SHAPES, KnownShape};

/// Measure this machine.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Kernels(kernels::Arguments),
    Step(Box<step::Arguments>),
    Generate(generate::Arguments),
    Sustained(simulation::SustainedArguments),
    Schedules(simulation::ScheduleArguments),
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    match arguments.what {
        What::Kernels(arguments) => kernels::run(&arguments, terminal),
        What::Step(arguments) => step::run(&arguments, terminal),
        What::Generate(arguments) => generate::run(&arguments, terminal),
        What::Sustained(arguments) => simulation::sustained(&arguments, terminal),
        What::Schedules(arguments) => simulation::schedules(&arguments, terminal),
    }
}

/// What the instructions and the memory of this machine give at best.
fn show_ceilings(ceilings: &Ceilings, terminal: &Terminal) {
    terminal.line(format!(
        "one thread at best: {:.0} GMAC/s of 16-bit, {:.0} of 8-bit integers, {:.0} of float32; reads {:.1} GB/s",
        ceilings.i16_dot_gmac_per_s,
        ceilings.i8_dot_gmac_per_s,
        ceilings.f32_fma_gmac_per_s,
        ceilings.read_gbyte_per_s
    ));
}

fn model_shape(text: &str) -> Result<KnownShape, String> {
    let names = || KNOWN_SHAPES.map(|shape| shape.name).join(", ");
    KnownShape::by_name(text).ok_or_else(|| format!("known shapes are {}", names()))
}

fn json_ceilings(ceilings: &Ceilings) -> serde_json::Value {
    serde_json::json!({
        "i16_dot_gmac_per_s": ceilings.i16_dot_gmac_per_s,
        "i8_dot_gmac_per_s": ceilings.i8_dot_gmac_per_s,
        "f32_fma_gmac_per_s": ceilings.f32_fma_gmac_per_s,
        "read_gbyte_per_s": ceilings.read_gbyte_per_s,
    })
}

/// The instruction set called `name`, or the best one.
fn instruction_set(name: Option<&str>) -> Result<Isa, Failure> {
    match name {
        None => Ok(Isa::best()),
        Some(name) => Isa::by_name(name).ok_or_else(|| {
            let names: Vec<_> = Isa::available().iter().map(|isa| isa.name()).collect();
            Failure::usage(format!("--isa {name}: this machine has {}", names.join(", ")))
        }),
    }
}

/// Refuses what would take more memory than there is. `needed_bytes` are `None` where no machine has as many.
fn check_memory(what: &str, expected: &str, needed_bytes: Option<u64>) -> Result<(), Failure> {
    let needed = needed_bytes.map_or("more memory than can be addressed".into(), |bytes| format!("{} of memory", human_bytes(bytes)));
    match device::available_memory_bytes() {
        Some(available) if needed_bytes.is_none_or(|needed| needed > available) => Err(Failure::usage(format!(
            "{what} takes {needed}, {} are available: expected {expected}",
            human_bytes(available)
        ))),
        None if needed_bytes.is_none() => Err(Failure::usage(format!("{what} takes {needed}: expected {expected}"))),
        _ => Ok(()),
    }
}
