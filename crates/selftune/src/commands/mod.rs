//! The commands: each is one file with `Arguments`, whose documentation is its help, and `run`; and one line here.

use crate::failure::Outcome;
use crate::terminal::Terminal;

macro_rules! commands {
    ($($variant:ident = $module:ident),* $(,)?) => {
        $(pub mod $module;)*

        #[derive(clap::Subcommand)]
        pub enum Command {
            $($variant($module::Arguments),)*
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
    Demo = demo,
    Pull = pull,
    Import = import,
    Plan = plan,
    Train = train,
    Eval = eval,
    Study = study,
    Adapters = adapters,
    Rollback = rollback,
    Generate = generate,
    Chat = chat,
    Merge = merge,
    Export = export,
    Inspect = inspect,
    Status = status,
    Runs = runs,
    Forget = forget,
    Bench = bench,
}
