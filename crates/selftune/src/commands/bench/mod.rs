//! `selftune bench`: measurements that check their own answers.

mod kernels;
mod step;

use crate::failure::{Failure, Outcome};
use crate::simulation;
use crate::terminal::Terminal;
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
    Step(step::Arguments),
    Sustained(simulation::SustainedArguments),
    Schedules(simulation::ScheduleArguments),
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    match arguments.what {
        What::Kernels(arguments) => kernels::run(&arguments, terminal),
        What::Step(arguments) => step::run(&arguments, terminal),
        What::Sustained(arguments) => simulation::sustained(&arguments, terminal),
        What::Schedules(arguments) => simulation::schedules(&arguments, terminal),
    }
}

fn model_shape(text: &str) -> Result<KnownShape, String> {
    let names = || KNOWN_SHAPES.map(|shape| shape.name).join(", ");
    KnownShape::by_name(text).ok_or_else(|| format!("known shapes are {}", names()))
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
