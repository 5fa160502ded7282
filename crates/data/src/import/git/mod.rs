//! Imports one author's commits from a git repository: what each changed, in short, and its subject line.
//!
//! Only the program `git` is run, only to read, without a shell, and without anything that a repository's own
//! configuration could make it run (external diffs, text conversion, signature checks, file system monitors). It never
//! goes to the network. The log is read as a stream: memory does not grow with the repository.

mod digest;
mod people;

use super::lines::read_limited_line;
use digest::CommitDigest;
use people::People;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// This importer in the list.
pub const IMPORTER: super::Importer = super::Importer {
    name: "git",
    about: "one author's commits: a digest of each change and its subject line",
    how_to: "Give a folder inside the repository, and part of your name or e-mail address.",
    needs: super::Needs { me: false, columns: false },
    read: None,
};

/// What to import.
#[derive(Debug, Clone)]
pub struct GitImportOptions {
    /// A folder inside the repository.
    pub repository: PathBuf,
    /// Part of the author's name or e-mail address, in any case.
    pub author: String,
    /// The most commits to take; the newest are taken.
    pub limit: usize,
    /// The user to write into the records; the author's name when not given. When it is given, an author text that
    /// matches several people takes the commits of all of them.
    pub user: Option<String>,
}

/// What was imported and what was not.
#[derive(Debug, Clone, Default)]
pub struct GitImport {
    /// Records of the task `commit_subject`, oldest first.
    pub records: Vec<Map<String, Value>>,
    /// The authors that the name matched among the records, with their number of records, commonest first. More than
    /// one may mean that the name was too short.
    pub authors: Vec<(String, usize)>,
    /// All of the author's commits that the branch holds, merges not counted.
    pub commits_count: usize,
    /// Merges by the author: their subjects are written by git.
    pub merges_count: usize,
    /// Commits older than the newest `limit`.
    pub older_count: usize,
    /// Commits without a subject.
    pub without_subject_count: usize,
    /// Commits that change nothing.
    pub without_change_count: usize,
    /// Commits at the boundary of a shallow clone: their parents are missing, so each looks like the whole tree.
    pub shallow_boundary_count: usize,
}

/// Why a repository cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The program `git` cannot be run.
    #[error("cannot run git: {0}; install git and put it in PATH")]
    NoGit(std::io::Error),
    /// The folder is not inside a repository.
    #[error("not a git repository: {reason}")]
    NotARepository {
        /// The folder.
        path: PathBuf,
        /// What git said.
        reason: String,
    },
    /// The repository has no commit yet.
    #[error("the repository has no commit")]
    NoCommit {
        /// The folder.
        path: PathBuf,
    },
    /// Nobody of that name or e-mail.
    #[error("no commit by \"{author}\"; the commonest authors are: {commonest}")]
    UnknownAuthor {
        /// The folder.
        path: PathBuf,
        /// The name asked for.
        author: String,
        /// Names with their number of commits.
        commonest: String,
    },
    /// The author's commits hold nothing to learn from.
    #[error("none of the {commits_count} commits by \"{author}\" has both a subject and a change that can be seen{}", shallow_note(*shallow_boundary_count))]
    NothingToLearn {
        /// The folder.
        path: PathBuf,
        /// The name asked for.
        author: String,
        /// How many there are.
        commits_count: usize,
        /// How many of them are at the boundary of a shallow clone.
        shallow_boundary_count: usize,
    },
    /// Several people match the author text.
    #[error(
        "\"{author}\" matches several people: {people}; give more of the name, or an e-mail address, or the one user \
         that all of their records are to have"
    )]
    SeveralPeople {
        /// The name asked for.
        author: String,
        /// The people, with e-mail addresses and numbers of commits.
        people: String,
    },
    /// git does not read a repository of another owner.
    #[error("the repository belongs to another user of this machine, and git does not read it: {hint}")]
    OtherOwner {
        /// The folder.
        path: PathBuf,
        /// All that git said, with the command that allows it.
        hint: String,
    },
    /// A user name that cannot be written into records.
    #[error("user \"{0}\" is empty or holds control characters; expected a name")]
    User(String),
    /// A name that cannot be searched for.
    #[error("author \"{0}\" is empty or holds control characters; expected part of a name or e-mail address")]
    Author(String),
    /// git stopped with an error.
    #[error("git {command} failed: {reason}")]
    Failed {
        /// The git command.
        command: &'static str,
        /// The end of what it wrote to standard error.
        reason: String,
    },
    /// What git wrote could not be read.
    #[error("reading from git {command}: {source}")]
    Read {
        /// The git command.
        command: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

fn shallow_note(boundary_count: usize) -> String {
    match boundary_count {
        0 => String::new(),
        count => {
            format!("; {count} at the boundary of this shallow clone: git fetch --unshallow brings what is missing")
        }
    }
}

/// Begins the line before each commit's patch. Lines of a patch begin with other characters.
const RECORD_MARK: u8 = 0x1e;
/// Divides the fields of that line.
const FIELD_MARK: char = '\u{1f}';

/// A line of a patch is read up to this length; the rest counts as nothing.
const LINE_BYTES_MAX: usize = 1 << 14;

/// Authors shown when none matches.
const AUTHORS_SHOWN: usize = 8;

/// Reads the author's newest commits.
pub fn import_git(options: &GitImportOptions) -> Result<GitImport, GitError> {
    let author = options.author.trim();
    if author.is_empty() || author.chars().any(char::is_control) {
        return Err(GitError::Author(author.chars().filter(|c| !c.is_control()).take(40).collect()));
    }
    if let Some(user) = &options.user
        && (user.trim().is_empty() || user.chars().any(char::is_control))
    {
        return Err(GitError::User(user.chars().filter(|c| !c.is_control()).take(40).collect()));
    }
    let repository = Repository::open(&options.repository)?;
    let by_author = format!("--author={author}");
    let count = |kind: &str| repository.number("rev-list", &["--count", kind, "-F", "-i", &by_author, "HEAD", "--"]);
    let mut import =
        GitImport { commits_count: count("--no-merges")?, merges_count: count("--merges")?, ..GitImport::default() };
    if import.commits_count == 0 {
        let commonest = repository.commonest_authors()?;
        return Err(GitError::UnknownAuthor {
            path: options.repository.clone(),
            author: author.to_string(),
            commonest,
        });
    }
    let mut people = repository.people(&by_author)?;
    if options.user.is_none() {
        people.choose(author);
        if people.are_several() {
            return Err(GitError::SeveralPeople { author: author.to_string(), people: people.listed() });
        }
        import.commits_count = people.commits_count();
    }
    let read_count = repository.read_log(&by_author, options.limit, &people, &mut import)?;
    import.older_count = import.commits_count.saturating_sub(read_count);
    if import.records.is_empty() && options.limit > 0 {
        let GitImport { commits_count, shallow_boundary_count, .. } = import;
        return Err(GitError::NothingToLearn {
            path: options.repository.clone(),
            author: author.to_string(),
            commits_count,
            shallow_boundary_count,
        });
    }
    finish_records(&mut import, options.user.as_deref());
    Ok(import)
}

/// Writes the records as a history, one a line; the file is whole or not there. Personal details are replaced if `mask`.
pub fn write_history(
    path: &Path,
    import: &GitImport,
    mask: bool,
    replace: bool,
) -> Result<super::Imported, super::ImportError> {
    let options = super::ImportOptions { mask, ..super::ImportOptions::default() };
    let mut sink = super::Sink::create(path, &options, replace)?;
    for record in &import.records {
        let commit = record.get("commit").and_then(Value::as_str).unwrap_or("commit");
        sink.take(commit, record.clone())?;
    }
    sink.finish()
}

/// Sorts by time and writes one name for the author into all records: names change over the years.
fn finish_records(import: &mut GitImport, user: Option<&str>) {
    let time = |record: &Map<String, Value>| record.get("time").and_then(Value::as_i64).unwrap_or(0);
    // The log is newest first; its order decides where times are equal.
    import.records.reverse();
    import.records.sort_by_key(time);
    import.authors.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let user = user.or(import.authors.first().map(|(name, _)| name.as_str())).unwrap_or("me").to_string();
    for record in &mut import.records {
        record.insert("user".to_string(), user.clone().into());
    }
}

/// A repository that has a commit.
struct Repository {
    folder: PathBuf,
    /// Name of its top folder.
    name: String,
    /// Commits of a shallow clone whose parents are missing.
    boundary: HashSet<String>,
}

impl Repository {
    fn open(folder: &Path) -> Result<Repository, GitError> {
        let not_one = |reason: String| GitError::NotARepository { path: folder.to_path_buf(), reason };
        if !folder.is_dir() {
            return Err(not_one("the folder does not exist".to_string()));
        }
        let mut repository = Repository { folder: folder.to_path_buf(), name: String::new(), boundary: HashSet::new() };
        let found = repository.run("rev-parse", &["--absolute-git-dir"])?;
        let git_folder = found.map_err(|complaint| match complaint.contains("dubious ownership") {
            true => GitError::OtherOwner { path: folder.to_path_buf(), hint: whole_complaint(&complaint) },
            false => not_one(last_complaint(&complaint)),
        })?;
        let git_folder = Path::new(git_folder.trim_end());
        let top = if git_folder.ends_with(".git") { git_folder.parent().unwrap_or(git_folder) } else { git_folder };
        repository.name = top.file_name().map_or("repository".into(), |name| name.to_string_lossy().into_owned());
        if let Err(complaint) = repository.run("log", &["-1", "--format=%H"])? {
            return Err(match complaint.contains("does not have any commits yet") {
                true => GitError::NoCommit { path: folder.to_path_buf() },
                false => GitError::Failed { command: "log", reason: last_complaint(&complaint) },
            });
        }
        repository.boundary = repository.shallow_boundary()?;
        Ok(repository)
    }

    fn command(&self, command: &'static str) -> Command {
        let mut git = Command::new("git");
        git.current_dir(&self.folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The folder decides which repository is read, not the surroundings; nothing asks, locks, fetches or pages.
        for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_EXTERNAL_DIFF"] {
            git.env_remove(variable);
        }
        git.envs([
            ("LC_ALL", "C"),
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_NO_LAZY_FETCH", "1"),
        ]);
        git.args([
            "--no-pager",
            "-c",
            "core.quotePath=false",
            "-c",
            "core.fsmonitor=false",
            "-c",
            "log.showSignature=false",
        ]);
        git.args([
            "-c",
            "log.showRoot=true",
            "-c",
            "color.ui=false",
            "-c",
            "diff.orderFile=",
            "-c",
            "log.follow=false",
        ]);
        git.arg(command);
        git
    }

    /// What a short command prints, or what it complained.
    fn run(&self, command: &'static str, arguments: &[&str]) -> Result<Result<String, String>, GitError> {
        let output = self.command(command).args(arguments).output().map_err(GitError::NoGit)?;
        Ok(if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        })
    }

    fn text(&self, command: &'static str, arguments: &[&str]) -> Result<String, GitError> {
        let failed = |complaint: String| GitError::Failed { command, reason: last_complaint(&complaint) };
        self.run(command, arguments)?.map_err(failed)
    }

    fn shallow_boundary(&self) -> Result<HashSet<String>, GitError> {
        if self.text("rev-parse", &["--is-shallow-repository"])?.trim() != "true" {
            return Ok(HashSet::new());
        }
        let path = self.text("rev-parse", &["--git-path", "shallow"])?;
        let read_error = |source| GitError::Read { command: "rev-parse", source };
        let commits = std::fs::read_to_string(self.folder.join(path.trim_end())).map_err(read_error)?;
        Ok(commits.lines().map(|line| line.trim().to_string()).collect())
    }

    /// Who wrote the commits, merges left out.
    fn people(&self, by_author: &str) -> Result<People, GitError> {
        let names = "--format=tformat:%an%x1f%ae%x1f%aN%x1f%aE";
        let listing = self.text(
            "log",
            &[
                "--no-merges",
                "-F",
                "-i",
                by_author,
                "--encoding=UTF-8",
                "--no-color",
                "--no-patch",
                names,
                "HEAD",
                "--",
            ],
        )?;
        Ok(People::new(&listing, FIELD_MARK))
    }

    fn number(&self, command: &'static str, arguments: &[&str]) -> Result<usize, GitError> {
        let text = self.text(command, arguments)?;
        let wrong =
            || GitError::Failed { command, reason: format!("expected a number, it printed \"{}\"", text.trim()) };
        text.trim().parse().map_err(|_| wrong())
    }

    fn commonest_authors(&self) -> Result<String, GitError> {
        let listing = self.text("shortlog", &["-s", "-n", "--no-merges", "HEAD", "--"])?;
        let shown: Vec<String> = listing
            .lines()
            .take(AUTHORS_SHOWN)
            .filter_map(|line| line.trim().split_once('\t'))
            .map(|(count, name)| format!("{name} ({count})"))
            .collect();
        Ok(if shown.is_empty() { "none".to_string() } else { shown.join(", ") })
    }

    /// Reads commits, newest first, until enough are taken; gives how many were looked at.
    fn read_log(
        &self,
        by_author: &str,
        limit: usize,
        people: &People,
        import: &mut GitImport,
    ) -> Result<usize, GitError> {
        let mut git = self.command("log");
        git.args([
            "--no-merges",
            "-F",
            "-i",
            by_author,
            "--encoding=UTF-8",
            "--no-notes",
            "--no-decorate",
            "--no-color",
        ]);
        git.args([
            "--patch",
            "--unified=3",
            "--find-renames",
            "--no-ext-diff",
            "--no-textconv",
            "--submodule=short",
            "-O/dev/null",
        ]);
        git.args([
            "--src-prefix=a/",
            "--dst-prefix=b/",
            "--format=tformat:%x1e%H%x1f%at%x1f%an%x1f%ae%x1f%s",
            "HEAD",
            "--",
        ]);
        let child = git.spawn().map_err(GitError::NoGit)?;
        let mut log = Log { child };
        let complaint = log.gather_complaint();
        let read_error = |source| GitError::Read { command: "log", source };
        let stdout = log.child.stdout.take().expect("the output is piped");
        let mut lines = BufReader::with_capacity(1 << 16, stdout);
        let next_line = |lines: &mut _, line: &mut _| Ok(read_limited_line(lines, line, LINE_BYTES_MAX)? > 0);
        let (mut line, mut read_count) = (Vec::new(), 0);
        let mut current: Option<CommitDigest> = None;
        while import.records.len() < limit && next_line(&mut lines, &mut line).map_err(read_error)? {
            if line.first() == Some(&RECORD_MARK) {
                self.take(current.take(), import);
                let header = String::from_utf8_lossy(&line[1..]);
                let digest = CommitDigest::new(&header, FIELD_MARK);
                if !people.include(&digest.author, &digest.email) {
                    continue;
                }
                read_count += 1;
                match header.split(FIELD_MARK).next().is_some_and(|commit| self.boundary.contains(commit)) {
                    true => import.shallow_boundary_count += 1,
                    false => current = Some(digest),
                }
            } else if let Some(digest) = &mut current {
                digest.add_line(&line);
            }
        }
        if import.records.len() >= limit {
            // The header of one commit more was read to know that the last one was whole.
            return Ok(read_count - usize::from(current.is_some() && read_count > limit));
        }
        self.take(current, import);
        let status = log.child.wait().map_err(read_error)?;
        let reason = complaint.join().unwrap_or_default();
        if !status.success() {
            return Err(GitError::Failed { command: "log", reason });
        }
        Ok(read_count)
    }

    fn take(&self, digest: Option<CommitDigest>, import: &mut GitImport) {
        let Some(digest) = digest else { return };
        if digest.subject.is_empty() {
            import.without_subject_count += 1;
        } else if digest.files.is_empty() {
            import.without_change_count += 1;
        } else {
            match import.authors.iter_mut().find(|(name, _)| *name == digest.author) {
                Some((_, count)) => *count += 1,
                None => import.authors.push((digest.author.clone(), 1)),
            }
            import.records.push(digest.into_record(&self.name));
        }
    }
}

/// A running git that is ended when it is no longer read.
struct Log {
    child: Child,
}

impl Log {
    /// Reads what git complains of beside its output, so that it never waits for a reader.
    fn gather_complaint(&mut self) -> std::thread::JoinHandle<String> {
        let stderr = self.child.stderr.take();
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            if let Some(mut stderr) = stderr {
                let _ = stderr.by_ref().take(1 << 16).read_to_end(&mut kept);
                let _ = std::io::copy(&mut stderr, &mut std::io::sink());
            }
            last_complaint(&String::from_utf8_lossy(&kept))
        })
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All of it in one line.
fn whole_complaint(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" ").trim_start_matches("fatal: ").chars().filter(|c| !c.is_control()).take(2000).collect()
}

fn last_complaint(text: &str) -> String {
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    line.trim_start_matches("fatal: ").chars().filter(|c| !c.is_control()).take(300).collect()
}
