//! `selftune bench kernels`: the products with frozen weights against the ceilings of this machine.

use super::{check_memory, instruction_set, json_ceilings, model_shape};
use crate::failure::{ExitStatus, Failure, Outcome};
use crate::terminal::Terminal;
use kernels::bench::{BenchCase, BenchRow, StreamCase, StreamRow, bench_qlinear, bench_stream};
use kernels::qlinear::Direction;
use kernels::{Isa, Precision};
use model::{KNOWN_SHAPES, KnownShape};

/// The products with frozen weights, both directions, against the ceilings of this machine.
///
/// Times `Y = X·Wᵀ` (forward) and `dX = Σ dY·W` (input_grad) over packed random weights, for each product of a block
/// as the model makes it: matrices that share their input in one call. Then one row through many weights, as in
/// generation, from memory and from the cache.
///
/// The ceiling of a product is the rate of its dot instruction in registers, measured between the timed runs: 0.80
/// means that everything else (unpacking, scales, quantizing the activations, memory) costs a fifth. The ceiling of
/// one row is the rate of only reading the same bytes. Errors are against float64, on the very outputs that were timed.
///
///   selftune bench kernels                                   all known shapes, one thread
///   selftune bench kernels --shape smollm3-3b --threads 2    one shape, and two threads against one
///   selftune bench kernels --matrices 2048x2048 --tokens 1,7,512 --precisions a16,a8,exact --isa avx2
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Arguments {
    /// Model shape, repeatable: smollm2-135m, gemma3-270m, smollm2-360m, smollm3-3b, qwen3-8b. All without --matrices
    #[arg(long, value_parser = model_shape)]
    shape: Vec<KnownShape>,
    /// Single matrices N_OUTxK_IN, comma-separated
    #[arg(long, value_delimiter = ',', value_parser = matrix)]
    matrices: Vec<(usize, usize)>,
    /// Numbers of tokens, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "128,256,512,1024")]
    tokens: Vec<usize>,
    /// Precisions, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "a16", value_parser = precision)]
    precisions: Vec<Precision>,
    /// Weights that share a scale
    #[arg(long, default_value_t = 64)]
    group_size: usize,
    /// Bits of a weight
    #[arg(long, default_value_t = 4)]
    bits: u32,
    /// Worker threads; above 1, each row is also timed on one thread in turns
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Instruction set instead of the best one
    #[arg(long)]
    isa: Option<String>,
    /// Seconds for the timed rounds of each row, ceilings between them included; three rounds are made whatever they take.
    /// Making random weights and the check in float64 come besides: a quick look also wants fewer --tokens and --stream-mb 0
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Megabytes of weights that one row of activations goes through; 0 leaves that out
    #[arg(long, default_value_t = 1000)]
    stream_mb: usize,
}

fn matrix(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once('x').and_then(|(n, k)| Some((n.parse().ok()?, k.parse().ok()?)));
    match parsed {
        Some((n, k)) if (1..=1 << 20).contains(&n) && (1..=1 << 20).contains(&k) => Ok((n, k)),
        _ => Err("expected N_OUTxK_IN, such as 2048x2048".into()),
    }
}

fn precision(text: &str) -> Result<Precision, String> {
    Precision::by_name(text).ok_or_else(|| "expected a16, exact or a8".into())
}

/// What one call multiplies: a name and the matrices that share an input.
struct Product {
    name: String,
    matrices: Vec<(usize, usize)>,
}

fn products(arguments: &Arguments) -> Vec<Product> {
    let shapes = match (arguments.shape.is_empty(), arguments.matrices.is_empty()) {
        (true, true) => &KNOWN_SHAPES[..],
        _ => &arguments.shape,
    };
    let of_shape = |shape: &KnownShape| {
        let name = shape.name;
        let products = shape.config().block_products().into_iter();
        products.map(move |(product, matrices)| Product { name: format!("{name} {product}"), matrices })
    };
    let single = |(n, k): &(usize, usize)| Product { name: format!("{n}x{k}"), matrices: vec![(*n, *k)] };
    shapes.iter().flat_map(of_shape).chain(arguments.matrices.iter().map(single)).collect()
}

fn check(arguments: &Arguments) -> Result<Isa, Failure> {
    let invalid = |what: String| Err(Failure::usage(what));
    if ![16, 32, 64, 128].contains(&arguments.group_size) {
        return invalid(format!("--group-size {}: expected 16, 32, 64 or 128", arguments.group_size));
    }
    if !(2..=8).contains(&arguments.bits) {
        return invalid(format!("--bits {}: expected 2 to 8", arguments.bits));
    }
    for product in products(arguments) {
        if let Some((n, k)) = product.matrices.iter().find(|(_, k)| !k.is_multiple_of(arguments.group_size)) {
            let group = arguments.group_size;
            return invalid(format!("{} [{n}, {k}]: {k} columns are no multiple of the group of {group}", product.name));
        }
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
    if arguments.stream_mb > 1 << 20 {
        return invalid("--stream-mb: expected at most 1048576".into());
    }
    let isa = instruction_set(arguments.isa.as_deref())?;
    for (name, case) in cases(arguments, isa) {
        let what = format!("{name} with --tokens {}", case.tokens);
        check_memory(&what, "smaller --matrices or fewer --tokens", case.memory_bytes()?)?;
    }
    if arguments.stream_mb > 0 {
        let what = format!("--stream-mb {}", arguments.stream_mb);
        check_memory(&what, "less", stream_case(arguments, isa, STREAMED_SIDE, arguments.stream_mb).memory_bytes()?)?;
    }
    Ok(isa)
}

pub(super) fn run(arguments: &Arguments, terminal: &Terminal) -> Outcome {
    let isa = check(arguments)?;
    let cases = cases(arguments, isa);
    let ceilings = kernels::ceiling::measure(isa);
    terminal.line(format!(
        "{} on {}, {} thread(s), {}-bit codes in groups of {}; medians, ceilings measured between the runs",
        isa.name(),
        device::Machine::describe(),
        arguments.threads,
        arguments.bits,
        arguments.group_size
    ));
    super::show_ceilings(&ceilings, terminal);
    terminal.line(format!(
        "{:<11} {:<6} {:<26} {:<20} {:>6} {:>8} {:>8} {:>6} {:>9} {:>8}",
        "direction", "prec", "kernel", "product", "tokens", "GMAC/s", "ceiling", "frac", "error", "speedup"
    ));
    let bar = terminal.bar(cases.len() as u64, "bench", "rows");
    let mut rows = Vec::new();
    for (name, case) in &cases {
        let row = bench_qlinear(case);
        bar.suspend(|| terminal.line(text_row(name, &row)));
        bar.inc(1);
        rows.push((name, row));
    }
    bar.finish_and_clear();
    let mut summary = Vec::new();
    for precision in &arguments.precisions {
        for direction in ["forward", "input_grad"] {
            let of_kind = |row: &&(&String, BenchRow)| row.1.direction == direction && row.1.precision == precision.name();
            let rows: Vec<&BenchRow> = rows.iter().filter(of_kind).map(|(_, row)| row).collect();
            let (median, least) = median_and_least(rows.iter().map(|row| row.fraction).collect());
            let mut line = format!("{direction:<11} {:<6} median {median:.2} of the ceiling, least {least:.2}", precision.name());
            let speedups: Vec<f64> = rows.iter().filter_map(|row| row.speedup).collect();
            let speedup = (!speedups.is_empty()).then(|| median_and_least(speedups).0);
            if let Some(speedup) = speedup {
                line += &format!("; {} threads {speedup:.2} times one", arguments.threads);
            }
            terminal.line(line);
            summary.push(serde_json::json!({
                "direction": direction, "precision": precision.name(), "median_fraction": median,
                "least_fraction": least, "median_speedup": speedup,
            }));
        }
    }
    let streams = streams(arguments, isa);
    for (name, row) in &streams {
        terminal.line(format!(
            "one row, {:.0} MB of weights from the {name}: {:.1} GB/s, {:.2} of {:.1} GB/s read, error {:.1e}",
            row.bytes as f64 / 1e6,
            row.gbyte_per_s,
            row.fraction,
            row.read_gbyte_per_s,
            row.relative_error
        ));
    }
    terminal.json(&serde_json::json!({
        "rows": rows.iter().map(|(name, row)| json_row(name, row)).collect::<Vec<_>>(),
        "summary": summary,
        "streams": streams.iter().map(|(name, row)| json_stream(name, row)).collect::<Vec<_>>(),
        "ceilings": json_ceilings(&ceilings),
        "isa": isa.name(),
        "machine": device::Machine::describe(),
    }));
    Ok(ExitStatus::Done)
}

fn median_and_least(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0])
}

fn cases(arguments: &Arguments, isa: Isa) -> Vec<(String, BenchCase)> {
    let mut cases = Vec::new();
    for &precision in &arguments.precisions {
        for direction in [Direction::Forward, Direction::InputGrad] {
            for product in products(arguments) {
                for &tokens in &arguments.tokens {
                    let case = BenchCase {
                        matrices: product.matrices.clone(),
                        tokens,
                        bits: arguments.bits,
                        group_size: arguments.group_size,
                        precision,
                        direction,
                        threads: arguments.threads,
                        isa,
                        seconds: arguments.seconds,
                    };
                    cases.push((product.name.clone(), case));
                }
            }
        }
    }
    cases
}

/// Rows and columns of the matrices that stream from memory, and of the one that stays in a cache.
const STREAMED_SIDE: usize = 2048;
const CACHED_SIDE: usize = 1024;

/// One row through weights that stream from memory, and through a matrix that stays in a cache.
fn streams(arguments: &Arguments, isa: Isa) -> Vec<(&'static str, StreamRow)> {
    if arguments.stream_mb == 0 {
        return Vec::new();
    }
    let stream = |side, megabytes| bench_stream(&stream_case(arguments, isa, side, megabytes));
    vec![("memory", stream(STREAMED_SIDE, arguments.stream_mb)), ("cache", stream(CACHED_SIDE, 0))]
}

/// Square matrices of `megabytes` together, one at least.
fn stream_case(arguments: &Arguments, isa: Isa, side: usize, megabytes: usize) -> StreamCase {
    let bytes = side * side * arguments.bits.next_power_of_two().max(4) as usize / 8;
    StreamCase {
        n_out: side,
        k_in: side,
        count: megabytes.saturating_mul(1_000_000).div_ceil(bytes).max(1),
        bits: arguments.bits,
        group_size: arguments.group_size,
        threads: arguments.threads,
        isa,
        seconds: arguments.seconds,
    }
}

fn text_row(name: &str, row: &BenchRow) -> String {
    let speedup = row.speedup.map_or(String::new(), |speedup| format!("{speedup:.2}"));
    format!(
        "{:<11} {:<6} {:<26} {name:<20} {:>6} {:>8.1} {:>8.1} {:>6.2} {:>9.1e} {speedup:>8}",
        row.direction,
        row.precision,
        row.kernel,
        row.tokens,
        row.gmac_per_s,
        row.ceiling_gmac_per_s,
        row.fraction,
        row.relative_error
    )
}

fn json_row(name: &str, row: &BenchRow) -> serde_json::Value {
    serde_json::json!({
        "op": row.op,
        "direction": row.direction,
        "precision": row.precision,
        "kernel": row.kernel,
        "product": name,
        "matrices": row.matrices,
        "tokens": row.tokens,
        "threads": row.threads,
        "gmac_per_s": row.gmac_per_s,
        "gmac_per_s_best": row.gmac_per_s_best,
        "ceiling_gmac_per_s": row.ceiling_gmac_per_s,
        "fraction": row.fraction,
        "speedup": row.speedup,
        "relative_error": row.relative_error,
    })
}

fn json_stream(name: &str, row: &StreamRow) -> serde_json::Value {
    serde_json::json!({
        "from": name,
        "bytes": row.bytes,
        "threads": row.threads,
        "gbyte_per_s": row.gbyte_per_s,
        "read_gbyte_per_s": row.read_gbyte_per_s,
        "fraction": row.fraction,
        "relative_error": row.relative_error,
    })
}
