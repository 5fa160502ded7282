//! Adapters on top of each other: what one remembers of those below it, and a stack as one adapter.

use super::{AdapterFile, AdapterMatrix, AdapterMetadata, PeftConfig, block_and_name};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// An adapter below another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackEntry {
    /// What it was called, for people; nothing is decided by it.
    pub name: String,
    /// [`AdapterFile::content_hash`].
    pub content_hash: String,
}

impl std::fmt::Display for StackEntry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({})", self.name, self.content_hash.get(..12).unwrap_or(&self.content_hash))
    }
}

impl AdapterFile {
    /// The same adapter, remembering that it was trained on top of `stack`, bottom first. Metadata of another program's
    /// adapter has no place for it.
    pub fn on_top_of(mut self, stack: &[StackEntry]) -> AdapterFile {
        if let Some(metadata) = &mut self.metadata {
            metadata.stack = stack.to_vec();
        }
        self
    }

    /// SHA-256, in hexadecimal, of what the adapter computes: modules, shapes, scale and values. The same for the
    /// same adapter in any format, and whatever its metadata says.
    pub fn content_hash(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(b"selftune adapter 1\0");
        hash.update(self.config.scale().to_le_bytes());
        hash.update((self.config.r as u64).to_le_bytes());
        let mut matrices: Vec<&AdapterMatrix> = self.matrices.iter().collect();
        matrices.sort_by(|one, two| one.module.cmp(&two.module));
        for matrix in matrices {
            hash.update((matrix.module.len() as u64).to_le_bytes());
            hash.update(&matrix.module);
            hash.update((matrix.n_out as u64).to_le_bytes());
            hash.update((matrix.k_in as u64).to_le_bytes());
            for value in matrix.a.iter().chain(&matrix.b) {
                hash.update(value.to_le_bytes());
            }
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The adapters of a stack, bottom first, as one that computes the sum of their products: its rank is the sum of
    /// theirs, its scale is 1 and theirs are part of B. Modules that not every adapter has are filled up with zeros, so
    /// that any program can read it. The stack must not be empty.
    pub fn concatenated(stack: &[&AdapterFile]) -> AdapterFile {
        let mut shapes: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        let mut blocks = BTreeSet::new();
        for matrix in stack.iter().flat_map(|adapter| &adapter.matrices) {
            if let Some((block, name)) = block_and_name(&matrix.module) {
                shapes.insert(name, (matrix.n_out, matrix.k_in));
                blocks.insert(block);
            }
        }
        let rank: usize = stack.iter().map(|adapter| adapter.config.r).sum();
        let places = blocks.iter().flat_map(|block| shapes.iter().map(move |(name, shape)| (*block, *name, *shape)));
        let matrices = places.map(|(block, name, (n_out, k_in))| {
            let module = format!("model.layers.{block}.{name}");
            let (mut a, mut b) = (Vec::with_capacity(rank * k_in), vec![0.0; n_out * rank]);
            let mut first = 0;
            for adapter in stack {
                let (r, scale) = (adapter.config.r, adapter.config.scale() as f32);
                match adapter.matrices.iter().find(|matrix| matrix.module == module) {
                    None => a.resize(a.len() + r * k_in, 0.0),
                    Some(matrix) => {
                        a.extend_from_slice(&matrix.a);
                        for (to, from) in b.chunks_exact_mut(rank).zip(matrix.b.chunks_exact(r)) {
                            to[first..first + r].iter_mut().zip(from).for_each(|(to, value)| *to = scale * value);
                        }
                    }
                }
                first += r;
            }
            AdapterMatrix { module, n_out, k_in, a, b }
        });
        let matrices = matrices.collect();
        let top = stack[stack.len() - 1];
        AdapterFile {
            matrices,
            config: PeftConfig {
                r: rank,
                lora_alpha: rank as f64,
                lora_dropout: 0.0,
                use_rslora: false,
                target_modules: shapes.keys().map(|name| name.rsplit('.').next().unwrap_or(name).to_owned()).collect(),
                layers_to_transform: Some(blocks.into_iter().collect()),
                base_model_name_or_path: top.config.base_model_name_or_path.clone(),
            },
            metadata: top.metadata.as_ref().map(|metadata| AdapterMetadata {
                stack: Vec::new(),
                receipt: serde_json::json!({"concatenated": stack.iter().map(|a| a.content_hash()).collect::<Vec<_>>()}),
                ..metadata.clone()
            }),
        }
    }
}
