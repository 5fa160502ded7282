//! `selftune bench`: measurements that check their own answers.

use crate::failure::{ExitStatus, Failure, Outcome};
use crate::simulation;
use crate::terminal::Terminal;
use kernels::bench::{BenchCase, BenchRow, bench_qlinear};
use kernels::qlinear::Direction;
use kernels::{Isa, Precision};

/// Measure this machine.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Kernels(KernelArguments),
    Sustained(simulation::SustainedArguments),
    Schedules(simulation::ScheduleArguments),
}

/// The products with frozen weights, both directions, against the ceiling of their instruction.
///
/// Times `Y = X·Wᵀ` (forward) and `dX = dY·W` (input_grad) over packed weights.
///
/// The ceiling is the rate of the product's own dot instruction in registers, measured between the timed runs; a
/// fraction of 0.75 means that everything else (unpacking, scales, quantizing the activations, memory) costs a quarter.
/// The error is against float64, on the very outputs that were timed.
#[derive(clap::Args)]
struct KernelArguments {
    /// Shapes N_OUTxK_IN, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "576x576,1536x576,576x1536,2048x2048,11008x2048", value_parser = shape)]
    shapes: Vec<(usize, usize)>,
    /// Numbers of tokens, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "128,256,1024")]
    tokens: Vec<usize>,
    /// Precisions, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "a16,exact,a8", value_parser = precision)]
    precisions: Vec<Precision>,
    /// Weights that share a scale
    #[arg(long, default_value_t = 64)]
    group_size: usize,
    /// Bits of a weight
    #[arg(long, default_value_t = 4)]
    bits: u32,
    /// Worker threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Instruction set instead of the best one
    #[arg(long)]
    isa: Option<String>,
    /// Seconds for each row at least
    #[arg(long, default_value_t = 0.15)]
    seconds: f64,
}

fn shape(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once('x').and_then(|(n, k)| Some((n.parse().ok()?, k.parse().ok()?)));
    match parsed {
        Some((n, k)) if (1..=1 << 20).contains(&n) && (1..=1 << 20).contains(&k) => Ok((n, k)),
        _ => Err("expected N_OUTxK_IN, such as 2048x2048".into()),
    }
}

fn precision(text: &str) -> Result<Precision, String> {
    Precision::by_name(text).ok_or_else(|| "expected a16, exact or a8".into())
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    match arguments.what {
        What::Kernels(arguments) => kernels_bench(&arguments, terminal),
        What::Sustained(arguments) => simulation::sustained(&arguments, terminal),
        What::Schedules(arguments) => simulation::schedules(&arguments, terminal),
    }
}

fn check(arguments: &KernelArguments) -> Result<Isa, Failure> {
    let invalid = |what: String| Err(Failure::usage(what));
    if ![16, 32, 64, 128].contains(&arguments.group_size) {
        return invalid(format!("--group-size {}: expected 16, 32, 64 or 128", arguments.group_size));
    }
    if !(2..=8).contains(&arguments.bits) {
        return invalid(format!("--bits {}: expected 2 to 8", arguments.bits));
    }
    if let Some((n, k)) = arguments.shapes.iter().find(|(_, k)| !k.is_multiple_of(arguments.group_size)) {
        return invalid(format!("--shapes {n}x{k}: {k} columns are no multiple of the group of {}", arguments.group_size));
    }
    if !(1..=1024).contains(&arguments.threads) {
        return invalid(format!("--threads {}: expected 1 to 1024", arguments.threads));
    }
    if arguments.tokens.iter().any(|tokens| !(1..=1 << 16).contains(tokens)) {
        return invalid("--tokens: expected 1 to 65536".into());
    }
    if !(arguments.seconds > 0.0 && arguments.seconds <= 60.0) {
        return invalid("--seconds: expected more than 0, at most 60".into());
    }
    match &arguments.isa {
        None => Ok(Isa::best()),
        Some(name) => Isa::by_name(name).ok_or_else(|| {
            let names: Vec<_> = Isa::available().iter().map(|isa| isa.name()).collect();
            Failure::usage(format!("--isa {name}: this machine has {}", names.join(", ")))
        }),
    }
}

fn kernels_bench(arguments: &KernelArguments, terminal: &Terminal) -> Outcome {
    let isa = check(arguments)?;
    let cases = cases(arguments, isa);
    terminal.line(format!(
        "{} on {}, {} thread(s), {}-bit codes in groups of {}; medians, ceiling measured between the runs",
        isa.name(),
        device::Machine::describe(),
        arguments.threads,
        arguments.bits,
        arguments.group_size
    ));
    terminal.line(format!(
        "{:<11} {:<6} {:<26} {:>6} {:>6} {:>6} {:>8} {:>8} {:>6} {:>9}",
        "direction", "prec", "kernel", "n_out", "k_in", "tokens", "GMAC/s", "ceiling", "frac", "error"
    ));
    let bar = terminal.bar(cases.len() as u64, "bench", "rows");
    let mut rows = Vec::new();
    for case in &cases {
        let row = bench_qlinear(case);
        bar.suspend(|| terminal.line(text_row(&row)));
        bar.inc(1);
        rows.push(row);
    }
    bar.finish_and_clear();
    let mut summary = Vec::new();
    for precision in &arguments.precisions {
        for direction in ["forward", "input_grad"] {
            let fractions = rows.iter().filter(|row| row.direction == direction && row.precision == precision.name());
            let mut fractions: Vec<f64> = fractions.map(|row| row.fraction).collect();
            fractions.sort_by(f64::total_cmp);
            let (median, least) = (fractions[fractions.len() / 2], fractions[0]);
            terminal.line(format!("{direction:<11} {:<6} median {median:.2} of the ceiling, least {least:.2}", precision.name()));
            summary.push(serde_json::json!({
                "direction": direction, "precision": precision.name(), "median_fraction": median, "least_fraction": least,
            }));
        }
    }
    terminal.json(&serde_json::json!({"rows": rows.iter().map(json_row).collect::<Vec<_>>(), "summary": summary, "isa": isa.name(), "machine": device::Machine::describe()}));
    Ok(ExitStatus::Done)
}

fn cases(arguments: &KernelArguments, isa: Isa) -> Vec<BenchCase> {
    let mut cases = Vec::new();
    for &precision in &arguments.precisions {
        for direction in [Direction::Forward, Direction::InputGrad] {
            for &(n_out, k_in) in &arguments.shapes {
                for &tokens in &arguments.tokens {
                    cases.push(BenchCase {
                        n_out,
                        k_in,
                        tokens,
                        bits: arguments.bits,
                        group_size: arguments.group_size,
                        precision,
                        direction,
                        threads: arguments.threads,
                        isa,
                        seconds_min: arguments.seconds,
                    });
                }
            }
        }
    }
    cases
}

fn text_row(row: &BenchRow) -> String {
    format!(
        "{:<11} {:<6} {:<26} {:>6} {:>6} {:>6} {:>8.1} {:>8.1} {:>6.2} {:>9.1e}",
        row.direction,
        row.precision,
        row.kernel,
        row.n_out,
        row.k_in,
        row.tokens,
        row.gmac_per_s,
        row.ceiling_gmac_per_s,
        row.fraction,
        row.relative_error
    )
}

fn json_row(row: &BenchRow) -> serde_json::Value {
    serde_json::json!({
        "op": row.op,
        "direction": row.direction,
        "precision": row.precision,
        "kernel": row.kernel,
        "n_out": row.n_out,
        "k_in": row.k_in,
        "tokens": row.tokens,
        "threads": row.threads,
        "gmac_per_s": row.gmac_per_s,
        "ceiling_gmac_per_s": row.ceiling_gmac_per_s,
        "fraction": row.fraction,
        "relative_error": row.relative_error,
    })
}
