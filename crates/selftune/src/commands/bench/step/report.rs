//! What `bench step` prints: JSON for programs, the same for people.

use kernels::OpSeconds;
use model::{Phase, PlannedStep, StepPhases, WorkShares};
use serde_json::{Value, json};

use super::setting::Setting;
use super::subject::{MemoryPeak, StepMeasurement, Subject};
use super::{Arguments, Measured};
use crate::terminal::Terminal;

/// What is known before anything is timed.
pub struct About {
    shape: &'static str,
    model_blocks: usize,
    setting: Setting,
    against: Option<Vec<String>>,
    same_losses: bool,
    planned: PlannedStep,
    shares: WorkShares,
    plan_s: f64,
    kernels: Vec<String>,
}

/// Medians over the steps.
struct Medians {
    step_s: f64,
    batch_s: f64,
    optimizer_s: f64,
    processor_s: Option<f64>,
    phases: [f64; 4],
    ops: OpSeconds,
    products_s: f64,
    products_processor_s: Option<f64>,
    products: [f64; 4],
    /// Of each round, then the middle.
    fraction: f64,
    fraction_processor: Option<f64>,
    /// Recompute and backward over forward, without the head; of the step and of its products.
    backward_over_forward: f64,
    backward_over_forward_products: f64,
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The middle of those that are known, if all are.
fn known_median(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    values.into_iter().collect::<Option<Vec<f64>>>().map(median)
}

/// What the products alone take of the step, round by round.
fn fractions(measured: &Measured) -> Vec<f64> {
    measured.steps.iter().zip(&measured.products).map(|(step, products)| products.products_s / step.step_s).collect()
}

/// Rounds of a quiet machine differ by a few hundredths.
const FRACTION_SPREAD_MAX: f64 = 0.1;

/// Why these rounds say little: products cannot take longer than the step that holds them, nor can their share change.
fn doubt(fractions: &[f64]) -> Option<String> {
    let least = fractions.iter().copied().fold(f64::INFINITY, f64::min);
    let most = fractions.iter().copied().fold(0.0, f64::max);
    let why = if most > 1.0 {
        "products alone took longer than the whole step"
    } else if most - least > FRACTION_SPREAD_MAX {
        "rounds scatter"
    } else {
        return None;
    };
    Some(format!(
        "{why} (fraction {least:.2} to {most:.2}): others use this machine, so its times say little; take more --steps or \
         --tokens, or a quiet hour"
    ))
}

/// One object of several: the macro cannot write so many keys at once.
fn joined(parts: [Value; 3]) -> Value {
    Value::Object(parts.into_iter().filter_map(|part| part.as_object().cloned()).flatten().collect())
}

fn seconds(phases: &StepPhases, phase: Phase) -> f64 {
    phases.of(phase).seconds
}

fn backward_over_forward(phases: &StepPhases) -> f64 {
    (seconds(phases, Phase::Recompute) + seconds(phases, Phase::Backward)) / seconds(phases, Phase::Forward)
}

impl Medians {
    fn new(measured: &Measured, passes: usize) -> Self {
        let Measured { steps, products, .. } = measured;
        let of = |value: fn(&StepMeasurement) -> f64| median(steps.iter().map(value));
        let pairs = || steps.iter().zip(products);
        Self {
            step_s: of(|step| step.step_s),
            batch_s: of(|step| step.batch_s),
            optimizer_s: of(|step| step.optimizer_s),
            processor_s: known_median(steps.iter().map(|step| step.processor_s)),
            phases: Phase::ALL
                .map(|phase| median(steps.iter().map(|step| seconds(&step.phases, phase) / passes as f64))),
            ops: OpSeconds {
                frozen: of(|step| step.ops.frozen),
                head: of(|step| step.ops.head),
                adapter: of(|step| step.ops.adapter),
                attention: of(|step| step.ops.attention),
                others: of(|step| step.ops.others),
            },
            products_s: median(products.iter().map(|products| products.products_s)),
            products_processor_s: known_median(products.iter().map(|products| products.processor_s)),
            products: Phase::ALL
                .map(|phase| median(products.iter().map(|products| seconds(&products.phases, phase)))),
            fraction: median(fractions(measured)),
            fraction_processor: known_median(
                pairs().map(|(step, products)| Some(products.processor_s? / step.processor_s?)),
            ),
            backward_over_forward: median(steps.iter().map(|step| backward_over_forward(&step.phases))),
            backward_over_forward_products: median(
                products.iter().map(|products| backward_over_forward(&products.phases)),
            ),
        }
    }
}

impl About {
    pub fn new(arguments: &Arguments, setting: &Setting, against: Option<Setting>, subject: Subject) -> Self {
        let program = arguments.against_binary.iter().map(|program| program.display().to_string());
        let other: Vec<String> = program.chain(arguments.against.iter().cloned()).collect();
        let kernels = subject.session.kernel_names().into_iter();
        Self {
            shape: arguments.shape.name,
            model_blocks: subject.session.model().config().blocks.len(),
            same_losses: against.as_ref().is_none_or(|against| against.has_losses_of(setting)),
            setting: setting.clone(),
            against: (!other.is_empty()).then_some(other),
            kernels: kernels.map(|name| format!("{} {}: {}", name.op, name.direction, name.kernel)).collect(),
            planned: subject.planned,
            shares: subject.shares,
            plan_s: subject.plan_s,
        }
    }

    pub fn print(&self, measured: &Measured, terminal: &Terminal) {
        let medians = Medians::new(measured, self.setting.passes);
        self.print_text(measured, &medians, terminal);
        if let Some(doubt) = doubt(&fractions(measured)) {
            terminal.warning(doubt);
        }
        terminal.json(&self.json(measured, &medians));
    }

    /// Rate of the products with frozen weights in a run of them alone, and its share of the instruction's.
    fn products_rate(&self, measured: &Measured, medians: &Medians) -> (f64, f64) {
        let macs: u64 = measured.products.first().map_or(0, |products| products.phases.macs().frozen_macs);
        let rate = macs as f64 / medians.products_s / 1e9;
        let ceilings = &measured.ceilings;
        let ceiling = match self.setting.ops.precision {
            kernels::Precision::A16 => ceilings.i16_dot_gmac_per_s,
            kernels::Precision::A8 => ceilings.i8_dot_gmac_per_s,
            kernels::Precision::Exact => ceilings.f32_fma_gmac_per_s,
        };
        (rate, rate / ceiling / self.setting.ops.threads as f64)
    }

    /// The other side's time over this one's: by the wall's clock, by processor time, and whether losses agree.
    fn ratios(&self, measured: &Measured) -> (f64, Option<f64>, Option<bool>) {
        let pairs = || measured.steps.iter().zip(&measured.others);
        let ratio = median(pairs().map(|(step, other)| other.step_s / step.step_s));
        let processor = known_median(pairs().map(|(step, other)| Some(other.processor_s? / step.processor_s?)));
        let losses = self.same_losses.then(|| pairs().all(|(step, other)| step.loss == other.loss));
        (ratio, processor, losses)
    }

    /// The measured peak over the planned one.
    fn peak_over_plan(&self, measured: &Measured) -> Option<f64> {
        measured.peak.map(|peak| peak.total_bytes as f64 / self.planned.peak.total() as f64)
    }

    fn json(&self, measured: &Measured, medians: &Medians) -> Value {
        let setting = &self.setting;
        let [forward_s, head_s, recompute_s, backward_s] = medians.phases;
        let (rate, of_ceiling) = self.products_rate(measured, medians);
        let ops = &medians.ops;
        let peak = |of: fn(&MemoryPeak) -> u64| measured.peak.as_ref().map(of);
        let saved = |without: u64| 1.0 - self.shares.macs as f64 / without as f64;
        let savings = self.shares.items.iter().map(|item| {
            json!({"name": item.item, "macs_without": item.macs_without, "share": saved(item.macs_without)})
        });
        let against = self.against.as_ref().map(|against| {
            let (ratio, ratio_processor, losses_equal) = self.ratios(measured);
            json!({
                "settings": against,
                "step_s": median(measured.others.iter().map(|other| other.step_s)),
                "processor_s": known_median(measured.others.iter().map(|other| other.processor_s)),
                "ratio": ratio,
                "ratio_processor": ratio_processor,
                "losses_equal": losses_equal,
            })
        });
        let about = json!({
            "shape": self.shape,
            "model_blocks": self.model_blocks,
            "tokens": setting.tokens,
            "supervised_tokens": setting.supervised.unwrap_or(setting.tokens).min(setting.tokens - 1),
            "blocks": setting.blocks.unwrap_or(self.model_blocks),
            "rank": setting.rank,
            "targets": setting.targets.iter().map(|target| target.short_name()).collect::<Vec<_>>(),
            "passes": setting.passes,
            "threads": setting.ops.threads,
            "precision": setting.ops.precision.name(),
            "isa": setting.ops.isa.name(),
            "steps": measured.steps.len(),
        });
        let times = json!({
            "step_s": medians.step_s,
            "batch_s": medians.batch_s,
            "plan_s": self.plan_s,
            "forward_s": forward_s,
            "head_s": head_s,
            "recompute_s": recompute_s,
            "backward_s": backward_s,
            "optimizer_s": medians.optimizer_s,
            "products_s": medians.products_s,
            "fraction": medians.fraction,
            "products": {
                "forward_s": medians.products[0], "head_s": medians.products[1],
                "recompute_s": medians.products[2], "backward_s": medians.products[3],
                "gmac_per_s": rate, "ceiling_fraction": of_ceiling,
            },
            "backward_over_forward": medians.backward_over_forward,
            "backward_over_forward_products": medians.backward_over_forward_products,
            "processor_s": medians.processor_s,
            "products_processor_s": medians.products_processor_s,
            "fraction_processor": medians.fraction_processor,
            "shares": {
                "frozen": ops.frozen / ops.sum(), "head": ops.head / ops.sum(), "adapter": ops.adapter / ops.sum(),
                "attention": ops.attention / ops.sum(), "others": ops.others / ops.sum(),
            },
        });
        let rest = json!({
            "tokens_per_s": setting.tokens as f64 / medians.step_s,
            "loss": measured.steps.last().map(|step| step.loss),
            "macs": measured.steps.last().map(|step| step.macs),
            "macs_full": self.shares.macs_full,
            "savings": savings.collect::<Vec<_>>(),
            "peak_bytes": peak(|peak| peak.total_bytes),
            "peak_anonymous_bytes": peak(|peak| peak.anonymous_bytes),
            "peak_mapped_bytes": peak(|peak| peak.mapped_bytes),
            "planned_peak_bytes": self.planned.peak.total(),
            "planned_peak_anonymous_bytes": self.planned.peak.anonymous_bytes,
            "planned_peak_mapped_bytes": self.planned.peak.mapped_bytes,
            "peak_over_plan": self.peak_over_plan(measured),
            "memory_choice": self.planned.options.memory.to_string(),
            "kernels": self.kernels,
            "ceilings": {
                "i16_dot_gmac_per_s": measured.ceilings.i16_dot_gmac_per_s,
                "i8_dot_gmac_per_s": measured.ceilings.i8_dot_gmac_per_s,
                "f32_fma_gmac_per_s": measured.ceilings.f32_fma_gmac_per_s,
                "read_gbyte_per_s": measured.ceilings.read_gbyte_per_s,
            },
            "check": measured.check.map(|check| check.json()),
            "against": against,
            "machine": device::Machine::describe(),
        });
        joined([about, times, rest])
    }

    fn print_text(&self, measured: &Measured, medians: &Medians, terminal: &Terminal) {
        let setting = &self.setting;
        let targets: Vec<_> = setting.targets.iter().map(|target| target.short_name()).collect();
        terminal.line(format!(
            "{} ({} blocks), {} tokens, rank {} on {} of the last {} blocks, {} on {} with {} thread(s), medians of {}",
            self.shape,
            self.model_blocks,
            setting.tokens,
            setting.rank,
            targets.join(","),
            setting.blocks.unwrap_or(self.model_blocks),
            setting.ops.precision.name(),
            setting.ops.isa.name(),
            setting.ops.threads,
            measured.steps.len()
        ));
        terminal.line(format!("{}; made in {:.2} s", self.planned.options.memory, self.plan_s));
        terminal.line(format!("{:<10} {:>9} {:>9} {:>9}", "", "step", "products", "fraction"));
        for (index, phase) in Phase::ALL.into_iter().enumerate() {
            let (step, products) = (medians.phases[index], medians.products[index]);
            // A phase of less than a tenth of a millisecond did nothing.
            let fraction = if step > 1e-4 { format!("{:.3}", products / step) } else { String::new() };
            terminal.line(format!("{:<10} {step:>7.3} s {products:>7.3} s {fraction:>9}", phase.name()));
        }
        terminal.line(format!("{:<10} {:>7.3} s", "optimizer", medians.optimizer_s));
        terminal.line(format!("{:<10} {:>7.3} s", "batch", medians.batch_s));
        let (step_s, products_s, fraction) = (medians.step_s, medians.products_s, medians.fraction);
        let processor = medians.fraction_processor.map_or(String::new(), |f| format!(" ({f:.3} by processor time)"));
        terminal.line(format!("{:<10} {step_s:>7.3} s {products_s:>7.3} s {fraction:>9.3}{processor}", "whole"));
        let (rate, of_ceiling) = self.products_rate(measured, medians);
        terminal.line(format!(
            "products alone {rate:.0} GMAC/s, {of_ceiling:.2} of the instruction's rate; {:.0} tokens/s",
            setting.tokens as f64 / step_s
        ));
        terminal.line(format!(
            "recompute and backward take {:.2} of the forward ({:.2} in products)",
            medians.backward_over_forward, medians.backward_over_forward_products
        ));
        let ops = &medians.ops;
        let share = |seconds: f64| 100.0 * seconds / ops.sum();
        terminal.line(format!(
            "frozen products {:.1} %, head {:.1} %, adapters {:.1} %, attention {:.1} %, others {:.1} %",
            share(ops.frozen),
            share(ops.head),
            share(ops.adapter),
            share(ops.attention),
            share(ops.others)
        ));
        terminal.line(format!(
            "{:.1} G multiply-adds, {:.1} without savings",
            self.shares.macs as f64 / 1e9,
            self.shares.macs_full as f64 / 1e9
        ));
        for item in self.shares.items.iter().filter(|item| item.macs_without > self.shares.macs) {
            let saved = 100.0 * (1.0 - self.shares.macs as f64 / item.macs_without as f64);
            terminal.line(format!("  {saved:>4.1} % saved: {}", item.item));
        }
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let planned = &self.planned.peak;
        if let (Some(peak), Some(over_plan)) = (&measured.peak, self.peak_over_plan(measured)) {
            terminal.line(format!(
                "peak {:.1} MB ({:.1} anonymous, {:.1} mapped at most), planned {:.1} ({:.1}, {:.1}): {over_plan:.3} of the plan",
                megabytes(peak.total_bytes),
                megabytes(peak.anonymous_bytes),
                megabytes(peak.mapped_bytes),
                megabytes(planned.total()),
                megabytes(planned.anonymous_bytes),
                megabytes(planned.mapped_bytes)
            ));
        }
        crate::commands::bench::show_ceilings(&measured.ceilings, terminal);
        for kernel in &self.kernels {
            terminal.line(format!("kernel {kernel}"));
        }
        if let Some(check) = &measured.check {
            terminal.line(format!(
                "checked: loss off by {:.1e} (at most {:.0e}), gradient by {:.1e} (at most {:.0e})",
                check.loss_error, check.loss_error_max, check.gradient_error, check.gradient_error_max
            ));
        }
        if let Some(against) = &self.against {
            let (ratio, processor, losses) = self.ratios(measured);
            let processor = processor.map_or(String::new(), |ratio| format!(" ({ratio:.3} by processor time)"));
            let losses = match losses {
                Some(true) => "; equal losses",
                Some(false) => "; other losses",
                None => "",
            };
            terminal.line(format!("with {}: {ratio:.3} of the time{processor}{losses}", against.join(" ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_and_scattered_rounds_are_doubted() {
        assert_eq!(doubt(&[0.81, 0.83, 0.80]), None);
        assert!(doubt(&[0.81, 1.02, 0.80]).is_some_and(|doubt| doubt.contains("longer than the whole step")));
        assert!(doubt(&[0.47, 0.83]).is_some_and(|doubt| doubt.contains("rounds scatter (fraction 0.47 to 0.83)")));
    }
}
