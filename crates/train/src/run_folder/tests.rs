use super::*;

#[test]
fn a_new_run_takes_a_new_or_empty_folder_only() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("a/b");
    RunFolder::create(&path, serde_json::json!({"model": "m.gguf"})).unwrap();
    assert_eq!(RunFolder::open(&path).unwrap().inputs()["model"], "m.gguf");
    std::fs::write(path.join("config.json"), "").unwrap();
    assert!(matches!(RunFolder::create(&path, Value::Null), Err(RunFolderError::Exists { .. })));

    let foreign = parent.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    RunFolder::create(&foreign, Value::Null).unwrap();
    std::fs::remove_file(foreign.join("run.json")).unwrap();
    std::fs::write(foreign.join("thesis.txt"), "years of work").unwrap();
    assert!(matches!(RunFolder::create(&foreign, Value::Null), Err(RunFolderError::Foreign { .. })));
    assert!(matches!(RunFolder::open(&foreign), Err(RunFolderError::NotARun { .. })));
    assert_eq!(std::fs::read_to_string(foreign.join("thesis.txt")).unwrap(), "years of work");
    let file = parent.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(RunFolder::create(&file, Value::Null), Err(RunFolderError::File(_))));
}

#[test]
fn a_run_that_never_began_makes_way_for_a_new_one() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    drop(RunFolder::create(&path, "old".into()).unwrap());
    // As kills leave it: torn temporary files, and a lock that nobody holds.
    std::fs::write(path.join("run.new"), "{\"format").unwrap();
    std::fs::write(path.join("config.new"), "{").unwrap();
    drop(RunFolder::create(&path, "new".into()).unwrap());
    assert_eq!(RunFolder::open(&path).unwrap().inputs(), "new");
    std::fs::remove_file(path.join("run.json")).unwrap();
    drop(RunFolder::create(&path, "without run.json".into()).unwrap());

    // Whatever training left is never taken over.
    for name in ["config.json", "state", "adapter", "summary.json", "metrics.jsonl", "report.html"] {
        let made = path.join(name);
        if name.contains('.') { std::fs::write(&made, "") } else { std::fs::create_dir(&made) }.unwrap();
        let error = RunFolder::create(&path, "newer".into()).unwrap_err();
        assert!(matches!(error, RunFolderError::Exists { .. }), "{name}: {error}");
        if name.contains('.') { std::fs::remove_file(&made) } else { std::fs::remove_dir(&made) }.unwrap();
    }
    assert_eq!(RunFolder::open(&path).unwrap().inputs(), "without run.json");
    // Nor is what another program calls by the same names.
    std::fs::write(path.join("run.json"), "{\"format\": \"marathon\"}").unwrap();
    assert!(matches!(RunFolder::create(&path, Value::Null), Err(RunFolderError::Broken { .. })));
    std::fs::remove_file(path.join("run.json")).unwrap();
    std::fs::write(path.join("lock"), "combination 12-34").unwrap();
    assert!(matches!(RunFolder::create(&path, Value::Null), Err(RunFolderError::Foreign { .. })));
    assert_eq!(std::fs::read_to_string(path.join("lock")).unwrap(), "combination 12-34");
}

#[test]
fn of_many_that_create_the_same_run_one_wins() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("runs/run");
    let attempt = |number: usize| RunFolder::create(&path, number.into());
    let attempts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|number| scope.spawn(move || attempt(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (won, lost): (Vec<_>, Vec<_>) = attempts.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1);
    for error in lost.into_iter().map(Result::unwrap_err) {
        assert!(matches!(error, RunFolderError::InUse { .. }), "{error}");
        assert!(error.to_string().contains("is in use by another training process"), "{error}");
    }
    let winner = won.into_iter().next().unwrap().unwrap();
    assert_eq!(RunFolder::open(&path).unwrap().inputs(), winner.inputs(), "nothing is mixed");
    // From creation to the end of training, also once it has begun.
    std::fs::write(path.join("config.json"), "").unwrap();
    assert!(matches!(RunFolder::create(&path, Value::Null), Err(RunFolderError::InUse { .. })));
    let lock = winner.lock().unwrap();
    assert!(matches!(RunFolder::create(&path, Value::Null), Err(RunFolderError::InUse { .. })));
    drop(lock);
    assert!(matches!(RunFolder::create(&path, Value::Null), Err(RunFolderError::Exists { .. })));
}

#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_cannot_be_made_is_an_error_of_a_file_and_promises_nothing() {
    let error = RunFolder::create(Path::new("/proc/run"), Value::Null).unwrap_err();
    assert!(matches!(&error, RunFolderError::File(error) if error.path == Path::new("/proc/run")), "{error}");
    assert!(error.to_string().contains("could not create /proc/run"), "{error}");
    let path = Path::new("run");
    for kind in [std::io::ErrorKind::ReadOnlyFilesystem, std::io::ErrorKind::StorageFull] {
        let error = || FileError::new("create", path)(kind.into());
        assert!(error().to_string().contains("what was saved before is intact"));
        let message = error().of_new_run().to_string();
        assert!(!message.contains("intact") && message.contains("choose a folder"), "{message}");
    }
}

#[cfg(unix)]
#[test]
fn folders_and_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    let run = RunFolder::create(&path, Value::Null).unwrap();
    let _lock = run.lock().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    assert_eq!(mode(&path.join("run.json")), 0o600);
    assert_eq!(mode(&path.join("lock")), 0o600);
    // An existing folder, open to others, is closed first.
    let open = parent.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
    RunFolder::create(&open, Value::Null).unwrap();
    assert_eq!((mode(&open), mode(&open.join("run.json"))), (0o700, 0o600));
    // One that holds something else stays as it is.
    let foreign = parent.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.txt"), "").unwrap();
    std::fs::set_permissions(&foreign, std::fs::Permissions::from_mode(0o755)).unwrap();
    RunFolder::create(&foreign, Value::Null).unwrap_err();
    assert_eq!(mode(&foreign), 0o755);
}

#[test]
fn one_process_at_a_time_and_a_dead_one_does_not_count() {
    let parent = tempfile::tempdir().unwrap();
    let run = RunFolder::create(&parent.path().join("run"), Value::Null).unwrap();
    let lock = run.lock().unwrap();
    assert_eq!(run.summary().unwrap().status, RunStatus::Running);
    let error = RunFolder::open(run.path()).unwrap().lock().unwrap_err();
    assert!(matches!(error, RunFolderError::InUse { process, .. } if process == Some(std::process::id())));
    drop(lock);
    assert_eq!(run.summary().unwrap().status, RunStatus::NotStarted);
    // The file is still there, as after a kill.
    assert!(run.path().join("lock").exists());
    drop(run.lock().unwrap());
}

#[test]
fn foreign_and_broken_manifests_are_named() {
    let parent = tempfile::tempdir().unwrap();
    let run = RunFolder::create(&parent.path().join("run"), Value::Null).unwrap();
    let manifest = run.path().join("run.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"version\": 1,", "\"version\": 2,")).unwrap();
    let error = RunFolder::open(run.path()).unwrap_err().to_string();
    assert!(error.contains("run.json") && error.contains("version 2"), "{error}");
    std::fs::write(&manifest, "{\"format\": ").unwrap();
    assert!(matches!(RunFolder::open(run.path()), Err(RunFolderError::Broken { .. })));
}
