//! Plans and runs one step of a synthetic model, and compares planned with measured memory:
//! `step_memory CONFIG.json TOKENS [BUDGET_BYTES] [LAST_BLOCKS] [THREADS] [STEPS]`. Weights are mapped from a file in the temporary folder.
//!
//! Adapters of rank 8 on q and v. Prints planned and measured peaks, phase times and work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kernels::OpsOptions;
use model::{
    AdapterSpec, AdapterWeights, ModelConfig, Phase, PlanRequest, Projection, ResidentBytes, SyntheticPlace,
    SyntheticWeights, TrainingSession, plan_step, synthetic_model, work_shares,
};

/// A value of /proc/self/status in bytes.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("a known key");
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, tokens, rest @ ..] = &arguments[..] else { return Err("usage: see the source's head".into()) };
    let number = |index: usize| rest.get(index).map(|text| text.parse::<u64>()).transpose();
    let (tokens_max, budget) = (tokens.parse::<usize>()?, number(0)?.filter(|bytes| *bytes > 0));
    let config = ModelConfig::from_json(&serde_json::from_str(&std::fs::read_to_string(path)?)?)?;
    let blocks = config.blocks.len();
    let last_blocks = number(1)?.map_or(blocks, |count| count as usize);
    let threads = number(2)?.map_or(kernels::physical_cores(), |count| count as usize);
    let steps = number(3)?.unwrap_or(1);

    let file = std::env::temp_dir().join(format!("selftune-synthetic-{}.packed", std::process::id()));
    let model = Arc::new(synthetic_model(&config, &SyntheticWeights::default(), SyntheticPlace::File(&file))?);
    std::fs::remove_file(&file)?;
    let spec = AdapterSpec {
        rank: 8,
        lora_alpha: 16.0,
        dropout: 0.0,
        targets: vec![Projection::Query, Projection::Value],
        blocks: blocks - last_blocks..blocks,
        use_rslora: false,
    };
    model.release_mapped();
    let program = ResidentBytes { anonymous_bytes: status("RssAnon"), mapped_bytes: status("RssFile") + (2 << 20) };
    let ops = OpsOptions { threads, ..OpsOptions::default() };
    let request =
        PlanRequest { ops, budget_bytes: budget, program: program.into(), ..PlanRequest::new(&spec, tokens_max) };
    let planned = plan_step(&model, &request)?;
    println!("{}", planned.options.memory);
    for (name, bytes) in &planned.plan.items {
        println!("  {:>9.2} MB {name}", *bytes as f64 / 1e6);
    }
    let adapter = AdapterWeights::initialized(model.config(), spec.clone(), 1)?;
    let mut session = TrainingSession::new(Arc::clone(&model), &adapter, planned.options)?;
    let vocabulary = config.vocabulary as u32;
    let text: Vec<u32> = (0..tokens_max as u32).map(|index| (1000 + index * 37) % vocabulary).collect();
    let mask = vec![true; tokens_max];

    let (done, anonymous, mapped, total) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let (now_anonymous, now_mapped) = (status("RssAnon"), status("RssFile"));
                anonymous.fetch_max(now_anonymous, Ordering::Relaxed);
                mapped.fetch_max(now_mapped, Ordering::Relaxed);
                total.fetch_max(now_anonymous + now_mapped, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        for step in 0..steps {
            let loss = session.step(&text, &mask, 1.0, step);
            let seconds = |phase: Phase| session.phases().of(phase).seconds;
            println!(
                "loss {:.4}; {}",
                loss.map_or(f64::NAN, |loss| loss.loss_sum / loss.supervised_tokens as f64),
                Phase::ALL.map(|phase| format!("{} {:.3} s", phase.name(), seconds(phase))).join(", ")
            );
        }
        done.store(true, Ordering::Relaxed);
    });
    let frozen = |phase: Phase| session.phases().of(phase).work.frozen_macs as f64;
    println!(
        "recompute and backward over forward, frozen multiply-adds: {:.3}",
        (frozen(Phase::Recompute) + frozen(Phase::Backward)) / frozen(Phase::Forward)
    );
    let measured = [anonymous, mapped, total].map(|bytes| bytes.load(Ordering::Relaxed) as f64 / 1e6);
    let peak = planned.peak;
    println!(
        "planned  {:.1} MB anonymous, {:.1} MB mapped, {:.1} MB in all",
        peak.anonymous_bytes as f64 / 1e6,
        peak.mapped_bytes as f64 / 1e6,
        peak.total() as f64 / 1e6
    );
    println!(
        "measured {:.1} MB anonymous, {:.1} MB mapped, {:.1} MB together at most; {:.3} of the plan",
        measured[0],
        measured[1],
        measured[2],
        measured[2] * 1e6 / peak.total() as f64
    );
    let shares = work_shares(&model, &spec, &planned.options, tokens_max, tokens_max)?;
    println!(
        "{:.2} of {:.2} G multiply-adds of a step that leaves nothing out",
        shares.macs as f64 / 1e9,
        shares.macs_full as f64 / 1e9
    );
    Ok(())
}
