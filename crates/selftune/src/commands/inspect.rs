//! `selftune inspect`: what a model, an adapter or a run holds.

use crate::failure::{ExitStatus, Failure, InputError, Outcome};
use crate::model_store;
use crate::terminal::{STRONG, Terminal, human_bytes, human_count, human_seconds};
use formats::adapter::AdapterMetadata;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use train::{Receipt, RunFolder};

/// Say what a model, an adapter or a run folder holds, or what is known of this machine (`--machine`).
///
/// Reads headers only: a model is neither loaded nor changed.
#[derive(clap::Args)]
pub struct Arguments {
    /// GGUF file of a model or an adapter, model folder, adapter folder, run folder, or the name of a pulled model
    #[arg(required_unless_present = "machine")]
    path: Option<PathBuf>,
    /// Say what the sensors of this machine tell, and what they cannot tell and why
    #[arg(long, conflicts_with = "path")]
    machine: bool,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Of an adapter, or of a model that adapters were merged into: did their training see the record with this id?
    #[arg(long, value_name = "ID")]
    saw: Option<String>,
}

pub fn run(arguments: Arguments, terminal: &Terminal) -> Outcome {
    let Some(path) = &arguments.path else { return inspect_machine(terminal) };
    if path.join("run.json").is_file() {
        return inspect_run(path, terminal);
    }
    if path.join("adapter_config.json").is_file() {
        return inspect_adapter(path, arguments.tensors, arguments.saw.as_deref(), terminal);
    }
    if formats::adapter::is_gguf(path) {
        return inspect_gguf_adapter(path, arguments.tensors, arguments.saw.as_deref(), terminal);
    }
    // A name of a model is text; anything else can only be a path.
    let model = path.to_str().map_or_else(|| Ok(path.clone()), model_store::resolve)?;
    inspect_model(&model, arguments.tensors, arguments.saw.as_deref(), terminal)
}

fn field(terminal: &Terminal, name: &str, value: impl std::fmt::Display) {
    terminal.line(format!("  {STRONG}{name:<15}{STRONG:#} {value}"));
}

fn inspect_machine(terminal: &Terminal) -> Outcome {
    let machine = device::Machine::describe();
    let mut sensors = device::system_sensors();
    let reading = sensors.read();
    let absent = sensors.absent();
    terminal.heading(format!("Machine: {machine}"));
    for (name, value) in readings(&reading) {
        field(terminal, name, value);
    }
    if !absent.is_empty() {
        terminal.heading("Not known here");
        for absent in &absent {
            field(terminal, absent.quantity.name(), &absent.reason);
        }
    }
    terminal.json(&serde_json::json!({"machine": machine, "reading": reading, "absent": absent}));
    Ok(ExitStatus::Done)
}

/// Name and value of what a reading has, for people.
fn readings(reading: &device::Reading) -> Vec<(&'static str, String)> {
    use device::{BatteryState, EnergySource, Quantity};
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let energy = reading.energy_source.map(|source| match source {
        EnergySource::ProcessorCounters => "measured by the processor's counters (without screen, disks and losses)",
        EnergySource::BatteryGauge => "measured by the battery's gauge, in its coarse steps",
        EnergySource::Simulation => "simulated",
        EnergySource::Host => "measured by the host application",
    });
    let battery = reading.battery.map(|battery| {
        let state = match battery.state {
            BatteryState::Charging => "charging",
            BatteryState::Discharging => "discharging",
            BatteryState::Idle => "neither charging nor discharging",
            BatteryState::Unknown => "in an unknown state",
        };
        let capacity = battery.capacity_wh.map(|wh| format!(", {wh:.1} Wh when full")).unwrap_or_default();
        let power = battery.power_w.map(|w| format!(", {w:.1} W")).unwrap_or_default();
        format!("{}, {state}{capacity}{power}", percent(battery.charge))
    });
    let yes_no = |yes: bool, if_yes: &str, if_no: &str| if yes { if_yes.to_owned() } else { if_no.to_owned() };
    let available = reading.memory_available_bytes.map(|bytes| format!(", {} available", human_bytes(bytes)));
    let values = [
        (Quantity::Energy, energy.map(str::to_owned)),
        (Quantity::Battery, battery),
        (Quantity::Charger, reading.external_power.map(|on| yes_no(on, "connected (or no battery to charge)", "not connected"))),
        (Quantity::Temperature, reading.temperature_c.map(|celsius| format!("{celsius:.1} °C"))),
        (Quantity::Throttling, reading.throttled.map(|on| yes_no(on, "the system slows itself down", "none reported"))),
        (Quantity::Frequency, reading.frequency_ratio.map(|ratio| format!("{} of the highest", percent(ratio)))),
        (Quantity::MemoryPressure, reading.memory_pressure.map(|share| format!("something waits for memory {} of the time{}", percent(share), available.unwrap_or_default()))),
        (Quantity::Load, reading.load.map(|load| format!("{load:.2} for each processor"))),
        (Quantity::UserActivity, reading.user_idle_s.map(|idle| format!("last touched {} ago", human_seconds(idle)))),
    ];
    values.into_iter().filter_map(|(quantity, value)| Some((quantity.name(), value?))).collect()
}

fn inspect_model(path: &Path, list_tensors: bool, record: Option<&str>, terminal: &Terminal) -> Outcome {
    let summary = formats::describe_model(path).bad_input("no model")?;
    let source = &summary.source;
    let text = |key: &str| summary.config.get(key).map_or_else(|| "?".to_owned(), |value| value.to_string().replace('"', ""));
    terminal.heading(format!("Model {}", source.path.display()));
    field(terminal, "name", source.name.as_deref().unwrap_or("(none in the file)"));
    field(terminal, "format", format!("{}, {}", source.kind, source.quantization));
    field(terminal, "family", text("model_type"));
    field(terminal, "shape", format!(
        "{} blocks, width {}, {} heads, {} key/value heads, feed-forward {}, vocabulary {}",
        text("num_hidden_layers"),
        text("hidden_size"),
        text("num_attention_heads"),
        text("num_key_value_heads"),
        text("intermediate_size"),
        text("vocab_size")
    ));
    field(terminal, "context", format!("{} tokens", text("max_position_embeddings")));
    field(terminal, "parameters", format!("{} in {}", human_count(summary.parameter_count), human_bytes(summary.tensor_bytes)));
    field(terminal, "tokenizer", &summary.tokenizer);
    field(terminal, "chat template", if summary.has_chat_template { "yes" } else { "no" });
    field(terminal, "licence", source.license.as_deref().unwrap_or("(none in the file)"));
    if list_tensors {
        terminal.heading("Tensors");
        for tensor in &summary.tensors {
            terminal.line(format!("  {:<52} {:<16} {:>10}  {}", tensor.name, format!("{:?}", tensor.shape), human_bytes(tensor.bytes), tensor.encoding));
        }
    }
    let merged = merge_notes(path)?;
    let receipt = merged.as_ref().and_then(|notes| serde_json::from_value(notes["receipt"].clone()).ok());
    if let Some(receipt) = &receipt {
        show_receipt(receipt, terminal);
    }
    let saw = show_saw(record, receipt.as_ref(), terminal);
    let tensors = if list_tensors { serde_json::to_value(&summary.tensors)? } else { summary.tensors.len().into() };
    terminal.json(&serde_json::json!({
        "model": source,
        "config": summary.config,
        "parameters": summary.parameter_count,
        "tensor_bytes": summary.tensor_bytes,
        "tokenizer": summary.tokenizer,
        "has_chat_template": summary.has_chat_template,
        "tensors": tensors,
        "merged": merged,
        "saw": saw,
    }));
    Ok(ExitStatus::Done)
}

/// What `merge` left in the folder of a model that it made.
fn merge_notes(model: &Path) -> Result<Option<serde_json::Value>, Failure> {
    let path = model.join("selftune.json");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(serde_json::from_str(&text).bad_input(format!("cannot use {}", path.display()))?)),
        // Most models come from elsewhere, or are a file.
        Err(_) => Ok(None),
    }
}

fn show_receipt(receipt: &Receipt, terminal: &Terminal) {
    field(terminal, "receipt", format!("hashes of the {} examples it saw", receipt.examples.len()));
    field(terminal, "records", format!("hashes of {} ids", receipt.records.len()));
    if let Some(start) = &receipt.started_from {
        field(terminal, "began from", &start.adapter);
    }
}

/// Answers `--saw`.
fn show_saw(record: Option<&str>, receipt: Option<&Receipt>, terminal: &Terminal) -> Option<bool> {
    let record = record?;
    let saw = receipt.and_then(|receipt| receipt.saw(record));
    field(terminal, "saw", match saw {
        Some(true) => format!("yes, its training saw record {record}"),
        Some(false) => format!("no, its training did not see record {record}"),
        None => "it cannot be told: there is no receipt of all that it was made from".to_owned(),
    });
    saw
}

fn inspect_adapter(path: &Path, list_tensors: bool, record: Option<&str>, terminal: &Terminal) -> Outcome {
    let file = formats::adapter::read_adapter(path).bad_input(format!("{} is no adapter", path.display()))?;
    let parameters: usize = file.matrices.iter().map(|matrix| matrix.a.len() + matrix.b.len()).sum();
    let mut modules: BTreeMap<&str, usize> = BTreeMap::new();
    for matrix in &file.matrices {
        *modules.entry(matrix.module.rsplit('.').next().unwrap_or(&matrix.module)).or_default() += 1;
    }
    let modules_text: Vec<_> = modules.iter().map(|(module, count)| format!("{module} x{count}")).collect();
    terminal.heading(format!("Adapter {}", path.display()));
    field(terminal, "LoRA", format!("rank {}, alpha {}, multiplier {}", file.config.r, file.config.lora_alpha, file.config.scale()));
    field(terminal, "adapts", modules_text.join(", "));
    field(terminal, "parameters", human_count(parameters as u64));
    field(terminal, "base", file.config.base_model_name_or_path.as_deref().unwrap_or("(not named)"));
    let saw = show_metadata(file.metadata.as_ref(), record, terminal);
    if list_tensors {
        terminal.heading("Matrices");
        for matrix in &file.matrices {
            terminal.line(format!("  {:<44} A [{}, {}]  B [{}, {}]", matrix.module, file.config.r, matrix.k_in, matrix.n_out, file.config.r));
        }
    }
    terminal.json(&serde_json::json!({
        "adapter": path.display().to_string(),
        "rank": file.config.r,
        "lora_alpha": file.config.lora_alpha,
        "use_rslora": file.config.use_rslora,
        "target_modules": file.config.target_modules,
        "base_model_name_or_path": file.config.base_model_name_or_path,
        "scale": file.config.scale(),
        "parameters": parameters,
        "matrices": file.matrices.len(),
        "saw": saw,
        "metadata": file.metadata,
    }));
    Ok(ExitStatus::Done)
}

fn inspect_gguf_adapter(path: &Path, list_tensors: bool, record: Option<&str>, terminal: &Terminal) -> Outcome {
    let file = formats::adapter::describe_gguf(path).bad_input(format!("{} is no adapter", path.display()))?;
    let rank = file.rank;
    let parameters: usize = file.matrices.iter().map(|matrix| rank * (matrix.n_out + matrix.k_in)).sum();
    let scale = file.lora_alpha / rank as f64;
    terminal.heading(format!("Adapter {}", path.display()));
    field(terminal, "format", format!("GGUF for llama.cpp, architecture {}", file.architecture));
    field(terminal, "LoRA", format!("rank {rank}, alpha {}, multiplier {scale}", file.lora_alpha));
    field(terminal, "adapts", format!("{} matrices", file.matrices.len()));
    field(terminal, "parameters", human_count(parameters as u64));
    let saw = show_metadata(file.metadata.as_ref(), record, terminal);
    if list_tensors {
        terminal.heading("Matrices");
        for matrix in &file.matrices {
            terminal.line(format!("  {:<44} A [{rank}, {}]  B [{}, {rank}]", matrix.name, matrix.k_in, matrix.n_out));
        }
    }
    terminal.json(&serde_json::json!({
        "adapter": path.display().to_string(),
        "architecture": file.architecture,
        "rank": rank,
        "lora_alpha": file.lora_alpha,
        "scale": scale,
        "parameters": parameters,
        "matrices": file.matrices.len(),
        "saw": saw,
        "metadata": file.metadata,
    }));
    Ok(ExitStatus::Done)
}

/// Shows what selftune wrote into an adapter, and answers `--saw`.
fn show_metadata(metadata: Option<&AdapterMetadata>, record: Option<&str>, terminal: &Terminal) -> Option<bool> {
    match metadata {
        Some(metadata) => {
            field(terminal, "base hash", &metadata.base_content_hash);
            field(terminal, "written by", format!("selftune {}", metadata.selftune_version));
        }
        None => field(terminal, "written by", "another program"),
    }
    let receipt = metadata.and_then(|metadata| serde_json::from_value(metadata.receipt.clone()).ok());
    if let Some(receipt) = &receipt {
        show_receipt(receipt, terminal);
    }
    show_saw(record, receipt.as_ref(), terminal)
}

fn inspect_run(path: &Path, terminal: &Terminal) -> Outcome {
    let run = RunFolder::open(path).bad_input("cannot inspect")?;
    let summary = run.summary().bad_input("cannot inspect")?;
    terminal.heading(format!("Run {}", path.display()));
    let status = serde_json::to_value(summary.status)?;
    field(terminal, "status", status.as_str().unwrap_or_default().replace('_', " "));
    let inputs = crate::training::RunInputs::of(&run);
    if let Ok(inputs) = &inputs {
        field(terminal, "model", format!("{} ({})", inputs.model_name, inputs.model.path.display()));
        field(terminal, "history", inputs.history.path.display());
    }
    field(terminal, "machine", &summary.machine);
    if let Some(plan) = &summary.plan {
        field(terminal, "examples", format!("{} to train, {} to validate", plan.examples, plan.validation_examples));
        field(terminal, "adapter", format!("{} values in {} matrices", human_count(plan.adapter_parameters as u64), plan.trained_matrices));
    }
    if let Some(progress) = &summary.progress {
        let planned = summary.plan.as_ref().map_or(0, |plan| plan.updates);
        field(terminal, "progress", format!("{} of {planned} updates, {} tokens, {}", progress.step, human_count(progress.tokens), human_seconds(progress.seconds)));
    }
    if let Some(best) = summary.progress.as_ref().and_then(|progress| progress.best) {
        field(terminal, "best", format!("held-out loss {:.4} after update {}", best.loss, best.step));
    }
    if let Some(hold) = &summary.hold {
        let waits: Vec<_> = hold.waits.iter().map(|wait| wait.waits_for.as_str()).collect();
        let since = human_seconds(hold.seconds(device::unix_time_seconds()));
        field(terminal, "on hold", format!("for {since}, waiting for {}", waits.join("; and ")));
    }
    if let Some(notice) = &summary.notice {
        terminal.warning(notice);
    }
    terminal.json(&serde_json::json!({"run": summary}));
    inputs.map(|_| ExitStatus::Done).or_else(|failure: Failure| {
        terminal.warning(failure.message());
        Ok(ExitStatus::Done)
    })
}
