//! A made-up evaluation whose values can be worked out by hand.

use eval::metrics::text_metrics;
use eval::report::{Cost, Fact, ReportInputs, TrainingCurves};
use eval::{ARMS, Bootstrap, Evaluation, QueryRow};

/// What an arm answered to query `index`.
type Answer = fn(usize) -> String;

/// Rows of `queries` records under all five arms. The loss of an arm is the given one plus up to 1 nat by query;
/// how much it differs from another arm's changes from query to query by up to 0.4 nats.
pub fn evaluation(queries: usize, losses: [f64; 5]) -> Evaluation {
    let answers: [Answer; 5] = [
        |index| format!("This commit updates file {index}"),
        |index| format!("Update parser for case {index}"),
        |index| format!("fix parser case {index}"),
        |index| format!("fix parser: case {index}"),
        |index| format!("[docs] Fix parser {index}"),
    ];
    let rows = ARMS.iter().enumerate().zip(answers).zip(losses).map(|(((place, arm), answer), loss)| {
        let swing = |index: usize| (index * (place + 1) % 5) as f64 / 10.0;
        let rows = (0..queries).map(|index| row(index, answer(index), loss + swing(index))).collect();
        (arm, rows)
    });
    Evaluation::from_rows(rows.collect(), text_metrics(), Bootstrap::default()).expect("arms hold the same queries")
}

fn row(index: usize, prediction: String, loss: f64) -> QueryRow {
    let answer_tokens = 4 + index % 3;
    let hardness = (index * 7 % 10) as f64 / 10.0;
    QueryRow {
        id: format!("commit-{index:03}"),
        gold: format!("fix parser: case {index}"),
        prediction: Some(prediction),
        loss_sum: Some((loss + hardness) * answer_tokens as f64),
        answer_tokens,
        prompt_tokens: 120,
        ..QueryRow::default()
    }
}

/// A whole report over an evaluation.
pub fn inputs(evaluation: &Evaluation) -> ReportInputs<'_> {
    let step = |step: u32| f64::from(step);
    let noise = |number: u32| f64::from(number * 7919 % 97) / 97.0 - 0.5;
    ReportInputs {
        title: "author-08 on SmolLM2-135M-Instruct".into(),
        facts: vec![
            Fact::new("Model", "SmolLM2-135M-Instruct, 4-bit"),
            Fact::new("History", "history.jsonl, 145 records"),
            Fact::new("Date", "2026-11-30"),
            Fact::new("Machine", "2 cores, AVX-512 VNNI, 16 GB"),
        ],
        verdict: None,
        evaluation: Some(evaluation),
        training: Some(TrainingCurves {
            loss: (1..=120).map(|n| (step(n), 2.0 + 3.5 * (-f64::from(n) / 25.0).exp() + 0.9 * noise(n))).collect(),
            validation_loss: (0..=6).map(|n| (step(n * 20), 2.4 + 3.1 * (-f64::from(n) / 1.2).exp())).collect(),
            learning_rate: (1..=120)
                .map(|n| (step(n), 5e-4 * (step(n) / 12.0).min(1.0) * (1.0 - step(n) / 121.0)))
                .collect(),
            best_step: Some(100),
        }),
        costs: vec![
            Cost { name: "Time".into(), planned: Some("148 s".into()), measured: Some("151 s".into()) },
            Cost { name: "Training tokens".into(), planned: Some("34,112".into()), measured: Some("34,112".into()) },
            Cost { name: "Tokens per second".into(), planned: None, measured: Some("226".into()) },
            Cost { name: "Peak memory".into(), planned: Some("412 MB".into()), measured: Some("398 MB".into()) },
        ],
        data: vec![
            Fact::new("Records read", "146"),
            Fact::new("Records kept", "145"),
            Fact::new("Records skipped", "1 (history.jsonl:17: no answer)"),
            Fact::new("Records truncated", "9 (retrieved text 0, context 9, answer 0)"),
            Fact::new("Supervised tokens", "1,893"),
        ],
        configuration: eval::report::configuration_facts(&serde_json::json!({
            "preset": "default", "learning_rate": 0.0005, "adapter": {"rank": 8, "targets": ["q_proj", "v_proj"]},
        })),
        samples_max: 3,
    }
}
