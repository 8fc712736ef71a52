//! What comes before the bytes of a route, out of its settings.

use std::{fs, path::Path, time::Duration};

use relay::plan::{AcceptProxy, Ask, Credentials, Greet, Reach};

use super::{Settings, listen::Listens};

impl Settings {
    /// What these settings, complete, say of greetings.
    pub(super) fn greet(&mut self) -> Result<Greet, String> {
        Ok(Greet {
            accept: self.accept()?,
            ask: self.ask()?,
            send: self.send_proxy.map(Into::into),
        })
    }

    fn accept(&mut self) -> Result<Option<AcceptProxy>, String> {
        if !self.accept_proxy.unwrap_or(false) {
            return Ok(None);
        }
        let from = self.proxy_from.take().unwrap_or_default().into_iter();
        let from = Vec::from_iter(from.map(|network| network.0));
        if from.is_empty() && !self.listen.as_ref().is_some_and(Listens::are_unix) {
            return Err(
                "accept-proxy needs proxy-from: the networks of the proxies in front".into(),
            );
        }
        let limit = self
            .proxy_timeout
            .map_or(Duration::from_secs(3), |limit| limit.0);
        Ok(Some(AcceptProxy { from, limit }))
    }

    fn ask(&mut self) -> Result<Option<Ask>, String> {
        let Some(protocol) = self.mode.and_then(|mode| mode.protocol()) else {
            return Ok(None);
        };
        let credentials = match (self.auth_user.take(), self.auth_password_file.take()) {
            (None, None) => None,
            (Some(user), Some(file)) => Some(credentials(user, &file)?),
            (Some(_), None) => return Err("auth-user needs auth-password-file".into()),
            (None, Some(_)) => return Err("auth-password-file needs auth-user".into()),
        };
        Ok(Some(Ask {
            protocol,
            limit: self
                .handshake_timeout
                .map_or(Duration::from_secs(10), |limit| limit.0),
            credentials,
            reach: Reach {
                allow: self.allow_to.take().unwrap_or_default(),
                deny: self.deny_to.take().unwrap_or_default(),
            },
        }))
    }
}

/// The longest name and password that SOCKS5 can say, bytes.
const LONGEST: usize = 255;

fn credentials(user: String, file: &Path) -> Result<Credentials, String> {
    let fault = |what: String| format!("auth-password-file {}: {what}", file.display());
    let text = fs::read_to_string(file).map_err(|error| fault(error.to_string()))?;
    let password = text.lines().next().unwrap_or_default().to_owned();
    if password.is_empty() || password.len() > LONGEST {
        return Err(fault(
            "its first line is no password of 1 to 255 bytes".into(),
        ));
    }
    if user.is_empty() || user.len() > LONGEST || user.contains(':') {
        return Err("auth-user must be 1 to 255 bytes without a colon".into());
    }
    Ok(Credentials { user, password })
}
