//! The admin listener of a running relay, as its commands see it.

use std::{io, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request,
    body::Bytes,
    client::conn::http1,
    header::{CONTENT_LENGTH, HOST},
};
use hyper_util::rt::TokioIo;
use relay::plan::Address;
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::timeout,
};

/// How long an answer may take; a reload may have to resolve names.
const PATIENCE: Duration = Duration::from_secs(30);

/// The admin listener of a running relay.
#[derive(Clone, Debug)]
pub(crate) struct Desk(pub(crate) Address);

impl Desk {
    /// Reads the JSON at `path`.
    pub(crate) async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let text = self.tell(Method::GET, path, "").await?;
        serde_json::from_str(&text).with_context(|| {
            format!(
                "--admin {}: {path} is not what relay says; is it another program or version?",
                self.0
            )
        })
    }

    /// Sends a request and gives the answer, which must be a good one.
    pub(crate) async fn tell(&self, method: Method, path: &str, body: &str) -> Result<String> {
        match timeout(PATIENCE, self.exchange(method, path, body)).await {
            Ok(answer) => answer,
            Err(_) => bail!(
                "--admin {}: no answer within {PATIENCE:?}; is it relay that listens there?",
                self.0
            ),
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: &str) -> Result<String> {
        let Self(address) = self;
        let unreachable = |error: io::Error| {
            let advice = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    "it is for root and the user that relay was started as".to_owned()
                }
                _ => format!("is relay running with --admin {address}?"),
            };
            anyhow!("--admin {address}: cannot connect: {error}; {advice}")
        };
        match address {
            Address::Unix(at) => {
                let stream = UnixStream::connect(at).await.map_err(unreachable)?;
                self.converse(stream, method, path, body).await
            }
            Address::Ip(at) => {
                let stream = TcpStream::connect(at).await.map_err(unreachable)?;
                self.converse(stream, method, path, body).await
            }
            Address::Original => {
                bail!("--admin original: give the address of the admin listener")
            }
            Address::Name(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await;
                self.converse(stream.map_err(unreachable)?, method, path, body)
                    .await
            }
        }
    }

    async fn converse(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        method: Method,
        path: &str,
        body: &str,
    ) -> Result<String> {
        let strange = || {
            format!(
                "--admin {}: what listens there does not speak HTTP as relay does",
                self.0
            )
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .with_context(strange)?;
        // The answer tells of its faults.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "relay")
            .header(CONTENT_LENGTH, body.len())
            .body(Full::new(Bytes::from(body.to_owned())))?;
        let answer = sender.send_request(request).await.with_context(strange)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.with_context(strange)?;
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        match status.is_success() {
            true => Ok(text),
            false => bail!("--admin {}: {}", self.0, text.trim()),
        }
    }
}
