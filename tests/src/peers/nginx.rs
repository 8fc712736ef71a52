//! nginx, with a folder of files.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::Result;
use rustix::process::Signal;

use super::{Service, open_folder};
use crate::netns::Place;

/// It serves the files of a folder until it is dropped.
#[derive(Debug)]
pub struct Nginx {
    _service: Service,
    folder: tempfile::TempDir,
}

impl Nginx {
    /// Starts it at `address` in `place`, with a file called `small`.
    ///
    /// # Errors
    ///
    /// Fails when it does not start.
    pub fn start(place: &Place, address: SocketAddr) -> Result<Self> {
        let folder = open_folder()?;
        fs::write(folder.path().join("small"), "a small answer\n")?;
        let config = folder.path().join("nginx.conf");
        let text = format!(
            "daemon off; user root; worker_processes 1; pid {0}/nginx.pid; error_log stderr;\n\
             events {{ worker_connections 2048; }}\n\
             http {{ access_log off; client_body_temp_path {0}/body; proxy_temp_path {0}/proxy;\n\
             fastcgi_temp_path {0}/fastcgi; uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
             keepalive_requests 1000000; send_timeout 600s; keepalive_timeout 600s;\n\
             sendfile on; server {{ listen {address} backlog=4096; root {0}; }} }}\n",
            folder.path().display()
        );
        fs::write(&config, text)?;
        let service = Service::start(
            place,
            "nginx",
            |nginx| {
                nginx.arg("-e").arg("stderr").arg("-p").arg(folder.path());
                nginx.arg("-c").arg(config);
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

    /// The folder that it serves.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
