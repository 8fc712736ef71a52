//! PostgreSQL, with a fresh cluster that trusts the test's namespaces.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::chown,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::Result;
use rustix::process::Signal;

use super::{Service, account, by_setpriv, open_folder, program, run};
use crate::{netns::Place, patience};

/// It takes queries until it is dropped.
#[derive(Debug)]
pub struct Postgres {
    _service: Service,
    folder: tempfile::TempDir,
}

impl Postgres {
    /// Starts it at `address` in `place`.
    ///
    /// # Errors
    ///
    /// Fails when it does not start.
    pub fn start(place: &Place, address: SocketAddr) -> Result<Self> {
        let folder = open_folder()?;
        let (user, group) = account("postgres")?;
        let data = folder.path().join("data");
        fs::create_dir(&data)?;
        chown(&data, Some(user), Some(group))?;
        let (user, group) = (format!("--reuid={user}"), format!("--regid={group}"));
        let options = [user.as_str(), group.as_str(), "--clear-groups"];

        let mut initdb = by_setpriv(&options, "initdb")?;
        initdb.args(["-U", "postgres", "-A", "trust", "-N", "-D"]);
        run(&Place::Here, initdb.arg(&data))?;
        fs::write(
            data.join("pg_hba.conf"),
            "host all all 10.99.0.0/16 trust\n",
        )?;
        let settings = [
            format!("listen_addresses={}", address.ip()),
            format!("port={}", address.port()),
            "unix_socket_directories=".into(),
            "fsync=off".into(),
            "full_page_writes=off".into(),
            "max_wal_size=4GB".into(),
            "shared_buffers=32MB".into(),
            // Else a scan may begin in the middle of a table.
            "synchronize_seqscans=off".into(),
        ];
        let service = Service::start_as(
            place,
            "postgres",
            &options,
            |postgres| {
                postgres.arg("-D").arg(&data);
                for setting in settings {
                    postgres.arg("-c").arg(setting);
                }
                Ok(())
            },
            address,
            Signal::INT,
        )?;
        // The server listens before it takes queries.
        patience::until_true("PostgreSQL to answer", || {
            let mut psql = Self::client("psql", address)?;
            psql.args(["-c", "select 1", "postgres"]);
            psql.stdout(Stdio::null()).stderr(Stdio::null());
            place.enter(|| Ok(psql.status()?.success()))
        })?;
        Ok(Self {
            _service: service,
            folder,
        })
    }

    /// One of its clients, to connect to `address`.
    ///
    /// # Errors
    ///
    /// Fails when it is not installed.
    pub fn client(name: &str, address: SocketAddr) -> Result<Command> {
        let mut command = program(name)?;
        command.arg("-h").arg(address.ip().to_string());
        command.arg("-p").arg(address.port().to_string());
        command.args(["-U", "postgres"]);
        command.env("PGCONNECT_TIMEOUT", "90").stdin(Stdio::null());
        Ok(command)
    }

    /// A folder for the test's files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
