//! Times training steps and generation on a real model: `step_rate MODEL [THREADS] [PRECISION] [TOKENS...]`.
//!
//! Adapters of rank 8 on q and v of every block, a third of the tokens supervised. Prints the best of several steps,
//! the rate of frozen multiply-adds, whose ceiling `selftune bench kernels` measures, and tokens generated a second
//! behind a prompt of 32.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use formats::LoadOptions;
use kernels::{OpsOptions, Precision};
use model::{
    AdapterSpec, AdapterWeights, Generator, GeneratorOptions, Model, Projection, SamplingOptions, StepOptions,
    TrainingSession,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: step_rate MODEL [THREADS] [PRECISION] [TOKENS...]")?;
    let threads = arguments.next().map_or(Ok(2), |count| count.parse())?;
    let precision = arguments.next().map_or(Some(Precision::A16), |name| Precision::by_name(&name));
    let precision = precision.ok_or("precision is a16, exact or a8")?;
    let mut lengths: Vec<usize> = arguments.map(|length| length.parse()).collect::<Result<_, _>>()?;
    if lengths.is_empty() {
        lengths = vec![128, 512];
    }

    let loaded = formats::load_model(Path::new(&path), &LoadOptions::default(), &mut |_| {})?;
    let model = Arc::new(Model::from_loaded(loaded)?);
    let spec = AdapterSpec {
        rank: 8,
        lora_alpha: 16.0,
        dropout: 0.0,
        targets: vec![Projection::Query, Projection::Value],
        blocks: 0..model.config().blocks.len(),
        use_rslora: false,
    };
    let adapter = AdapterWeights::initialized(model.config(), spec, 1)?;
    for tokens_max in lengths {
        let ops = OpsOptions { threads, precision, ..OpsOptions::default() };
        let options = StepOptions { ops, ..StepOptions::new(tokens_max) };
        let mut session = TrainingSession::new(Arc::clone(&model), &adapter, options)?;
        let tokens: Vec<u32> = (0..tokens_max as u32).map(|index| 1000 + index * 37 % 20_000).collect();
        let mask: Vec<bool> = (0..tokens_max).map(|index| index >= tokens_max - tokens_max / 3).collect();
        let mut best_s = f64::INFINITY;
        session.reset_counters();
        for step in 0..4 {
            session.reset_counters();
            let start = Instant::now();
            session.step(&tokens, &mask, 1.0, step)?;
            best_s = best_s.min(start.elapsed().as_secs_f64());
        }
        let counters = session.counters();
        println!(
            "{tokens_max} tokens, {threads} threads, {}: {:.0} ms, {:.0} tokens/s, {:.1} frozen Gmac/s, {:.2} Gmac \
             (adapter {:.3}, attention {:.3})",
            precision.name(),
            best_s * 1e3,
            tokens_max as f64 / best_s,
            counters.frozen_macs as f64 / best_s / 1e9,
            counters.frozen_macs as f64 / 1e9,
            counters.adapter_macs as f64 / 1e9,
            counters.attention_macs as f64 / 1e9,
        );
        for (name, bytes) in &session.plan().items {
            println!("  {:>9.2} MiB {name}", *bytes as f64 / (1 << 20) as f64);
        }
    }
    let ops = OpsOptions { threads, precision, ..OpsOptions::default() };
    let mut generator = Generator::new(model, Some(&adapter), GeneratorOptions::new(ops, 256))?;
    let prompt: Vec<u32> = (1000..1032).collect();
    generator.logits(&prompt)?;
    let sampling = SamplingOptions { tokens_max: 64, ..SamplingOptions::default() };
    let start = Instant::now();
    generator.generate(&prompt, &sampling, &mut |_| true)?;
    println!("generation: {:.0} tokens/s", 64.0 / start.elapsed().as_secs_f64());
    Ok(())
}
