//! What one side of a comparison runs with. Every key is an option of `bench step` and a key of `--against KEY=VALUE`.

use kernels::{Isa, OpsOptions, Precision};
use model::{
    AdapterSpec, BoundaryType, KeptType, MemoryChoice, ModelConfig, NecessaryWork, Projection, SAVINGS, WeightsPlace,
};

use crate::units::parse_memory;
use crate::workbench::THREADS_MAX;

/// More passes and tokens than these are a slip of the keyboard.
const PASSES_MAX: usize = 100;
const TOKENS_MAX: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub tokens: usize,
    /// The last so many tokens are targets; all without.
    pub supervised: Option<usize>,
    /// The last so many blocks are adapted; all without.
    pub blocks: Option<usize>,
    pub rank: usize,
    pub targets: Vec<Projection>,
    /// What the process may take; without, whatever the fastest plan takes.
    pub memory_bytes: Option<u64>,
    pub recompute: Recompute,
    pub weights: Option<WeightsPlace>,
    pub boundaries: Option<BoundaryType>,
    pub kept_values: Option<KeptType>,
    /// Visits of the example behind which the output of the blocks below the adapted ones is kept.
    pub passes: usize,
    pub skip: NecessaryWork,
    pub ops: OpsOptions,
    /// Every key that was set, in order, to say and to repeat it.
    given: Vec<(&'static str, String)>,
}

/// Which blocks run again before their backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// As memory allows.
    Auto,
    /// Each but the last.
    PerBlock,
    /// None.
    Never,
}

type Set = fn(&mut Setting, &str) -> Result<(), String>;

/// Every key with what it takes. The one list of them.
pub const KEYS: [(&str, &str, Set); 14] = [
    ("tokens", "2 to 1048576", |setting, text| number(text, 2..=TOKENS_MAX).map(|count| setting.tokens = count)),
    ("supervised", "1 to the tokens", |setting, text| {
        number(text, 1..=TOKENS_MAX).map(|count| setting.supervised = Some(count))
    }),
    ("blocks", "a number of blocks, or all", |setting, text| {
        let blocks = if text == "all" { None } else { Some(number(text, 1..=10_000)?) };
        setting.blocks = blocks;
        Ok(())
    }),
    ("rank", "1 to 1024", |setting, text| number(text, 1..=1024).map(|rank| setting.rank = rank)),
    ("targets", "all, or some of q, k, v, o, gate, up, down, each once", |setting, text| {
        setting.targets = targets(text).ok_or(String::new())?;
        Ok(())
    }),
    ("memory", "a size such as 1GB, or any", |setting, text| {
        setting.memory_bytes = if text == "any" { None } else { Some(parse_memory(text)?) };
        Ok(())
    }),
    ("recompute", "auto, per-block or never", |setting, text| {
        let choices = [("auto", Recompute::Auto), ("per-block", Recompute::PerBlock), ("never", Recompute::Never)];
        setting.recompute = one_of(text, &choices)?;
        Ok(())
    }),
    ("weights", "auto, resident or streamed", |setting, text| {
        let (resident, streamed) = (Some(WeightsPlace::Resident), Some(WeightsPlace::Streamed));
        setting.weights = one_of(text, &[("auto", None), ("resident", resident), ("streamed", streamed)])?;
        Ok(())
    }),
    ("boundaries", "auto, float32 or bfloat16", |setting, text| {
        let (float32, bfloat16) = (Some(BoundaryType::Float32), Some(BoundaryType::Bfloat16));
        setting.boundaries = one_of(text, &[("auto", None), ("float32", float32), ("bfloat16", bfloat16)])?;
        Ok(())
    }),
    ("kept-values", "auto, float32 or int16", |setting, text| {
        let (float32, int16) = (Some(KeptType::Float32), Some(KeptType::Int16));
        setting.kept_values = one_of(text, &[("auto", None), ("float32", float32), ("int16", int16)])?;
        Ok(())
    }),
    ("passes", "1 to 100", |setting, text| number(text, 1..=PASSES_MAX).map(|passes| setting.passes = passes)),
    ("skip", "on, off, or no-NAME,no-NAME of the savings in --help", |setting, text| {
        setting.skip = skip(text).ok_or(String::new())?;
        Ok(())
    }),
    ("threads", "1 to 1024", |setting, text| {
        number(text, 1..=THREADS_MAX).map(|threads| setting.ops.threads = threads)
    }),
    ("precision", "a16, exact or a8", |setting, text| {
        setting.ops.precision = Precision::by_name(text).ok_or(String::new())?;
        Ok(())
    }),
];

impl Setting {
    pub fn new(isa: Isa) -> Self {
        Self {
            tokens: 512,
            supervised: None,
            blocks: None,
            rank: 8,
            targets: vec![Projection::Query, Projection::Value],
            memory_bytes: None,
            recompute: Recompute::Auto,
            weights: None,
            boundaries: None,
            kept_values: None,
            passes: 1,
            skip: NecessaryWork::default(),
            ops: OpsOptions { isa, ..OpsOptions::default() },
            given: Vec::new(),
        }
    }

    /// Sets one key; the error names it and what it takes.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        let Some((name, expected, set)) = KEYS.iter().find(|(name, ..)| *name == key) else {
            let names: Vec<_> = KEYS.iter().map(|(name, ..)| *name).collect();
            return Err(format!("{key}: no such setting; there are {}", names.join(", ")));
        };
        set(self, text).map_err(|_| format!("{key}={text}: expected {expected}"))?;
        self.given.retain(|(key, _)| key != name);
        self.given.push((*name, text.to_owned()));
        Ok(())
    }

    /// The options that give another program this setting.
    pub fn arguments(&self) -> impl Iterator<Item = String> + '_ {
        self.given.iter().map(|(key, value)| format!("--{key}={value}"))
    }

    /// The adapter of a model. What one key allows, the model or another key may not.
    pub fn spec(&self, config: &ModelConfig) -> Result<AdapterSpec, String> {
        let all = config.blocks.len();
        let blocks = self.blocks.unwrap_or(all);
        if blocks > all {
            return Err(format!("blocks={blocks}: the model has {all}"));
        }
        if let Some(supervised) = self.supervised.filter(|supervised| *supervised > self.tokens) {
            return Err(format!("supervised={supervised}: expected 1 to the {} tokens", self.tokens));
        }
        Ok(AdapterSpec {
            rank: self.rank,
            lora_alpha: 2.0 * self.rank as f32,
            dropout: 0.0,
            targets: self.targets.clone(),
            blocks: all - blocks..all,
            use_rslora: false,
        })
    }

    /// The plan that is forced, if one is.
    pub fn memory_choice(&self) -> Option<MemoryChoice> {
        let choice = match self.recompute {
            Recompute::Auto => return None,
            Recompute::PerBlock => MemoryChoice::default(),
            Recompute::Never => MemoryChoice::keep_everything(),
        };
        let weights = self.weights.unwrap_or(choice.weights);
        let boundaries = self.boundaries.unwrap_or(choice.boundaries);
        let kept_values = self.kept_values.unwrap_or(choice.kept_values);
        Some(MemoryChoice { weights, boundaries, kept_values, ..choice })
    }

    /// Which of the tokens are targets.
    pub fn loss_mask(&self) -> Vec<bool> {
        let supervised = self.supervised.unwrap_or(self.tokens);
        (0..self.tokens).map(|index| index >= self.tokens - supervised).collect()
    }

    /// Whether steps of `other` have the same loss to the bit.
    pub fn has_losses_of(&self, other: &Setting) -> bool {
        let what = |setting: &Setting| {
            (setting.tokens, setting.supervised, setting.blocks, setting.rank, setting.targets.clone())
        };
        // Updates come between losses: what moves gradients moves all but the first.
        let types = |setting: &Setting| (setting.ops.precision, setting.boundaries, setting.kept_values);
        what(self) == what(other) && types(self) == types(other)
    }
}

fn number(text: &str, range: std::ops::RangeInclusive<usize>) -> Result<usize, String> {
    text.parse().ok().filter(|number| range.contains(number)).ok_or(String::new())
}

fn one_of<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    choices.iter().find(|(name, _)| *name == text).map(|(_, choice)| *choice).ok_or(String::new())
}

fn targets(text: &str) -> Option<Vec<Projection>> {
    match text {
        "all" => Some(Projection::ALL.to_vec()),
        _ => {
            let targets: Vec<Projection> = text.split(',').map(Projection::by_name).collect::<Option<_>>()?;
            let is_new = |(index, target): (usize, &Projection)| !targets[..index].contains(target);
            targets.iter().enumerate().all(is_new).then_some(targets)
        }
    }
}

fn skip(text: &str) -> Option<NecessaryWork> {
    match text {
        "on" => Some(NecessaryWork::default()),
        "off" => Some(NecessaryWork::ALL_WORK),
        _ => text.split(',').try_fold(NecessaryWork::default(), |work, name| {
            let saving = SAVINGS.iter().find(|saving| Some(saving.name) == name.strip_prefix("no-"))?;
            Some(saving.switched_off(work))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_key_in_order() {
        let page = include_str!("mod.rs").replace("\n///", "");
        let keys: Vec<_> = KEYS.iter().map(|(key, ..)| *key).collect();
        assert!(page.contains(&format!("--against KEY=VALUE ({}) runs", keys.join(", "))));
    }

    #[test]
    fn every_key_reads_and_refuses() {
        let good = [
            "64", "8", "6", "32", "q,v,down", "800MB", "per-block", "streamed", "bfloat16", "int16", "3", "no-logits", "2", "exact",
        ];
        for ((key, expected, _), good) in KEYS.iter().zip(good) {
            let mut setting = Setting::new(Isa::best());
            let before = setting.clone();
            for bad in ["", "x", "-1", "0", "99999999999999999999", "no-"] {
                let message = setting.set(key, bad).expect_err(bad);
                assert!(message.starts_with(&format!("{key}={bad}")) && message.contains(expected), "{message}");
            }
            assert_eq!(setting, before, "{key}");
            setting.set(key, good).expect(key);
            assert_ne!(setting, before, "{key}");
            assert_eq!(setting.arguments().collect::<Vec<_>>(), [format!("--{key}={good}")]);
        }
        for bad in ["q,q", "v,self_attn.v_proj", "q,v,x", "q,"] {
            let message = Setting::new(Isa::best()).set("targets", bad).expect_err(bad);
            assert!(message.starts_with(&format!("targets={bad}: expected")) && message.contains("each once"), "{message}");
        }
        assert!(Setting::new(Isa::best()).set("color", "red").expect_err("unknown").contains("targets"));
    }

    #[test]
    fn keys_are_checked_against_each_other_and_the_model() {
        let config = model::KnownShape::by_name("smollm2-135m").expect("known").config();
        let spec = |pairs: &[(&str, &str)]| {
            let mut setting = Setting::new(Isa::best());
            pairs.iter().for_each(|(key, text)| setting.set(key, text).expect(key));
            setting.spec(&config)
        };
        assert_eq!(spec(&[("tokens", "12"), ("supervised", "12"), ("blocks", "30")]).expect("possible").blocks, 0..30);
        let message = spec(&[("supervised", "13"), ("tokens", "12")]).expect_err("more targets than tokens");
        assert_eq!(message, "supervised=13: expected 1 to the 12 tokens");
        assert_eq!(spec(&[("blocks", "31")]).expect_err("more blocks than there are"), "blocks=31: the model has 30");
    }

    #[test]
    fn savings_are_switched_by_name() {
        assert_eq!(skip("off"), Some(NecessaryWork::ALL_WORK));
        let all: Vec<String> = SAVINGS.iter().map(|saving| format!("no-{}", saving.name)).collect();
        assert_eq!(skip(&all.join(",")), skip("off"), "the list holds every switch");
        assert_eq!(skip("no-nothing"), None);
    }
}
