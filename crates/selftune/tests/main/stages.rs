//! Two stages: a task adapter from many people, a person's adapter on top of it, and what each remembers.

use crate::tiny::{Place, SHORT};
use serde_json::{Value, json};

/// Three people with a vocabulary of their own, in one file.
fn everybody(place: &Place) {
    let mut lines = String::new();
    for index in 0..12 {
        for (user, word) in [("ann", "quince"), ("bob", "walnut"), ("cyd", "thistle")] {
            let record = json!({
                "user": user, "id": format!("{user}-{index}"),
                "prompt": format!("{word} number {index}?"), "completion": format!("{word} {}", index % 3),
            });
            lines += &format!("{record}\n");
        }
    }
    place.write("everybody.jsonl", &lines);
}

fn task_run(place: &Place) -> Value {
    everybody(place);
    let train = ["train", "--model", "model", "--data", "everybody.jsonl", "--stage", "task", "--output", "task"];
    let settings = ["--set", "retrieved_records=3", "--hold-out", "0.2"];
    place.json(&[&train, SHORT, &settings].concat())
}

fn json_file(place: &Place, name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(place.path(name)).expect("a file")).expect("JSON")
}

#[test]
fn the_task_stage_learns_from_everybody_and_shows_each_only_the_own_earlier_records() {
    let place = Place::new();
    let outcome = task_run(&place);
    assert_eq!(outcome["data"]["records"], 36);
    assert_eq!(outcome["data"]["held_out_records"], 6, "a fifth of each person's twelve, rounded");
    assert_eq!(json_file(&place, "task/config.json")["stage"], "task");
    let metadata = json_file(&place, "task/adapter/best/selftune.json");
    assert_eq!(metadata["receipt"]["config"]["stage"], "task");
    assert_eq!(metadata.get("stack"), None);

    let examples = json_file(&place, "task/examples.json");
    let mut retrieved = 0;
    for example in examples["training"]
        .as_array()
        .expect("a list")
        .iter()
        .chain(examples["validation"].as_array().expect("a list"))
    {
        let (user, index) = example["record_id"].as_str().expect("an id").split_once('-').expect("user and number");
        for other in example["retrieved_ids"].as_array().expect("a list") {
            let (other_user, other_index) = other.as_str().expect("an id").split_once('-').expect("user and number");
            assert_eq!(other_user, user, "{example}");
            assert!(
                other_index.parse::<u32>().expect("a number") < index.parse::<u32>().expect("a number"),
                "{example}"
            );
            retrieved += 1;
        }
    }
    assert!(retrieved > 30, "{retrieved} records were retrieved");
    let validation: std::collections::BTreeSet<_> = examples["validation"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|example| example["record_id"].as_str().expect("an id")[..3].to_owned())
        .collect();
    assert!(validation.len() > 1, "validation knows only {validation:?}");
    // The newest of everybody is held out; the run can be judged on them.
    let evaluation = place.json(&["eval", "--run", "task", "--no-generate", "--rows"]);
    assert_eq!(evaluation["arms"][0]["queries"], 6);
    // Everybody has ten records before the questions: one group, in which each person weighs the same.
    let group = &evaluation["groups"][0];
    assert_eq!((&group["of"], &group["minus"]), (&json!("adapter"), &json!("base")), "{}", evaluation["groups"]);
    assert_eq!((&group["records_from"], &group["records_below"], &group["users"]), (&json!(0), &json!(50), &json!(3)));
    let loss = |arm: &str, user: &str| {
        let arms = evaluation["arms"].as_array().expect("arms");
        let rows = arms.iter().find(|found| found["name"] == arm).expect("the arm")["rows"].as_array().expect("rows");
        let of_user = rows.iter().filter(|row| row["id"].as_str().expect("an id").starts_with(user));
        let sum = |key: &str| of_user.clone().map(|row| row[key].as_f64().expect("a number")).sum::<f64>();
        sum("loss_sum") / sum("answer_tokens")
    };
    let gain: f64 =
        ["ann", "bob", "cyd"].iter().map(|user| loss("adapter", user) - loss("base", user)).sum::<f64>() / 3.0;
    assert!((group["gain"]["value"].as_f64().expect("a gain") - gain).abs() < 1e-9, "{group}, expected {gain}");

    place.refuses(
        &["train", "--model", "model", "--data", "everybody.jsonl", "--stage", "task", "--user", "ann"],
        2,
        &["--user"],
    );
    place.refuses(&["train", "--model", "model", "--data", "everybody.jsonl"], 3, &["3 people", "--stage task"]);
}

#[test]
fn the_user_stage_stands_on_the_task_adapter_and_nowhere_else() {
    let place = Place::new();
    task_run(&place);
    let train = ["train", "--model", "model", "--data", "everybody.jsonl", "--stage", "user", "--user", "bob"];
    let on = ["--on", "task/adapter/best", "--output", "bob", "--hold-out", "0.25"];
    let outcome = place.json(&[&train[..], SHORT, &on].concat());
    assert_eq!(outcome["data"]["records"], 12);
    let metadata = json_file(&place, "bob/adapter/best/selftune.json");
    let (stack, inputs) = (&metadata["stack"], &json_file(&place, "bob/run.json")["inputs"]);
    assert_eq!(stack[0]["name"], "task");
    assert_eq!(stack[0]["content_hash"], inputs["on"][0]["content_hash"]);
    assert_eq!(metadata["receipt"]["config"]["stage"], "user");
    let hash = stack[0]["content_hash"].as_str().expect("a hash")[..12].to_owned();

    // A run finds its stack by itself; loose adapters are given from the base model upwards.
    let answer = place.json(&["generate", "--run", "bob", "walnut number 3?", "--max-tokens", "4"]);
    assert_eq!(answer["adapters"].as_array().map(Vec::len), Some(2));
    let (task, bob) = ("task/adapter/best", "bob/adapter/best");
    let generate = ["generate", "--model", "model", "walnut number 3?", "--max-tokens", "4"];
    let same = place.json(&[&generate[..], &["--adapter", task, "--adapter", bob]].concat());
    assert_eq!(answer["text"], same["text"]);
    let refused = ["on top of task", &hash, "nothing but the base model"];
    place.refuses(&[&generate[..], &["--adapter", bob]].concat(), 3, &refused);
    place.refuses(&[&generate[..], &["--adapter", bob, "--adapter", task]].concat(), 3, &refused);
    let evaluation = place.json(&["eval", "--run", "bob", "--no-generate"]);
    assert_eq!(evaluation["arms"][0]["queries"], 3);
    let eval = [
        "eval",
        "--model",
        "model",
        "--data",
        "everybody.jsonl",
        "--user",
        "bob",
        "--hold-out",
        "0.25",
        "--no-generate",
    ];
    let same = place.json(&[&eval[..], &["--adapter", task, "--adapter", bob]].concat());
    for arm in [0, 2] {
        let loss = |evaluation: &Value| evaluation["arms"][arm]["loss_per_answer_token"].as_f64().expect("a loss");
        assert!((loss(&evaluation) - loss(&same)).abs() < 1e-6, "arm {arm}: {} and {}", loss(&evaluation), loss(&same));
    }

    // A finished or interrupted run goes on only over the same adapter.
    let resume = ["train", "--resume", "bob"];
    place.json(&resume);
    place.json(
        &[
            &[
                "train",
                "--model",
                "model",
                "--data",
                "everybody.jsonl",
                "--stage",
                "task",
                "--output",
                "task2",
                "--set",
                "seed=3",
            ],
            SHORT,
        ]
        .concat(),
    );
    std::fs::rename(place.path("task"), place.path("task1")).expect("renamed");
    place.refuses(&resume, 3, &["task/adapter/best"]);
    std::fs::rename(place.path("task2"), place.path("task")).expect("renamed");
    place.refuses(&resume, 3, &["no longer the one", &hash]);
}
