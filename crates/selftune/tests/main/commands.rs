//! The main way through: train, inspect, evaluate, answer; and what `--json` promises.

use crate::tiny::{Place, SHORT};
use std::io::Write;
use std::process::Stdio;

fn trained() -> Place {
    let place = Place::new();
    let train = ["train", "--model", "model", "--data", "history.jsonl", "--output", "run", "--hold-out", "0.2"];
    let outcome = place.json(&[&train, SHORT].concat());
    assert_eq!(outcome["end"], "completed");
    assert_eq!(outcome["data"]["held_out_records"], 8);
    assert!(outcome["validation_before"].is_f64() && outcome["validation_best"]["loss"].is_f64(), "{outcome}");
    place
}

#[test]
fn a_run_is_trained_inspected_evaluated_and_used() {
    let place = trained();
    for file in
        ["run/adapter/best/adapter_model.safetensors", "run/adapter/last/adapter_config.json", "run/report.html"]
    {
        assert!(place.path(file).is_file(), "{file}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(place.path("run")).expect("the run").permissions().mode();
        assert_eq!(mode & 0o077, 0, "only the owner may read a run");
    }

    assert_eq!(place.json(&["inspect", "run"])["run"]["status"], "finished");
    assert!(place.json(&["inspect", "run/adapter/best"])["parameters"].as_u64() > Some(0));
    assert_eq!(place.json(&["inspect", "model"])["config"]["num_hidden_layers"], 2);

    let other = ["train", "--model", "model", "--data", "history.jsonl", "--output", "other", "--set", "seed=5"];
    place.json(&[&other, SHORT].concat());
    let evaluation =
        place.json(&["eval", "--run", "run", "--other-run", "other", "--max-tokens", "4", "--retrieve", "1"]);
    let arms = evaluation["arms"].as_array().expect("arms");
    let names: Vec<_> = arms.iter().map(|arm| arm["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["base", "retrieval", "adapter", "adapter_retrieval", "other_adapter"]);
    for arm in arms {
        assert_eq!(arm["queries"], 8);
        for key in ["loss_per_answer_token", "rouge_1", "rouge_l", "exact_match"] {
            assert!(arm[key].is_f64(), "{key} of {arm}");
        }
    }
    assert!(evaluation["wall_s"].is_f64() && evaluation["run_dir"] == "run");

    let answer = place.json(&["generate", "--run", "run", "what is 3 and 4", "--max-tokens", "5"]);
    assert_eq!(answer["answer_tokens"].as_u64().map(|tokens| tokens <= 5), Some(true));
    let again = place.json(&["generate", "--run", "run", "what is 3 and 4", "--max-tokens", "5", "--threads", "1"]);
    assert_eq!(answer["text"], again["text"], "threads change no result");
}

/// Talks to the model; an answer for every turn.
fn chat(place: &Place, lines: &[u8]) -> Vec<serde_json::Value> {
    let mut child = place
        .command(&["chat", "--model", "model", "--max-tokens", "3", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("piped").write_all(lines).expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
}

#[test]
fn chat_reads_turns_and_answers_each() {
    let place = Place::new();
    let answers = chat(&place, b"hello\n\n/reset\nand again\n/quit\nnever\n");
    assert_eq!(answers.len(), 2, "{answers:?}");
    let alone = place.json(&["generate", "--model", "model", "hello", "--max-tokens", "3"]);
    assert_eq!((&answers[0]["text"], &answers[0]["prompt_tokens"]), (&alone["text"], &alone["prompt_tokens"]));
    let again = place.json(&["generate", "--model", "model", "and again", "--max-tokens", "3"]);
    assert_eq!(answers[1]["prompt_tokens"], again["prompt_tokens"], "after /reset nothing is left of the first turn");
}

#[test]
fn the_plan_and_the_settings_are_shown_without_training() {
    let place = Place::new();
    let plan =
        place.json(&["train", "--model", "model", "--data", "history.jsonl", "--dry-run", "--set", "tokens_max=200"]);
    assert_eq!(plan["data"]["held_out_records"], 8, "a tenth of 40 records would be too few for a verdict");
    assert!(plan["plan"]["updates"].as_u64() > Some(0) && plan["plan"]["memory_total_bytes"].as_u64() > Some(0));
    assert!(!place.path("runs").exists(), "a dry run writes nothing");
    let train = ["train", "--model", "model", "--data", "history.jsonl", "--settings", "--preset", "paper"];
    assert_eq!(place.json(&train)["settings"]["learning_rate"], 1e-5);
    let text = String::from_utf8(place.run(&train).stdout).expect("UTF-8");
    assert!(text.contains("rank = 8") && text.contains("retrieved_records = 4"), "{text}");
}

/// Before anything is trained, people see of one example what is learned and what is only read.
#[test]
fn the_plan_shows_what_is_learned() {
    let place = Place::new();
    let output = place.run(&["train", "--model", "model", "--data", "history.jsonl", "--dry-run", "--hold-out", "0"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    // The heading shows the marks too.
    let (_, sample) = text.split_once("One example").expect("a sample").1.split_once('\n').expect("its text");
    let (read, learned) = sample.split_once('⟦').expect("a learned part");
    let (number, _) = read.split_once("what is ").expect("a prompt").1.split_once(" and").expect("a prompt");
    let number: usize = number.parse().expect("a number");
    assert!(learned.starts_with(&format!("sum {}", number + number * 7 % 11)), "{sample}");
    assert!(learned.contains('⟧') && !read.contains("sum"), "{sample}");
}

#[test]
fn commits_of_a_repository_become_a_history() {
    let place = Place::new();
    let git = |arguments: &[&str]| {
        let status = std::process::Command::new("git")
            .args(["-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-C"])
            .arg(place.path("repo"))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("git is installed");
        assert!(status.success(), "git {arguments:?}");
    };
    std::fs::create_dir(place.path("repo")).expect("a folder");
    git(&["init"]);
    for index in 0..3 {
        place.write(&format!("repo/file{index}.rs"), &format!("fn number_{index}() {{}}\n"));
        git(&["add", "."]);
        git(&["commit", "-m", &format!("code: add number {index} (#{index})")]);
    }
    let imported = place.json(&["import", "git", "--repo", "repo", "--author", "ann@", "--output", "ann.jsonl"]);
    assert_eq!(imported["records"], 3);
    let text = std::fs::read_to_string(place.path("ann.jsonl")).expect("a history");
    assert!(text.contains("\"code: add number 0\"") && text.contains("number_2"), "{text}");
    place.refuses(
        &["import", "git", "--repo", "repo", "--author", "ann", "--output", "ann.jsonl"],
        2,
        &["exists already"],
    );
    place.refuses(&["import", "git", "--repo", "repo", "--author", "bob", "--output", "bob.jsonl"], 3, &["Ann"]);
    place.refuses(
        &["import", "git", "--repo", "model", "--author", "ann", "--output", "x.jsonl"],
        3,
        &["not a git repository"],
    );
}

#[test]
fn local_models_are_pulled_and_found_by_path() {
    let place = Place::new();
    let pulled = place.json(&["pull", "model"]);
    let path = pulled["path"].as_str().expect("a path");
    assert!(path.starts_with(place.path("home").to_str().expect("UTF-8")), "{path}");
    assert!(place.json(&["inspect", path])["parameters"].as_u64() > Some(0));
    let models = place.json(&["pull", "--list"])["models"].clone();
    assert_eq!((&models[0]["here"], &models[1]["name"]), (&false.into(), &"model".into()));
    place.refuses(&["pull", "model"], 2, &["is there already"]);
    std::fs::rename(place.path("model"), place.path("elsewhere")).expect("moved");
    assert!(place.json(&["inspect", "model"])["parameters"].as_u64() > Some(0), "found by its name in the store");
}

#[test]
fn the_kernel_benchmark_checks_its_answers() {
    let place = Place::new();
    let bench = ["bench", "kernels", "--matrices", "64x128,70x64", "--tokens", "7", "--seconds", "0.001"];
    let more = ["--precisions", "a16,exact,a8", "--threads", "2", "--stream-mb", "4"];
    let result = place.json(&[&bench[..], &more].concat());
    let rows = result["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2 * 3 * 2);
    let streams = result["streams"].as_array().expect("streams");
    assert!(streams.len() == 2 && streams.iter().all(|row| row["relative_error"].as_f64() < Some(5e-4)), "{streams:?}");
    assert!(rows.iter().all(|row| row["speedup"].as_f64() > Some(0.0)));
    for row in rows {
        let bound = match row["precision"].as_str() {
            Some("a16") => 5e-4,
            Some("exact") => 1e-5,
            _ => 5e-2,
        };
        assert!(row["relative_error"].as_f64().is_some_and(|error| error < bound), "{row}");
        assert!(row["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()));
    }
}

#[test]
fn records_that_were_trained_on_judge_nothing() {
    let place = trained();
    // The newest records, which were held out, are gone: those before them were trained on.
    let text = std::fs::read_to_string(place.path("history.jsonl")).expect("the history");
    let older: String = text.lines().take(36).map(|line| line.to_owned() + "\n").collect();
    place.write("history.jsonl", &older);
    let evaluation = place.json(&["eval", "--run", "run", "--no-generate", "--arms", "base,adapter"]);
    let queries = evaluation["arms"][0]["queries"].as_u64().expect("a number");
    assert_eq!(queries, 4, "records 32 to 35 were held out, earlier ones trained on: {evaluation}");
    let cautions = evaluation["verdict"]["cautions"].to_string();
    assert!(cautions.contains("trained on") && cautions.contains("changed"), "{cautions}");
}

#[test]
fn given_parts_are_respected() {
    let place = Place::new();
    std::fs::create_dir(place.path("parts")).expect("a folder");
    let text = std::fs::read_to_string(place.path("history.jsonl")).expect("the history");
    let lines: Vec<&str> = text.lines().collect();
    for (name, part) in [("train", &lines[..20]), ("valid", &lines[20..26]), ("test", &lines[26..])] {
        place.write(&format!("parts/{name}.jsonl"), &(part.join("\n") + "\n"));
    }
    let train = ["train", "--model", "model", "--data", "parts", "--output", "run"];
    let data = place.json(&[&train, SHORT].concat())["data"].clone();
    let counts = ["training_examples", "validation_examples", "held_out_records"].map(|key| data[key].as_u64());
    assert_eq!(counts, [Some(20), Some(6), Some(14)]);
}

#[test]
fn a_report_that_cannot_be_written_costs_no_result() {
    let place = trained();
    std::fs::remove_file(place.path("run/report.html")).expect("removed");
    std::fs::create_dir(place.path("run/report.html")).expect("a folder in its place");
    let evaluation = place.json(&["eval", "--run", "run", "--no-generate", "--arms", "base,adapter"]);
    assert!(evaluation["report"].is_null() && evaluation["arms"][0]["loss_per_answer_token"].is_f64());
}

#[test]
fn quiet_training_shows_nothing_of_the_history() {
    let place = Place::new();
    let train = ["train", "--model", "model", "--data", "history.jsonl", "--output", "run", "--quiet"];
    let output = place.run(&[&train, SHORT].concat());
    let shown = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && !String::from_utf8_lossy(&shown).contains("what is"));
}

#[test]
fn every_turn_is_answered_with_what_was_said_before() {
    let place = Place::new();
    let answers = chat(&place, b"first\nsecond turn\n");
    let tokens: Vec<u64> = answers.iter().map(|answer| answer["prompt_tokens"].as_u64().expect("a number")).collect();
    let alone =
        place.json(&["generate", "--model", "model", "second turn"])["prompt_tokens"].as_u64().expect("a number");
    assert!(tokens.len() == 2 && tokens[1] > alone && tokens[1] > tokens[0], "{tokens:?} against {alone}");
}

#[test]
fn help_teaches() {
    let place = Place::new();
    for (command, words) in [
        (&["pull", "--help"][..], &["owner/name", "wheel:"][..]),
        (&["train", "--help"], &["--resume RUN", "--set targets=q,v"]),
        (&["bench", "kernels", "--help"], &["ceiling", "float64"]),
        (&["bench", "step", "--help"], &["--against blocks=18", "no-tiles"]),
        // Lines end where those of the terminal do, not where the source's do.
        (&["bench", "step", "--help"], &["in turns with only their\nproducts with frozen weights, so that both see"]),
        (&["--help"], &["Train an adapter on a history", "Exit codes"]),
    ] {
        let text = String::from_utf8(place.run(command).stdout).expect("UTF-8");
        for word in words {
            assert!(text.contains(word), "{command:?} should say {word:?}: {text}");
        }
    }
}

#[test]
fn questions_need_no_answer() {
    let place = Place::new();
    place.write("question.json", "{\"prompt\": \"what is 3 and 4\"}");
    let asked = place.json(&["generate", "--model", "model", "--record", "question.json", "--max-tokens", "4"]);
    let plain = place.json(&["generate", "--model", "model", "what is 3 and 4", "--max-tokens", "4"]);
    assert_eq!(asked["text"], plain["text"]);
}
