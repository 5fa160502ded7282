//! `selftune merge`: a task adapter becomes part of the model.

use crate::failure::{ExitStatus, Outcome};
use crate::merging::{self, MergeArguments};
use crate::terminal::{Terminal, human_bytes};
use std::path::PathBuf;

/// Add an adapter into the weights of its base model.
///
/// The sum is made in float and, with --bits, quantized once: an MLX folder that this program and mlx-lm read. Memory
/// holds one tensor at a time. A base that is quantized already has steps in which the sum can vanish; there base,
/// adapter and merged model are measured on held-out records first, and a merge that loses the gain is refused.
///   selftune merge --model FLOAT --adapter runs/task/adapter/best --out task-model --bits 4
///   selftune merge --model QUANTIZED --adapter runs/task/adapter/best --out task-model --history everybody.jsonl --user ann
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// Hugging Face or MLX folder, not GGUF: the best is the float folder that a quantized model was made from
    #[arg(long)]
    model: String,
    /// Adapter folder (PEFT or MLX layout); may be repeated, from the base model upwards
    #[arg(long, required = true, value_name = "FOLDER")]
    adapter: Vec<PathBuf>,
    /// Folder of the merged model, which must not exist
    #[arg(long, short, value_name = "FOLDER")]
    out: PathBuf,
    #[command(flatten)]
    merge: MergeArguments,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let Arguments { model, adapter, out, merge } = &arguments;
    let merged = merging::merge(model, adapter, out, merge, terminal)?;
    show(&merged, out, terminal);
    Ok(ExitStatus::Done)
}

pub fn show(merged: &merging::Merged, out: &std::path::Path, terminal: &Terminal) {
    let form = if merged.is_quantized { "quantized, MLX layout" } else { "float, Hugging Face layout" };
    terminal.line(format!("{}: {} ({form})", out.display(), human_bytes(merged.bytes)));
    match &merged.measurement {
        Some(measured) => terminal.line(format!(
            "  loss on {} held-out records: base {:.4}, with the adapter {:.4}, merged {:.4}",
            measured.records, measured.base_loss, measured.adapter_loss, measured.merged_loss
        )),
        None => terminal.remark("not measured: --history compares base, adapter and merged model on held-out records"),
    }
    terminal.json(&serde_json::json!({
        "out": out.display().to_string(),
        "bytes": merged.bytes,
        "adapters": merged.adapters,
        "quantized": merged.is_quantized,
        "measurement": merged.measurement,
        "forced": merged.forced,
    }));
}
