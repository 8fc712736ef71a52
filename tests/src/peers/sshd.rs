//! OpenSSH, with keys and configuration of the test's own.

use std::{
    fs::{self, Permissions},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use rustix::process::Signal;

use super::{Service, open_folder, program, run};
use crate::netns::Place;

/// It lets root in with one key until it is dropped.
#[derive(Debug)]
pub struct Sshd {
    _service: Service,
    folder: tempfile::TempDir,
}

impl Sshd {
    /// Starts it at `address` in `place`.
    ///
    /// # Errors
    ///
    /// Fails when it does not start.
    pub fn start(place: &Place, address: SocketAddr) -> Result<Self> {
        let folder = open_folder()?;
        let path = |name: &str| folder.path().join(name);
        for key in ["host", "client"] {
            let mut keygen = program("ssh-keygen")?;
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            run(&Place::Here, keygen.arg(path(key)))?;
        }
        fs::copy(path("client.pub"), path("authorized"))?;
        let at = folder.path().display();
        let text = format!(
            "HostKey {at}/host\nAuthorizedKeysFile {at}/authorized\nPidFile none\nStrictModes no\nUsePAM no\n\
             PermitRootLogin prohibit-password\nPasswordAuthentication no\nUseDNS no\nMaxStartups 100\n\
             Subsystem sftp internal-sftp\nPrintMotd no\nPrintLastLog no\nAllowTcpForwarding yes\n"
        );
        fs::write(path("config"), text)?;
        // Where Debian's sshd locks its helper in; the package's service makes it.
        fs::create_dir_all("/run/sshd")?;
        fs::set_permissions("/run/sshd", Permissions::from_mode(0o755))?;
        let service = Service::start(
            place,
            "sshd",
            |sshd| {
                sshd.args(["-D", "-e", "-f"]).arg(path("config"));
                sshd.arg("-o").arg(format!("ListenAddress={address}"));
                Ok(())
            },
            address,
            Signal::TERM,
        )?;
        Ok(Self {
            _service: service,
            folder,
        })
    }

    /// `ssh` or `sftp`, without a host yet, for `port`.
    ///
    /// # Errors
    ///
    /// Fails when it is not installed.
    pub fn client(&self, name: &str, port: u16) -> Result<Command> {
        let mut command = program(name)?;
        command.args(["-F", "none", "-i"]).arg(self.path("client"));
        for option in [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "BatchMode=yes",
            "ConnectTimeout=90",
            "LogLevel=ERROR",
            "ExitOnForwardFailure=yes",
        ] {
            command.arg("-o").arg(option);
        }
        command.arg("-o").arg(format!("Port={port}"));
        Ok(command)
    }

    /// A file of the test's.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// A folder for the test's files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
