//! Adapters to and from the form in which files hold them.

use formats::adapter::{AdapterFile, AdapterMatrix as FileMatrix, AdapterMetadata, PeftConfig, StackEntry};

use crate::adapter::{AdapterMatrix, AdapterSpec, AdapterWeights};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::projection::Projection;
use crate::weights::Model;

impl AdapterWeights {
    /// This adapter of `model` for a file. `base_name` is what other programs know the base by, `receipt` says how the
    /// adapter came to be. One that was trained on top of others says so with [`AdapterFile::on_top_of`].
    pub fn to_file(&self, model: &Model, base_name: Option<String>, receipt: serde_json::Value) -> AdapterFile {
        let config = model.config();
        let matrices = self.matrices.iter().map(|matrix| {
            let (n_out, k_in) = matrix.projection.shape(config);
            let module = matrix.projection.module_path(matrix.block);
            FileMatrix { module, n_out, k_in, a: matrix.a.clone(), b: matrix.b.clone() }
        });
        AdapterFile {
            matrices: matrices.collect(),
            metadata: Some(AdapterMetadata {
                selftune_version: env!("CARGO_PKG_VERSION").into(),
                base_content_hash: model.content_hash().into(),
                stack: Vec::new(),
                receipt,
            }),
            config: PeftConfig {
                r: self.spec.rank,
                lora_alpha: as_written(self.spec.lora_alpha),
                lora_dropout: as_written(self.spec.dropout),
                use_rslora: self.spec.use_rslora,
                target_modules: self.spec.sorted_targets().map(|target| target.short_name().into()).collect(),
                layers_to_transform: Some(self.spec.blocks.clone().collect()),
                base_model_name_or_path: base_name,
            },
        }
    }

    /// The adapter in `file`, if it belongs to `model`: every matrix must have its place, every place in the adapted
    /// blocks its matrix. A file of another program does not say which base it is for; its shapes must fit. One that was
    /// trained on top of others is refused: see [`AdapterStack`].
    pub fn from_file(file: &AdapterFile, model: &Model) -> Result<Self, ModelError> {
        check_base(file, model.content_hash())?;
        check_stack(file, &[])?;
        Self::from_matrices(file, model.config())
    }

    /// The adapter in `file`, if its shapes fit a model of `config`.
    fn from_matrices(file: &AdapterFile, config: &ModelConfig) -> Result<Self, ModelError> {
        let placed = file.matrices.iter().map(|matrix| place(matrix, file.config.r, config));
        let mut matrices = placed.collect::<Result<Vec<_>, _>>()?;
        matrices.sort_by_key(|matrix| (matrix.block, matrix.projection));
        let (Some(first), Some(last)) = (matrices.first(), matrices.last()) else {
            return Err(ModelError::AdapterTargetsNothing { reason: "its file holds no matrices".into() });
        };
        let spec = AdapterSpec {
            rank: file.config.r,
            lora_alpha: file.config.lora_alpha as f32,
            dropout: file.config.lora_dropout as f32,
            targets: Projection::ALL.into_iter().filter(|p| matrices.iter().any(|m| m.projection == *p)).collect(),
            blocks: first.block..last.block + 1,
            use_rslora: file.config.use_rslora,
        };
        let holds = |place: &(usize, Projection)| matrices.iter().any(|m| (m.block, m.projection) == *place);
        if let Some((block, projection)) = spec.matrices().find(|place| !holds(place)) {
            return Err(ModelError::AdapterInvalid {
                field: "modules",
                found: format!("{} without {}", matrices.len(), projection.module_path(block)),
                expected: "the same projections in every block from the first adapted to the last".into(),
            });
        }
        let adapter = Self { spec, matrices };
        adapter.validate(config)?;
        Ok(adapter)
    }
}

/// Adapters that are used together, bottom first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterStack {
    adapters: Vec<AdapterWeights>,
    entries: Vec<StackEntry>,
}

impl AdapterStack {
    /// The adapters of these names and files, bottom first, if they belong to `model` and to each other: one that was
    /// trained on top of others must have exactly those below it. One that was not may stand on any.
    pub fn from_files(files: &[(String, AdapterFile)], model: &Model) -> Result<Self, ModelError> {
        for (_, file) in files {
            check_base(file, model.content_hash())?;
        }
        Self::for_config(files, model.config())
    }

    /// As [`Self::from_files`] for any model of this configuration, whichever the adapters were trained on.
    pub fn for_config(files: &[(String, AdapterFile)], config: &ModelConfig) -> Result<Self, ModelError> {
        let entries = Self::check_order(files)?;
        let adapters = files.iter().map(|(_, file)| AdapterWeights::from_matrices(file, config));
        Ok(Self { adapters: adapters.collect::<Result<_, _>>()?, entries })
    }

    /// Checks only that each of `files` stands on the adapters that it was trained on top of, and identifies them.
    pub fn check_order(files: &[(String, AdapterFile)]) -> Result<Vec<StackEntry>, ModelError> {
        let mut entries = Vec::new();
        for (name, file) in files {
            check_stack(file, &entries)?;
            entries.push(StackEntry { name: name.clone(), content_hash: file.content_hash() });
        }
        Ok(entries)
    }

    /// As [`crate::TrainingSession::stacked`] and [`crate::Generator::stacked`] take them.
    pub fn weights(&self) -> Vec<&AdapterWeights> {
        self.adapters.iter().collect()
    }
    /// What an adapter on top of these remembers of them.
    pub fn entries(&self) -> &[StackEntry] {
        &self.entries
    }
    pub fn is_empty(&self) -> bool {
        self.adapters.is_empty()
    }
}

fn check_base(file: &AdapterFile, content_hash: &str) -> Result<(), ModelError> {
    match &file.metadata {
        Some(metadata) if metadata.base_content_hash != content_hash => {
            let (found, expected) = (metadata.base_content_hash.clone(), content_hash.into());
            Err(ModelError::AdapterWrongBase { found, expected })
        }
        _ => Ok(()),
    }
}

/// Refuses an adapter that was trained on top of others than those `below` it. Names do not matter.
fn check_stack(file: &AdapterFile, below: &[StackEntry]) -> Result<(), ModelError> {
    let Some(metadata) = &file.metadata else { return Ok(()) };
    let hashes = |entries: &[StackEntry]| entries.iter().map(|entry| entry.content_hash.clone()).collect::<Vec<_>>();
    if metadata.stack.is_empty() || hashes(&metadata.stack) == hashes(below) {
        return Ok(());
    }
    let list = |entries: &[StackEntry]| match entries {
        [] => "nothing but the base model".to_owned(),
        entries => entries.iter().map(StackEntry::to_string).collect::<Vec<_>>().join(", then "),
    };
    Err(ModelError::AdapterWrongStack { expected: list(&metadata.stack), found: list(below) })
}

/// `matrix` in its place in a model of `config`.
fn place(matrix: &FileMatrix, rank: usize, config: &ModelConfig) -> Result<AdapterMatrix, ModelError> {
    let unknown = || ModelError::AdapterInvalid {
        field: "module",
        found: matrix.module.clone(),
        expected: format!(
            "model.layers.N.M with N below {} and M one of {}",
            config.blocks.len(),
            Projection::ALL.map(Projection::module_name).join(", ")
        ),
    };
    let within =
        matrix.module.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')).ok_or_else(unknown)?;
    let block = within.0.parse().ok().filter(|block| *block < config.blocks.len()).ok_or_else(unknown)?;
    let is_named = |projection: &Projection| projection.module_name() == within.1;
    let projection = Projection::ALL.into_iter().find(is_named).ok_or_else(unknown)?;
    let (n_out, k_in) = projection.shape(config);
    if matrix.k_in != k_in {
        let (found, expected) = (vec![rank, matrix.k_in], vec![rank, k_in]);
        return Err(ModelError::TensorShape { name: format!("{}.lora_A", matrix.module), found, expected });
    }
    if matrix.n_out != n_out {
        let (found, expected) = (vec![matrix.n_out, rank], vec![n_out, rank]);
        return Err(ModelError::TensorShape { name: format!("{}.lora_B", matrix.module), found, expected });
    }
    Ok(AdapterMatrix { block, projection, a: matrix.a.clone(), b: matrix.b.clone() })
}

/// The number that people wrote: 0.1 rather than the digits of the nearest float32.
fn as_written(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
