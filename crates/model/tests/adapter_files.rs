//! Adapters through files: what is written comes back, and what does not belong to the model is refused.

use formats::adapter::{AdapterFile, read_adapter, read_peft, write_mlx, write_peft};
use kernels::{OpsOptions, Precision};
use model::{AdapterWeights, Generator, GeneratorOptions, ModelError, Projection};
use serde_json::json;

use crate::tiny;

fn file() -> (std::sync::Arc<model::Model>, AdapterWeights, AdapterFile) {
    let model = tiny::model("qwen3");
    let mut spec = tiny::spec(&[Projection::Value, Projection::Down, Projection::Query], 1..3);
    spec.dropout = 0.25;
    let adapter = tiny::adapter(&model, spec);
    let file = adapter.to_file(&model, Some("tiny".into()), json!({"records": 3}));
    (model, adapter, file)
}

/// Targets in the order in which matrices lie.
fn sorted(mut adapter: AdapterWeights) -> AdapterWeights {
    adapter.spec.targets.sort();
    adapter
}

#[test]
fn a_saved_adapter_comes_back_and_acts_the_same() {
    let (model, adapter, file) = file();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("adapter");
    write_peft(&path, &file).expect("the adapter is written");
    let read = AdapterWeights::from_file(&read_peft(&path).expect("the adapter is read"), &model).expect("it fits");
    assert_eq!(read, sorted(adapter.clone()));

    // And through the other layout, whose matrices lie the other way and whose factor is called otherwise.
    let path = folder.path().join("mlx");
    write_mlx(&path, &file, tiny::BLOCKS).expect("the adapter is written");
    let other = AdapterWeights::from_file(&read_adapter(&path).expect("the adapter is read"), &model).expect("it fits");
    assert_eq!(other.matrices, read.matrices);
    assert_eq!(other.spec.scale(), adapter.spec.scale());

    let logits = |adapter: &AdapterWeights| {
        let ops = OpsOptions { threads: 1, precision: Precision::A16, ..OpsOptions::default() };
        let options = GeneratorOptions::new(ops, 16);
        let mut generator = Generator::new(model.clone(), Some(adapter), options).expect("a generator");
        generator.logits(&[5, 9, 2, 40]).expect("logits")
    };
    assert_eq!(logits(&read), logits(&adapter));
    assert_eq!(logits(&other), logits(&adapter));
}

#[test]
fn an_adapter_of_another_base_is_refused() {
    let (model, _, mut file) = file();
    let metadata = file.metadata.as_mut().expect("our own metadata");
    assert_eq!(metadata.base_content_hash, model.content_hash());
    metadata.base_content_hash = "other".into();
    let error = AdapterWeights::from_file(&file, &model).expect_err("refused");
    assert_eq!(error, ModelError::AdapterWrongBase { found: "other".into(), expected: "tiny".into() });
    // Another program's file does not say; then shapes decide.
    file.metadata = None;
    AdapterWeights::from_file(&file, &model).expect("it fits");
    let error = AdapterWeights::from_file(&file, &tiny::model("llama")).expect_err("refused");
    let expected = ModelError::TensorShape {
        name: "model.layers.1.self_attn.q_proj.lora_B".into(),
        found: vec![128, 4],
        expected: vec![64, 4],
    };
    assert_eq!(error, expected);
}

#[test]
fn incomplete_and_foreign_matrices_are_named() {
    let (model, _, whole) = file();
    let refused = |change: &dyn Fn(&mut AdapterFile)| {
        let mut file = whole.clone();
        change(&mut file);
        AdapterWeights::from_file(&file, &model).expect_err("refused").to_string()
    };
    for (message, said) in [
        (refused(&|file| file.matrices.clear()), "targets nothing"),
        (refused(&|file| drop(file.matrices.remove(1))), "without model.layers.1.self_attn.v_proj"),
        (
            refused(&|file| file.matrices[0].module = "model.layers.1.mlp.experts".into()),
            "is model.layers.1.mlp.experts",
        ),
        (refused(&|file| file.matrices[0].module = "model.layers.9.mlp.up_proj".into()), "with N below 3"),
        (refused(&|file| file.matrices[0].module = "lm_head".into()), "is lm_head"),
        (
            refused(&|file| file.matrices[0].a[7] = f32::NAN),
            "q_proj.lora_A holds a value that is not finite at index 7",
        ),
        (refused(&|file| file.matrices[0].b.truncate(511)), "q_proj.lora_B has shape [511]"),
        (refused(&|file| file.matrices.push(file.matrices[0].clone())), "7 matrices"),
        (refused(&|file| file.config.r = 0), "rank is 0"),
        (refused(&|file| file.config.lora_alpha = f64::INFINITY), "lora_alpha is inf"),
    ] {
        assert!(message.contains(said), "{message:?} does not say {said:?}");
    }
}
