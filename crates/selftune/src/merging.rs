//! Adds adapters into the weights of a model, and measures what is left of their gain; used by `merge` and `export`.

use crate::failure::{Failure, InputError};
use crate::model_store;
use crate::preparation::{self, HoldOut};
use crate::terminal::{Terminal, human_bytes};
use crate::workbench::{
    ComputeArguments, HistoryArguments, HistoryChoice, ModelChoice, ReadingArguments, Workbench, read_named_adapter,
    show_stack,
};
use clap::builder::TypedValueParser;
use data::{Example, ExampleOptions, Retriever};
use formats::adapter::{AdapterFile, StackEntry};
use formats::{LoadProgress, ModelRewrite, NewFolder, RewriteOptions, WrittenWeights};
use model::{AdapterStack, AdapterWeights, Generator, GeneratorOptions, ModelConfig};
use serde::Serialize;
use std::path::{Path, PathBuf};
use train::Receipt;

/// How a merged model is written and judged.
#[derive(clap::Args, Clone, Debug)]
pub struct MergeArguments {
    /// Quantize the merged weights to so many bits, once (an MLX folder) [default: float, or the bits of a quantized base]
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(["4", "8"]).map(|bits| bits.parse::<u32>().expect("listed")), value_name = "BITS")]
    bits: Option<u32>,
    /// Weights that share a scale, with --bits
    #[arg(long, default_value_t = 64, value_name = "N")]
    group_size: usize,
    /// Write float weights also where the base is quantized
    #[arg(long, conflicts_with = "bits")]
    float: bool,
    /// A history on whose newest records base, adapter and merged model are measured; needed for a quantized base
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Newest records to measure on, a share below 1 or a number; the same as in `train` and `eval`
    #[arg(long, default_value = "0.1", value_parser = HoldOut::parse, value_name = "SHARE")]
    hold_out: HoldOut,
    /// Refuse when more than this share of the adapter's gain is lost
    #[arg(long, default_value_t = 0.1, value_name = "SHARE")]
    loss_of_gain_max: f64,
    /// Write the model whatever the measurement says; the folder remembers it
    #[arg(long)]
    force: bool,
    /// Accept a base that is not the very files that the adapter was trained on, as the float original of a quantized one
    #[arg(long)]
    pub other_base: bool,
    #[command(flatten)]
    records: HistoryArguments,
    #[command(flatten)]
    compute: ComputeArguments,
}

/// Losses in nats per learned token on held-out records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MergeMeasurement {
    pub records: usize,
    pub tokens: usize,
    pub base_loss: f64,
    pub adapter_loss: f64,
    pub merged_loss: f64,
    /// How much of the adapter's gain the merged model has lost; none without a gain.
    pub loss_of_gain: Option<f64>,
}

impl MergeMeasurement {
    fn new(records: usize, tokens: usize, [base_loss, adapter_loss, merged_loss]: [f64; 3]) -> Self {
        let gain = base_loss - adapter_loss;
        let loss_of_gain = (gain > 0.0).then(|| (merged_loss - adapter_loss) / gain);
        Self { records, tokens, base_loss, adapter_loss, merged_loss, loss_of_gain }
    }

    /// Why the merged model should not replace the adapter, if so.
    fn refusal(&self, loss_of_gain_max: f64) -> Option<String> {
        let Self { base_loss, adapter_loss, merged_loss, records, .. } = self;
        let losses = format!(
            "on {records} held-out records the loss is {base_loss:.4} for the base, {adapter_loss:.4} with the adapter \
             and {merged_loss:.4} merged"
        );
        match self.loss_of_gain {
            None => Some(format!("{losses}: the adapter gains nothing there, so nothing shows that a merge keeps it")),
            Some(lost) if lost > loss_of_gain_max => Some(format!(
                "{losses}: {:.0} % of the gain is lost, at most {:.0} % may be",
                100.0 * lost,
                100.0 * loss_of_gain_max
            )),
            Some(_) => None,
        }
    }
}

/// A merged model in its place.
pub struct Merged {
    pub bytes: u64,
    pub adapters: Vec<StackEntry>,
    pub is_quantized: bool,
    pub measurement: Option<MergeMeasurement>,
    pub forced: bool,
}

/// Writes the model `base` with `adapters`, bottom first, added into its weights to the new folder `out`.
pub fn merge(
    base: &str,
    adapters: &[PathBuf],
    out: &Path,
    arguments: &MergeArguments,
    terminal: &Terminal,
) -> Result<Merged, Failure> {
    if !(0.0..=1.0).contains(&arguments.loss_of_gain_max) {
        return Err(Failure::usage(format!("--loss-of-gain-max {}: expected 0 to 1", arguments.loss_of_gain_max)));
    }
    if std::fs::symlink_metadata(out).is_ok() {
        return Err(Failure::usage(format!("{} exists and is not overwritten", out.display())));
    }
    let path = model_store::resolve(base)?;
    let named = adapters.iter().map(|folder| read_named_adapter(folder)).collect::<Result<Vec<_>, _>>()?;
    let files: Vec<&AdapterFile> = named.iter().map(|(_, file)| file).collect();
    let weights = match arguments.bits {
        Some(bits) => WrittenWeights::Affine { bits, group_size: arguments.group_size },
        None if arguments.float => WrittenWeights::Float,
        None => WrittenWeights::AsStored,
    };
    let rewrite = ModelRewrite::open(&path, &RewriteOptions::new(weights), &files).bad_input("cannot merge")?;
    let is_gate_needed = rewrite.is_quantized() && rewrite.is_written_quantized();
    if is_gate_needed && arguments.history.is_none() && !arguments.force {
        return Err(Failure::input(format!(
            "{} is quantized already, and what an adapter adds can vanish in its steps: merge into the float model that it \
             was made from, use the adapter as it is, or give --history to measure what is left of its gain",
            path.display()
        )));
    }
    let config = ModelConfig::from_json(&rewrite.source_config()).bad_input("cannot merge")?;
    let stack = AdapterStack::for_config(&named, &config).bad_input("cannot use the adapters")?;
    show_stack(stack.entries(), terminal);
    let base_hash = check_base(&path, &files, arguments.other_base, terminal)?;
    check_disk(out, rewrite.bytes())?;

    let folder = NewFolder::begin(out)?;
    let bar = terminal.bytes_bar(rewrite.bytes(), "merge");
    rewrite.write(folder.path(), &mut |bytes| bar.set_position(bytes)).map_err(write_failure)?;
    bar.finish_and_clear();
    let measurement = match &arguments.history {
        None => None,
        Some(history) => Some(measure(&path, history, &stack, folder.path(), arguments, terminal)?),
    };
    let refusal = measurement.and_then(|measured| measured.refusal(arguments.loss_of_gain_max));
    let forced = match refusal {
        Some(reason) if arguments.force => {
            terminal.warning(format!("{reason}; written all the same, as --force asks"));
            true
        }
        Some(reason) => {
            return Err(Failure::input(format!(
                "not merged: {reason}. Keep the adapter beside its base, merge into float weights, or use more --bits"
            )));
        }
        // Without a measurement --force stands for the gate that was not passed.
        None => is_gate_needed && measurement.is_none(),
    };
    let notes = serde_json::json!({
        "selftune_version": env!("CARGO_PKG_VERSION"),
        "base_content_hash": base_hash,
        "adapters": stack.entries(),
        "receipt": receipt(&files),
        "bits": arguments.bits,
        "measurement": measurement,
        "loss_of_gain_max": arguments.loss_of_gain_max,
        "forced": forced,
    });
    let names: Vec<&str> = stack.entries().iter().map(|entry| entry.name.as_str()).collect();
    let summary = format!("{} with the adapters {} merged into its weights by selftune.", base, names.join(", "));
    rewrite.write_notes(folder.path(), &summary, &notes)?;
    folder.keep()?;
    Ok(Merged {
        bytes: rewrite.bytes(),
        adapters: stack.entries().to_vec(),
        is_quantized: rewrite.is_written_quantized(),
        measurement,
        forced,
    })
}

/// A full disk or a forbidden folder is the machine's fault; sums that are no numbers are the input's.
pub fn write_failure(error: formats::FormatError) -> Failure {
    match error {
        formats::FormatError::Write { .. } => error.into(),
        error => Failure::input(error),
    }
}

/// What the adapters saw together; none if one of them cannot tell.
pub fn receipt(files: &[&AdapterFile]) -> Option<Receipt> {
    let receipts = files.iter().map(|file| serde_json::from_value(file.metadata.as_ref()?.receipt.clone()).ok());
    Receipt::together(&receipts.collect::<Option<Vec<Receipt>>>()?)
}

/// The content hash of the base at `path`. An adapter that remembers another base is refused unless that is wanted.
pub fn check_base(
    path: &Path,
    files: &[&AdapterFile],
    other_base: bool,
    terminal: &Terminal,
) -> Result<String, Failure> {
    let bar = terminal.bytes_bar(0, "read model");
    let mut shown = |progress: &LoadProgress| {
        bar.set_length(progress.bytes_total);
        bar.set_position(progress.bytes_done);
    };
    let found =
        formats::model_content_hash(path, &mut shown).bad_input(format!("cannot use the model {}", path.display()))?;
    bar.finish_and_clear();
    let expected = files.iter().filter_map(|file| file.metadata.as_ref()).map(|metadata| &metadata.base_content_hash);
    match expected.into_iter().find(|expected| **expected != found) {
        Some(expected) if !other_base => Err(Failure::input(format!(
            "the adapter was trained on other files than this base (hash {expected}, this base has {found}); if this is \
             the float original of the same model, say so with --other-base"
        ))),
        _ => Ok(found),
    }
}

/// Refuses what the disk has no room for before anything is written.
pub fn check_disk(out: &Path, bytes: u64) -> Result<(), Failure> {
    /// Headers, tokenizer and configuration, generously.
    const BESIDE_BYTES: u64 = 64 << 20;
    let needed = bytes + BESIDE_BYTES.min(bytes / 2 + (1 << 20));
    match device::free_disk_bytes(out) {
        Some(free) if free < needed => Err(Failure {
            exit: crate::failure::ExitStatus::Failed,
            error: anyhow::anyhow!(
                "{} needs {} on its disk, which has {} left",
                out.display(),
                human_bytes(needed),
                human_bytes(free)
            ),
        }),
        _ => Ok(()),
    }
}

/// Measures base, base with adapters, and the merged model in `merged` on the newest records of `history`.
fn measure(
    base: &Path,
    history: &Path,
    stack: &AdapterStack,
    merged: &Path,
    arguments: &MergeArguments,
    terminal: &Terminal,
) -> Result<MergeMeasurement, Failure> {
    let reading = ReadingArguments {
        quantize_bits: arguments.bits.unwrap_or(4),
        quantize_group_size: arguments.group_size,
        no_cache: true,
    };
    let choice = |path: &Path| ModelChoice::new(&path.display().to_string(), &reading);
    let bench = Workbench::open(&choice(base)?, true, terminal)?;
    let history = HistoryChoice::new(history, &arguments.records).read()?;
    let division = preparation::divide(&history, arguments.hold_out)?;
    if division.held_out.is_empty() {
        return Err(Failure::input(
            "no record is held out to measure on: the history is too short, or --hold-out is 0",
        ));
    }
    let tokens_max = bench.model.config().context_tokens_max.min(ExampleOptions::default().tokens_max);
    let options = ExampleOptions { tokens_max, retrieved_records: 0, ..ExampleOptions::default() };
    let example = |record| data::build_example(&bench.text, record, &Retriever::none(), &options);
    let examples: Vec<Example> =
        division.held_out.iter().map(example).collect::<Result<_, _>>().bad_input("a held-out record")?;
    let adapters = stack.weights();
    let (base_loss, tokens) = loss(&bench, &[], &examples, tokens_max, arguments)?;
    let (adapter_loss, _) = loss(&bench, &adapters, &examples, tokens_max, arguments)?;
    drop(bench);
    let bench = Workbench::open(&choice(merged)?, true, &Terminal::silent())?;
    let (merged_loss, _) = loss(&bench, &[], &examples, tokens_max, arguments)?;
    Ok(MergeMeasurement::new(examples.len(), tokens, [base_loss, adapter_loss, merged_loss]))
}

/// Mean loss of a learned token in nats, and the number of them.
fn loss(
    bench: &Workbench,
    adapters: &[&AdapterWeights],
    examples: &[Example],
    tokens_max: usize,
    arguments: &MergeArguments,
) -> Result<(f64, usize), Failure> {
    let options = GeneratorOptions::new(arguments.compute.options()?, tokens_max);
    let mut generator = Generator::stacked(bench.model.clone(), adapters, options).bad_input("cannot measure")?;
    let (mut sum, mut tokens) = (0.0, 0);
    for example in examples {
        let losses = generator.losses(&example.tokens, &example.loss_mask).bad_input("cannot measure")?;
        sum += losses.loss_sum;
        tokens += losses.losses.len();
    }
    Ok((sum / tokens.max(1) as f64, tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_is_judged_by_the_share_of_the_gain_that_it_loses() {
        let measured = |losses| MergeMeasurement::new(9, 100, losses);
        assert_eq!(measured([3.0, 2.0, 2.05]).refusal(0.1), None);
        assert_eq!(measured([3.0, 2.0, 1.9]).refusal(0.0), None, "better than the adapter");
        let refusal = measured([3.0, 2.0, 2.5]).refusal(0.1).expect("refused");
        for part in ["9 held-out records", "3.0000 for the base", "2.5000 merged", "50 % of the gain", "at most 10 %"] {
            assert!(refusal.contains(part), "{refusal}");
        }
        assert!(measured([3.0, 2.0, 3.2]).refusal(1.0).is_some(), "worse than the base");
        assert!(measured([2.0, 2.5, 2.5]).refusal(1.0).expect("refused").contains("gains nothing"));
    }
}
