//! Importing commits from a small repository that the test makes.

use data::import::git::{GitError, GitImportOptions, import_git, write_history};
use data::{ReadOptions, read_history};
use std::path::Path;
use std::process::Command;

struct Repository {
    folder: tempfile::TempDir,
    time: i64,
}

impl Repository {
    /// Nothing when this machine has no git.
    fn new() -> Option<Repository> {
        let repository = Repository { folder: tempfile::tempdir().unwrap(), time: 1_700_000_000 };
        let made = Command::new("git").args(["init", "-q", "-b", "main"]).current_dir(repository.path()).status();
        if made.is_err() {
            eprintln!("skipped: there is no git on this machine");
            return None;
        }
        Some(repository)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn git(&self, arguments: &[&str], author: &str) {
        let (name, email) = (author, format!("{}@example.com", author.replace(' ', ".").to_lowercase()));
        let date = format!("{} +0200", self.time);
        let mut git = Command::new("git");
        git.args(arguments)
            .current_dir(self.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1");
        for role in ["AUTHOR", "COMMITTER"] {
            git.env(format!("GIT_{role}_NAME"), name).env(format!("GIT_{role}_EMAIL"), &email);
            git.env(format!("GIT_{role}_DATE"), &date);
        }
        let output = git.output().unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn commit(&mut self, author: &str, subject: &str, files: &[(&str, &[u8])]) {
        for (name, content) in files {
            std::fs::create_dir_all(self.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(self.path().join(name), content).unwrap();
        }
        self.time += 60;
        self.git(&["add", "-A"], author);
        self.git(
            &[
                "commit",
                "-q",
                "--allow-empty",
                "--allow-empty-message",
                "--no-verify",
                "--cleanup=verbatim",
                "-m",
                subject,
            ],
            author,
        );
    }
}

fn options(repository: &Repository, author: &str, limit: usize) -> GitImportOptions {
    GitImportOptions { repository: repository.path().to_path_buf(), author: author.to_string(), limit, user: None }
}

#[test]
fn an_authors_commits_become_a_history() {
    let Some(mut repository) = Repository::new() else { return };
    repository.commit(
        "Ann Example",
        "Add the reader (#12)",
        &[("src/reader.rs", b"fn read_header() -> Header {\n    parse()\n}\n")],
    );
    repository.commit("Bob Other", "not hers", &[("bob.txt", b"hello\n")]);
    repository.commit(
        "Ann Example",
        "  reader: old encoding ",
        &[("notes/caf\u{e9} \"x\".txt", b"caf\xe9 latin\n"), ("logo.bin", &[0, 1, 2, 0, 255])],
    );
    repository.commit("Ann Example", "", &[("empty.txt", b"subject missing\n")]);
    repository.commit("Ann Example", "changes nothing", &[]);
    repository.git(&["checkout", "-q", "-b", "side"], "Ann Example");
    repository.commit("Ann Example", "reader: on the side", &[("side.rs", b"struct SideThing;\n")]);
    repository.git(&["checkout", "-q", "main"], "Ann Example");
    repository.git(&["merge", "-q", "--no-ff", "-m", "Merge side", "side"], "Ann Example");

    let import = import_git(&options(&repository, "ann.EXAMPLE@", 500)).unwrap();
    let subjects: Vec<&str> = import.records.iter().map(|record| record["subject"].as_str().unwrap()).collect();
    assert_eq!(subjects, ["Add the reader", "reader: old encoding", "reader: on the side"]);
    assert_eq!((import.commits_count, import.merges_count, import.older_count), (5, 1, 0));
    assert_eq!((import.without_subject_count, import.without_change_count), (1, 1));
    assert_eq!(import.authors, [("Ann Example".to_string(), 3)]);
    let first = &import.records[0];
    assert_eq!(first["files"], serde_json::json!(["src/reader.rs"]));
    assert_eq!((&first["lines_added"], &first["lines_removed"]), (&3.into(), &0.into()));
    assert_eq!(first["words_added"], serde_json::json!(["read_header", "Header", "parse"]));
    assert_eq!(import.records[1]["files"], serde_json::json!(["logo.bin", "notes/café \"x\".txt"]));

    // The file it writes is a history that reads back the same.
    let path = repository.path().join("history.jsonl");
    write_history(&path, &import, false, false).unwrap();
    let history = read_history(&path, &ReadOptions::default()).unwrap();
    assert_eq!(history.records.iter().map(|record| record.answer()).collect::<Vec<_>>(), subjects);
    assert!(
        history.records.iter().all(|record| record.user == "Ann Example" && record.task().name() == "commit_subject")
    );

    let newest = import_git(&options(&repository, "Ann", 1)).unwrap();
    assert_eq!(newest.records.len(), 1);
    assert_eq!(newest.records[0]["subject"], "reader: on the side");
    assert_eq!(newest.older_count, 4);
}

#[test]
fn a_repository_cannot_make_the_importer_run_anything() {
    let Some(mut repository) = Repository::new() else { return };
    repository.commit("Ann", "one", &[("a.txt", b"one\n"), (".gitattributes", b"*.txt diff=evil\n")]);
    let trap = repository.path().join("trap");
    let command = format!("touch {}", trap.display());
    for key in
        ["diff.external", "diff.evil.textconv", "diff.evil.command", "core.fsmonitor", "core.pager", "gpg.program"]
    {
        repository.git(&["config", key, &command], "Ann");
    }
    repository.git(&["config", "log.showSignature", "true"], "Ann");
    repository.git(&["config", "diff.noprefix", "true"], "Ann");
    let import = import_git(&options(&repository, "Ann", 10)).unwrap();
    assert_eq!(import.records[0]["files"], serde_json::json!([".gitattributes", "a.txt"]));
    assert!(!trap.exists(), "a command of the repository's configuration was run");
}

#[test]
fn what_cannot_be_imported_is_said() {
    let Some(mut repository) = Repository::new() else { return };
    let result = import_git(&options(&repository, "Ann", 10));
    assert!(matches!(result, Err(GitError::NoCommit { .. })), "{result:?}");
    repository.commit("Ann", "one", &[("a.txt", b"one\n")]);
    repository.commit("Bob Builder", "two", &[("b.txt", b"two\n")]);
    repository.commit("Bob Builder", "three", &[("b.txt", b"three\n")]);
    for author in ["Carol", "--output=/tmp/x", ".*", "$(touch x)"] {
        let error = import_git(&options(&repository, author, 10)).unwrap_err();
        assert!(matches!(error, GitError::UnknownAuthor { .. }), "{author}: {error}");
        assert!(error.to_string().contains("Bob Builder (2), Ann (1)"), "{error}");
    }
    for author in ["", "  ", "a\nb"] {
        assert!(matches!(import_git(&options(&repository, author, 10)), Err(GitError::Author(_))));
    }
    for user in ["", " ", "a\nb"] {
        let result = import_git(&GitImportOptions { user: Some(user.into()), ..options(&repository, "Ann", 10) });
        assert!(matches!(result, Err(GitError::User(_))), "{result:?}");
    }
    let outside = tempfile::tempdir().unwrap();
    let mut wrong = options(&repository, "Ann", 10);
    wrong.repository = outside.path().to_path_buf();
    assert!(matches!(import_git(&wrong), Err(GitError::NotARepository { .. })));
    wrong.repository = outside.path().join("missing");
    assert!(import_git(&wrong).unwrap_err().to_string().contains("does not exist"));
}

#[test]
fn an_author_text_that_means_several_people_is_refused() {
    let Some(mut repository) = Repository::new() else { return };
    repository.commit("Ann", "one", &[("a.txt", b"one\n")]);
    repository.commit("Joann", "two", &[("b.txt", b"two\n")]);
    repository.commit("Joann", "three", &[("b.txt", b"three\n")]);
    let error = import_git(&options(&repository, "ann", 10)).unwrap_err();
    assert!(matches!(error, GitError::SeveralPeople { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("Joann <joann@example.com> (2), Ann <ann@example.com> (1)"), "{message}");
    assert!(message.contains("more of the name, or an e-mail address"), "{message}");
    // A whole address means one person, even though it is the end of another's.
    let import = import_git(&options(&repository, "ann@example.com", 10)).unwrap();
    assert_eq!((import.records.len(), import.commits_count, import.older_count), (1, 1, 0));
    assert_eq!(import.authors, [("Ann".to_string(), 1)]);
    // Merged on purpose.
    let both = GitImportOptions { user: Some("us".into()), ..options(&repository, "ann", 10) };
    let import = import_git(&both).unwrap();
    assert_eq!(import.records.len(), 3);
    assert!(import.records.iter().all(|record| record["user"] == "us"));
    // One name with two addresses, and one address with two names, are one person.
    for (author, subject) in [("Ann <other@example.com>", "four"), ("Zoe Ann <other@example.com>", "five")] {
        std::fs::write(repository.path().join("c.txt"), subject).unwrap();
        repository.git(&["add", "-A"], "Bob");
        repository.git(&["commit", "-q", "-m", subject, "--author", author], "Bob");
    }
    let import = import_git(&options(&repository, "other@example.com", 10)).unwrap();
    assert_eq!(import.authors.len(), 2);
    let import = import_git(&options(&repository, "Ann <", 10));
    assert!(matches!(import, Err(GitError::SeveralPeople { .. })), "Joann is still another: {import:?}");
}

#[test]
fn the_boundary_of_a_shallow_clone_is_left_out() {
    let Some(mut repository) = Repository::new() else { return };
    for subject in ["one", "two", "three"] {
        repository.commit("Ann", subject, &[(&format!("{subject}.txt"), b"x\n")]);
    }
    for (depth, subjects) in [("2", vec!["three"]), ("1", vec![])] {
        let folder = tempfile::tempdir().unwrap();
        let clone = folder.path().join("clone");
        let source = format!("file://{}", repository.path().display());
        repository.git(&["clone", "-q", "--depth", depth, &source, clone.to_str().unwrap()], "Ann");
        let result = import_git(&GitImportOptions { repository: clone, ..options(&repository, "Ann", 10) });
        if subjects.is_empty() {
            let error = result.unwrap_err();
            assert!(matches!(error, GitError::NothingToLearn { shallow_boundary_count: 1, .. }), "{error}");
            assert!(error.to_string().contains("shallow clone"), "{error}");
            continue;
        }
        let import = result.unwrap();
        assert_eq!(import.shallow_boundary_count, 1);
        assert_eq!(import.older_count, 0);
        assert_eq!(
            import.records.iter().map(|record| record["subject"].as_str().unwrap()).collect::<Vec<_>>(),
            subjects
        );
    }
}

#[test]
fn a_corrupt_repository_is_said_in_gits_words() {
    let Some(mut repository) = Repository::new() else { return };
    repository.commit("Ann", "one", &[("a.txt", b"one\n")]);
    std::fs::write(repository.path().join(".git/refs/heads/main"), format!("{}\n", "1".repeat(40))).unwrap();
    let error = import_git(&options(&repository, "Ann", 10)).unwrap_err();
    assert!(matches!(&error, GitError::Failed { reason, .. } if reason.contains("bad object")), "{error}");
}

#[cfg(unix)]
#[test]
fn a_repository_of_another_owner_is_said_with_gits_hint() {
    let Some(mut repository) = Repository::new() else { return };
    repository.commit("Ann", "one", &[("a.txt", b"one\n")]);
    let give_away = |path: &Path| std::os::unix::fs::chown(path, Some(65534), None);
    if give_away(&repository.path().join(".git")).and(give_away(repository.path())).is_err() {
        eprintln!("skipped: only the system's administrator can give a folder away");
        return;
    }
    match import_git(&options(&repository, "Ann", 10)) {
        Ok(_) => eprintln!("skipped: git is told to trust every folder"),
        Err(error) => {
            assert!(matches!(error, GitError::OtherOwner { .. }), "{error}");
            let message = error.to_string();
            assert!(message.contains("dubious ownership") && message.contains("--add safe.directory"), "{message}");
        }
    }
}
