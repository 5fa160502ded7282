//! `selftune export`: adapters for other programs.

use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::merging::{self, MergeArguments};
use crate::model_store;
use crate::terminal::{Terminal, human_bytes};
use crate::workbench::{read_named_adapter, show_stack};
use formats::adapter::{AdapterFile, write_gguf, write_mlx, write_peft};
use formats::{NewFolder, describe_model};
use model::{AdapterStack, ModelConfig};
use std::path::{Path, PathBuf};

/// Write an adapter in another program's format.
///
/// An adapter of another base than --model is refused, unless --other-base says that it is the same model in other files.
/// All formats keep the receipt of what the adapter saw (`selftune inspect --saw ID`), of several that of all.
///
/// peft: a folder for transformers and most others; mlx: a folder for mlx-lm; gguf: a file for llama.cpp's --lora;
/// merged: the whole model with the adapter in its weights, as `selftune merge`. Several adapters become one whose rank
/// is the sum of theirs.
///   selftune export --adapter runs/me/adapter/best --to peft --out me-peft
///   selftune export --model M --adapter runs/me/adapter/best --to gguf --out me.gguf
///   selftune export --model M --adapter TASK --adapter ME --to mlx --out me-mlx
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// Adapter folder (PEFT or MLX layout); may be repeated, from the base model upwards
    #[arg(long, required = true, value_name = "FOLDER")]
    adapter: Vec<PathBuf>,
    /// The format: peft, mlx, gguf or merged
    #[arg(long, value_parser = ["peft", "mlx", "gguf", "merged"], value_name = "FORMAT")]
    to: String,
    /// Where to write: a folder, or a file for gguf; it must not exist
    #[arg(long, short, value_name = "PATH")]
    out: PathBuf,
    /// The base model, which all formats but peft need: GGUF file (not for merged), Hugging Face or MLX folder, or a pulled model's name
    #[arg(long, required_if_eq_any = [("to", "mlx"), ("to", "gguf"), ("to", "merged")])]
    model: Option<String>,
    #[command(flatten)]
    merge: MergeArguments,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let Arguments { adapter, to, out, model, merge } = &arguments;
    if std::fs::symlink_metadata(out).is_ok() {
        return Err(Failure::usage(format!("{} exists and is not overwritten", out.display())));
    }
    if let ("merged", Some(model)) = (to.as_str(), model) {
        let merged = merging::merge(model, adapter, out, merge, terminal)?;
        super::merge::show(&merged, out, terminal);
        return Ok(ExitStatus::Done);
    }
    let files = adapter.iter().map(|folder| read_named_adapter(folder)).collect::<Result<Vec<_>, _>>()?;
    let base_config = match model {
        Some(model) => {
            let path = model_store::resolve(model)?;
            Some(describe_model(&path).bad_input(format!("cannot use the model {}", path.display()))?.config)
        }
        None => None,
    };
    let mut whole = checked(&files, base_config.as_ref(), terminal)?;
    if let Some(model) = model {
        let files: Vec<&AdapterFile> = files.iter().map(|(_, file)| file).collect();
        let base = merging::check_base(&model_store::resolve(model)?, &files, merge.other_base, terminal)?;
        if let Some(metadata) = &mut whole.metadata {
            metadata.base_content_hash = base;
        }
    }
    let bytes = whole.matrices.iter().map(|matrix| 4 * (matrix.a.len() + matrix.b.len()) as u64).sum();
    merging::check_disk(out, bytes)?;
    let refused = |error| {
        let failure = merging::write_failure(error);
        Failure { error: failure.error.context(format!("cannot export to {to}")), ..failure }
    };
    match (to.as_str(), &base_config) {
        ("peft", _) => write_folder(out, |folder| write_peft(folder, &whole)).map_err(refused)?,
        ("mlx", Some(config)) => {
            let blocks = ModelConfig::from_json(config).bad_input("cannot use the model")?.blocks.len();
            write_folder(out, |folder| write_mlx(folder, &whole, blocks)).map_err(refused)?;
        }
        ("gguf", Some(config)) => write_gguf(out, &whole, config).map_err(refused)?,
        _ => return Err(Failure::usage(format!("--to {to} needs --model"))),
    }
    terminal.line(format!("{}: {to}, rank {}, {}", out.display(), whole.config.r, human_bytes(bytes)));
    terminal.json(&serde_json::json!({
        "out": out.display().to_string(),
        "format": to,
        "adapters": adapter.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>(),
        "rank": whole.config.r,
        "scale": whole.config.scale(),
        "matrices": whole.matrices.len(),
        "bytes": bytes,
    }));
    Ok(ExitStatus::Done)
}

/// The adapters as one. Where the base is known its shapes must fit; what an adapter was trained on top of must be below
/// it, for no other program would ask.
fn checked(
    files: &[(String, AdapterFile)],
    base_config: Option<&serde_json::Value>,
    terminal: &Terminal,
) -> Result<AdapterFile, Failure> {
    let entries = AdapterStack::check_order(files).bad_input("cannot export")?;
    if let Some(config) = base_config {
        let config = ModelConfig::from_json(config).bad_input("cannot use the model")?;
        AdapterStack::for_config(files, &config).bad_input("the adapter does not fit the model")?;
    }
    show_stack(&entries, terminal);
    Ok(match files {
        [(_, file)] => file.clone(),
        files => {
            let files: Vec<&AdapterFile> = files.iter().map(|(_, file)| file).collect();
            let mut whole = AdapterFile::concatenated(&files);
            if let (Some(metadata), Some(receipt)) = (&mut whole.metadata, merging::receipt(&files)) {
                metadata.receipt["examples"] = serde_json::to_value(receipt.examples)?;
                metadata.receipt["records"] = serde_json::to_value(receipt.records)?;
                metadata.receipt["config"] = serde_json::to_value(receipt.config)?;
            }
            whole
        }
    })
}

/// Writes a folder that appears under its name only when it is whole.
fn write_folder(
    out: &Path,
    write: impl FnOnce(&Path) -> Result<(), formats::FormatError>,
) -> Result<(), formats::FormatError> {
    let folder = NewFolder::begin(out)?;
    write(folder.path())?;
    folder.keep()
}
