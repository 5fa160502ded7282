//! The report in its three forms.

use crate::sample;
use eval::report::{
    Fact, ReportInputs, TrainingCurves, configuration_facts, render_html, render_json, render_markdown, write_report,
};
use eval::table::{arms_table, differences_table};
use eval::verdict::judge;

/// Text that would run, restyle, load, redirect or break out if it were not escaped.
const HOSTILE: &str = "</title></style><script>alert(1)</script><img src=x onerror=alert(2)>\" onload='x'&lt;\u{202e}|`\n[a](javascript:b)";

#[test]
fn hostile_text_stays_text_wherever_it_stands() {
    let mut evaluation = sample::evaluation(3, [5.0, 4.0, 2.0, 2.0, 3.0]);
    for result in &mut evaluation.arms {
        for (index, row) in result.rows.iter_mut().enumerate() {
            row.id = HOSTILE.into();
            // A text that stands there several times would be shown once.
            row.gold = format!("{HOSTILE}{index}");
            row.prediction = Some(HOSTILE.into());
        }
    }
    evaluation.skipped.push(eval::evaluation::SkippedQuery { id: HOSTILE.into(), reason: HOSTILE.into() });
    let verdict = judge(&evaluation).unwrap();
    let mut inputs = sample::inputs(&evaluation);
    inputs.verdict = Some(&verdict);
    inputs.title = HOSTILE.into();
    for facts in [&mut inputs.facts, &mut inputs.data, &mut inputs.configuration] {
        facts.push(Fact::new(HOSTILE, HOSTILE));
    }
    inputs.costs[0].name = HOSTILE.into();
    inputs.costs[0].measured = Some(HOSTILE.into());

    let html = render_html(&inputs);
    for forbidden in ["<script", "<img", "onerror=alert(2)>", "onload='", "</title></style>", "\u{202e}"] {
        assert!(!html.contains(forbidden), "{forbidden:?} reached the page");
    }
    assert_eq!(html.matches("</style>").count(), 1);
    let shown = html.matches("&lt;script&gt;alert(1)&lt;/script&gt;").count();
    // Title twice; a caution; the reason of a record left out; 3 samples with an id, a gold answer and 5 predictions; 3 facts and 1 cost twice each.
    assert_eq!(shown, 2 + 1 + 1 + 3 * 7 + 6 + 2);

    let markdown = render_markdown(&inputs);
    for forbidden in ["<script", "<img", "[a](", "\u{202e}"] {
        assert!(!markdown.contains(forbidden), "{forbidden:?} reached the Markdown");
    }
    // A line break or a bar in a text must not end its table row.
    assert!(markdown.lines().filter(|line| line.starts_with('|')).all(|line| line.ends_with('|')));
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let evaluation = sample::evaluation(29, [5.1, 4.6, 2.4, 2.2, 3.9]);
    let html = render_html(&sample::inputs(&evaluation));
    for outside in ["http://", "https://", "src=", "href=", "@import", "url(", "<script", "<link"] {
        assert!(!html.contains(outside), "{outside:?} in the page");
    }
    assert!(html.contains("default-src 'none'") && html.contains("prefers-color-scheme: dark"));
    assert_eq!(html.matches("<svg").count(), 6);
    assert_eq!(html.matches("role=\"img\" aria-label=\"").count(), 6, "every drawing says what it shows");
    assert_balanced(&html);
}

/// Every element that is opened is closed, in order.
fn assert_balanced(html: &str) {
    let body = &html[html.find("<body>").unwrap()..html.find("</html>").unwrap()];
    let mut open = Vec::new();
    for tag in body.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
        let name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().unwrap();
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name), "closing {name}"),
            (false, true) => {}
            (false, false) => open.push(name),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn empty_and_broken_numbers_leave_gaps_and_no_panic() {
    let empty = ReportInputs { title: "nothing yet".into(), ..ReportInputs::default() };
    assert!(render_html(&empty).contains("<h1>nothing yet</h1>"));
    assert_eq!(render_markdown(&empty), "# nothing yet\n");

    let broken = TrainingCurves {
        loss: vec![(1.0, f64::NAN), (2.0, f64::INFINITY), (3.0, 1e300), (4.0, 2.0)],
        validation_loss: vec![(f64::NAN, 1.0)],
        learning_rate: vec![(1.0, 0.0), (1.0, 0.0)],
        best_step: Some(u64::MAX),
    };
    for training in [TrainingCurves::default(), broken] {
        let inputs = ReportInputs { training: Some(training), ..ReportInputs::default() };
        let html = render_html(&inputs);
        let drawings: String = html.split("<svg").skip(1).map(|rest| rest.split("</svg>").next().unwrap()).collect();
        assert!(!drawings.contains("=\"NaN") && !drawings.contains("inf\""), "{drawings}");
        render_markdown(&inputs);
        assert!(render_json(&inputs)["training"]["loss"].is_array());
    }
}

#[test]
fn terminal_tables_are_aligned_and_narrow_ones_leave_out_intervals() {
    let evaluation = sample::evaluation(29, [5.1, 4.6, 2.4, 2.2, 3.9]);
    assert_eq!(
        arms_table(&evaluation, 80).join("\n"),
        "\
Arm                     Loss per answer token  ROUGE-1  ROUGE-L  Exact match  Queries
Base model              5.748                  0.222    0.222    0.000        29
Base + retrieval        5.252                  0.667    0.667    0.000        29
Adapter                 3.056                  1.000    1.000    0.000        29
Adapter + retrieval     2.860                  1.000    1.000    1.000        29
Other person's adapter  4.356                  0.750    0.750    0.000        29"
    );
    let wide = arms_table(&evaluation, 200);
    assert!(wide[1].contains('[') && wide.iter().all(|line| line.chars().count() <= 200), "{wide:?}");
    let differences = differences_table(&evaluation, &["rouge_1"]);
    assert_eq!(differences.len(), 6);
    assert_eq!(
        differences[1],
        "Does training help?                 adapter - base                 ROUGE-1  +0.778  +0.778 to +0.778  yes"
    );
}

#[test]
fn markdown_is_as_reviewed() {
    let evaluation = sample::evaluation(8, [5.1, 4.6, 2.4, 2.2, 3.9]);
    let verdict = judge(&evaluation).unwrap();
    let mut inputs = sample::inputs(&evaluation);
    inputs.verdict = Some(&verdict);
    inputs.samples_max = 1;
    assert_eq!(render_markdown(&inputs), include_str!("snapshots/report.md"));
}

#[test]
fn configuration_is_shown_key_by_key() {
    let facts = configuration_facts(
        &serde_json::json!({"adapter": {"rank": 8, "targets": ["q", "v"]}, "seed": 1, "name": "x"}),
    );
    let lines: Vec<String> = facts.iter().map(|fact| format!("{}={}", fact.name, fact.value)).collect();
    assert_eq!(lines, ["adapter.rank=8", "adapter.targets=[\"q\",\"v\"]", "seed=1", "name=x"]);
}

#[test]
fn files_are_written_whole_and_a_missing_folder_is_an_error_that_names_the_file() {
    let evaluation = sample::evaluation(3, [5.0, 4.0, 2.0, 2.0, 3.0]);
    let inputs = sample::inputs(&evaluation);
    let folder = tempfile::tempdir().unwrap();
    let files = write_report(folder.path(), &inputs).unwrap();
    assert_eq!(std::fs::read_to_string(&files.html).unwrap(), render_html(&inputs));
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&files.json).unwrap()).unwrap();
    assert_eq!(json["evaluation"]["arms"][0]["rows"].as_array().unwrap().len(), 3);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "no temporary file stays");
    let error = write_report(&folder.path().join("missing"), &inputs).unwrap_err();
    assert!(error.to_string().contains("missing/report.html"), "{error}");
}
