//! `pull` by hub name, against a small server on this machine that speaks as the hub does and fails as networks do.

use crate::tiny::Place;
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The file whose first download breaks off in the middle.
const BREAKS: &str = "model-00002-of-00003.safetensors";

struct Hub {
    folder: PathBuf,
    /// Where each download of [`BREAKS`] began.
    starts: Mutex<Vec<usize>>,
    /// Whether [`BREAKS`] arrives with a byte changed.
    lies: AtomicBool,
    requests: AtomicUsize,
}

impl Hub {
    /// Serves the files of `folder` as the repository `tiny/model`. Returns the address.
    fn serve(folder: PathBuf) -> (Arc<Hub>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let hub = Arc::new(Hub {
            folder,
            starts: Mutex::default(),
            lies: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
        });
        let serving = Arc::clone(&hub);
        // Ends with the test process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let hub = Arc::clone(&serving);
                std::thread::spawn(move || hub.answer(stream));
            }
        });
        (hub, address)
    }

    /// One request a connection. A client that has gone is no concern of the server's.
    fn answer(&self, mut stream: TcpStream) -> Option<()> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        let request = lines.next()?.ok()?;
        let path = request.split(' ').nth(1)?.to_owned();
        let mut range = None;
        for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
                range = value.split_once('-').map(|(from, to)| (from.parse().unwrap_or(0), to.parse::<usize>().ok()));
            }
        }
        if path.starts_with("/api/models/tiny/model") {
            let names = std::fs::read_dir(&self.folder).ok()?.flatten();
            let siblings: Vec<_> = names
                .map(|entry| serde_json::json!({"rfilename": entry.file_name().to_string_lossy()}))
                .chain([serde_json::json!({"rfilename": "README.md"})])
                .collect();
            let body = serde_json::json!({"sha": "c0ffee", "siblings": siblings}).to_string();
            return send(&mut stream, "200 OK", "", body.as_bytes(), body.len());
        }
        let name = path.strip_prefix("/tiny/model/resolve/main/")?.to_owned();
        let Ok(mut bytes) = std::fs::read(self.folder.join(&name)) else {
            return send(&mut stream, "404 Not Found", "", b"", 0);
        };
        let etag: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let total = bytes.len();
        let (from, to) = range.map_or((0, total), |(from, to): (usize, _)| (from, to.map_or(total, |to| to + 1)));
        let mut sent = to - from;
        if name == BREAKS && to == total {
            let mut starts = self.starts.lock().expect("starts");
            starts.push(from);
            if starts.len() == 1 {
                sent /= 2;
            }
            bytes[total - 1] ^= u8::from(self.lies.load(Ordering::SeqCst));
        }
        let headers = format!(
            "etag: \"{etag}\"\r\nx-repo-commit: c0ffee\r\ncontent-range: bytes {from}-{}/{total}\r\n",
            to.max(1) - 1
        );
        send(&mut stream, "206 Partial Content", &headers, &bytes[from..from + sent], to - from)
    }
}

fn send(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8], promised: usize) -> Option<()> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {promised}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).ok()
}

#[test]
fn a_repository_of_the_hub_is_pulled_over_a_bad_line() {
    let place = Place::new();
    let (hub, address) = Hub::serve(place.path("model"));
    let pull =
        || place.command(&["pull", "tiny/model", "--json"]).env("HF_ENDPOINT", &address).output().expect("it starts");
    let output = pull();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("README"), "only what a model needs");
    let starts = hub.starts.lock().expect("starts").clone();
    assert!(starts.len() == 2 && starts[1] > 0, "the second download goes on where the first broke off: {starts:?}");

    let requests = hub.requests.load(Ordering::SeqCst);
    assert_eq!(place.json(&["inspect", "tiny/model"])["config"]["num_hidden_layers"], 2);
    assert_eq!(hub.requests.load(Ordering::SeqCst), requests, "a pulled model needs no network");

    std::fs::remove_dir_all(place.path("home")).expect("forgotten");
    hub.lies.store(true, Ordering::SeqCst);
    let output = pull();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("SHA-256") && errors.contains(BREAKS), "{errors}");
    place.refuses(&["generate", "--model", "tiny/model", "hello"], 3, &["selftune pull"]);

    hub.lies.store(false, Ordering::SeqCst);
    let output = pull();
    assert!(output.status.success(), "a later pull mends it: {}", String::from_utf8_lossy(&output.stderr));
}
