//! Whether a model has lost what everybody needs of it: its loss on a page that no person's history is about.
//!
//! The page is the beginning of the second chapter of Lewis Carroll's *Alice's Adventures in Wonderland* (London, 1865;
//! in the public domain), without its address in verse. An adapter that learns a person should leave it alone.

use std::sync::Arc;

use data::TextPipeline;
use kernels::OpsOptions;
use model::{AdapterWeights, Generator, GeneratorOptions, Model};
use serde::{Deserialize, Serialize};

use crate::error::EvalError;

/// The page, one paragraph a line, an empty line between.
pub const PAGE: &str = include_str!("alice.txt");

/// Tokens that are read at a time. More would say more, but the whole must take seconds.
const TOKENS_MAX: usize = 512;

/// How much the loss on the page may rise, in nats a token. An adapter of the default settings that took one person's
/// loss from 5.1 to 1.6 raised it by 0.04 (docs/log.md); five times that is a model that has begun to forget how to write.
pub const LOSS_RISE_MAX: f64 = 0.2;

/// The page's loss without and with an adapter, in nats a token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GeneralAbility {
    pub loss_without: f64,
    pub loss_with: f64,
    pub tokens: usize,
}

impl GeneralAbility {
    pub fn rise(&self) -> f64 {
        self.loss_with - self.loss_without
    }
    /// Whether the loss rose by no more than [`LOSS_RISE_MAX`].
    pub fn is_kept(&self) -> bool {
        self.rise() <= LOSS_RISE_MAX
    }
}

/// Measures the page with the adapters `on` alone, and with `adapter` on top of them.
pub fn general_ability(
    model: &Arc<Model>,
    text: &TextPipeline,
    on: &[&AdapterWeights],
    adapter: &AdapterWeights,
    ops: OpsOptions,
) -> Result<GeneralAbility, EvalError> {
    let failed = |source| EvalError::GeneralAbility { source };
    let context_tokens_max = TOKENS_MAX.min(model.config().context_tokens_max);
    let mut tokens = text
        .encode_text_prompt(PAGE.trim_end())
        .map_err(|error| EvalError::GeneralText { reason: error.to_string() })?;
    tokens.truncate(context_tokens_max);
    let mut mask = vec![true; tokens.len()];
    mask[0] = false;
    let options = GeneratorOptions::new(ops, context_tokens_max);
    let mut generator = Generator::stacked(Arc::clone(model), on, options).map_err(failed)?;
    let measure = |generator: &mut Generator| -> Result<(f64, usize), EvalError> {
        let losses = generator.losses(&tokens, &mask).map_err(failed)?;
        Ok((losses.loss_sum / losses.losses.len() as f64, losses.losses.len()))
    };
    let (loss_without, count) = measure(&mut generator)?;
    let stack: Vec<&AdapterWeights> = on.iter().copied().chain([adapter]).collect();
    generator.set_adapters(&stack).map_err(failed)?;
    let (loss_with, _) = measure(&mut generator)?;
    Ok(GeneralAbility { loss_without, loss_with, tokens: count })
}
