//! The admin listener of a relay under test, asked over a Unix socket.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    patience,
    peer::{Address, Listener, Peer},
    relay::{Finished, Launch},
};

/// Where one listens, in a folder of its own.
#[derive(Debug)]
pub struct Desk {
    _folder: tempfile::TempDir,
    /// The listener.
    pub address: Address,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub code: u16,
    /// What came with it.
    pub body: String,
}

impl Desk {
    /// A place for one.
    ///
    /// # Errors
    ///
    /// Fails without a temporary folder.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let address = Address::Unix(folder.path().join("admin"));
        Ok(Self {
            _folder: folder,
            address,
        })
    }

    /// A forwarder from any port to `to` that listens here, not started yet.
    ///
    /// # Errors
    ///
    /// Fails when an address cannot be written.
    pub fn launch(&self, to: &Listener) -> Result<Launch> {
        let launch = Launch::forward(&Address::parse("127.0.0.1:0")?, to.address());
        Ok(launch.with(["--admin", &self.address.to_string()]))
    }

    /// Asks with `method` for `path`.
    ///
    /// # Errors
    ///
    /// Fails when nobody listens, and when the answer is no HTTP.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Result<Answer> {
        let peer = Peer::connect(&self.address)?;
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: relay\r\nContent-Length: {length}\r\n");
        peer.send(format!("{head}\r\n{body}").as_bytes())?;
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match peer.read(&mut buffer)? {
                0 => break,
                count => bytes.extend_from_slice(&buffer[..count]),
            }
        }
        let text = String::from_utf8(bytes)?;
        let (head, body) = text.split_once("\r\n\r\n").context("no end of a header")?;
        let code = head.split(' ').nth(1).context("no status")?.parse()?;
        let body = body.to_owned();
        Ok(Answer { code, body })
    }

    /// Reads what is at `path`.
    ///
    /// # Errors
    ///
    /// Fails when that is not answered with 200.
    pub fn get(&self, path: &str) -> Result<String> {
        let answer = self.ask("GET", path, "")?;
        ensure!(answer.code == 200, "{path}: {answer:?}");
        Ok(answer.body)
    }

    /// Reads the JSON at `path`.
    ///
    /// # Errors
    ///
    /// Fails when it is none.
    pub fn json(&self, path: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.get(path)?)?)
    }

    /// Runs one of relay's commands against it.
    ///
    /// # Errors
    ///
    /// Fails when it does not end.
    pub fn command(&self, words: &[&str]) -> Result<Finished> {
        let words = words.iter().map(ToString::to_string);
        Launch::new(words.chain(["--admin".into(), self.address.to_string()])).run()
    }

    /// Waits until `/readyz` is answered with `code`.
    ///
    /// # Errors
    ///
    /// Fails when it never is.
    pub fn is_ready(&self, code: u16) -> Result<()> {
        let mut last = None;
        patience::until_true("the readiness", || {
            let answer = self.ask("GET", "/readyz", "")?;
            let right = answer.code == code;
            last = Some(answer);
            Ok(right)
        })
        .with_context(|| format!("{last:?}"))
    }
}

/// The only connection of relay's list.
///
/// # Errors
///
/// Fails when there is none or another one.
pub fn only(connections: &Value) -> Result<&Value> {
    match connections.as_array().map(Vec::as_slice) {
        Some([one]) => Ok(one),
        _ => bail!("not one connection: {connections}"),
    }
}
