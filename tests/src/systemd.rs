//! systemd as the first process of namespaces of its own, with no units but those that a test gives it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    netns::Place,
    patience,
    relay::{Finished, Launch, binary},
};

/// Where Debian and most others keep it.
const SYSTEMD: &str = "/lib/systemd/systemd";

/// A service manager that runs. Dropping it ends it and all that it started.
#[derive(Debug)]
pub struct Systemd {
    keeper: Child,
    /// As the tests see it.
    init: u32,
    _folder: tempfile::TempDir,
}

/// Gives the manager a control group of its own and ends it when standard input does, however the test ends.
const KEEPER: &str = r#"
set -eu
exec 3<&0 </dev/null
mount --make-rprivate /
umount --recursive --lazy /sys/fs/cgroup || :
mount -t cgroup2 cgroup2 /sys/fs/cgroup
group="/sys/fs/cgroup/relay-test-$$"
mkdir "$group"
(
    exec 3<&-
    # The one who writes.
    echo 0 >"$group/cgroup.procs"
    exec unshare --cgroup --pid --fork --kill-child --mount-proc sh -c "$MANAGER"
) &
manager=$!
(
    read -r _ <&3 || :
    kill -KILL "$manager"
) &
keeper=$!
wait "$manager" || :
kill "$keeper" 2>/dev/null || :
# What dies leaves its group a moment later.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null && break
    sleep 0.2
done
"#;

/// Everything that the manager or a unit may write to is the test's own. In a container it lets the machine's own settings
/// alone.
const MANAGER: &str = r#"
set -eu
umount /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
cp -a /etc /run/etc || :
mount --bind /run/etc /etc
rm -rf /etc/systemd/system
mkdir -p /etc/systemd/system /run/lock /usr/local/bin
mount -t tmpfs -o mode=755 tmpfs /usr/local/bin
cp "$RELAY" /usr/local/bin/relay
chmod 755 /usr/local/bin/relay
mount -t tmpfs -o mode=755 tmpfs /var
mkdir -m 1777 /var/tmp
mount -t tmpfs -o mode=1777 tmpfs /tmp
for target in test sysinit basic sockets multi-user network network-online shutdown umount; do
    printf '[Unit]\nDefaultDependencies=no\n' >"/etc/systemd/system/$target.target"
done
exec env -i container=test PATH="$PATH" SYSTEMD_UNIT_PATH=/etc/systemd/system \
    "$SYSTEMD" --system --unit=test.target --log-target=console --show-status=no
"#;

impl Systemd {
    /// Starts one in the network of `place`, with the binary under test at `/usr/local/bin/relay`.
    ///
    /// # Errors
    ///
    /// Fails when it does not come up, with what it said.
    pub fn start(place: &Place) -> Result<Self> {
        ensure!(Path::new(SYSTEMD).exists(), "there is no {SYSTEMD}");
        let folder = tempfile::tempdir()?;
        let said = folder.path().join("said");
        let output = File::create(&said)?;
        let keeper = place.enter(|| {
            let mut command = Command::new("unshare");
            command
                .args(["--mount", "--uts", "--ipc", "sh", "-c", KEEPER])
                .env("MANAGER", MANAGER)
                .env("SYSTEMD", SYSTEMD)
                .env("RELAY", binary()?)
                .stdin(Stdio::piped())
                .stdout(output.try_clone()?)
                .stderr(output);
            command.spawn().context("unshare")
        })?;
        let mut systemd = Self {
            keeper,
            init: 0,
            _folder: folder,
        };
        patience::until_true("systemd to answer", || {
            if let Some(status) = systemd.keeper.try_wait()? {
                let said = fs::read_to_string(&said)?;
                bail!("systemd ended with {status}: {said}");
            }
            let Some(init) = first_of(systemd.keeper.id()) else {
                return Ok(false);
            };
            systemd.init = init;
            Ok(systemd.run("systemctl", &["list-units"])?.status.success())
        })
        .with_context(|| fs::read_to_string(&said).unwrap_or_default())?;
        Ok(systemd)
    }

    /// A file as the units see it, by the name that the tests can use.
    #[must_use]
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.init))
    }

    /// Runs `program` beside the units, to its end.
    ///
    /// # Errors
    ///
    /// Fails when it does not end.
    pub fn run(&self, program: &str, words: &[&str]) -> Result<Finished> {
        let target = self.init.to_string();
        let by = ["nsenter", "--target", &target, "--mount", "--pid", "--net"];
        let by = by.into_iter().chain(["--cgroup", "--", program]);
        Launch::new(words.iter().copied())
            .by(by.map(String::from).collect())
            .run()
    }

    /// Has systemctl(1) do something.
    ///
    /// # Errors
    ///
    /// Fails when it does, with what it said.
    pub fn control(&self, words: &[&str]) -> Result<String> {
        let done = self.run("systemctl", words)?;
        ensure!(done.status.success(), "systemctl {words:?}: {done:?}");
        Ok(done.stdout)
    }

    /// A property of a unit.
    ///
    /// # Errors
    ///
    /// Fails when systemctl(1) does.
    pub fn property(&self, unit: &str, name: &str) -> Result<String> {
        let value = self.control(&["show", "--value", "--property", name, unit])?;
        Ok(value.trim().to_owned())
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = patience::until("systemd to end", || Ok(self.keeper.try_wait()?));
    }
}

/// The descendant of `process` that is systemd, and the first process of a namespace.
fn first_of(process: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
    let children = children.split_whitespace().filter_map(|id| id.parse().ok());
    children.into_iter().find_map(|child: u32| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).ok()?;
        let is = |line: &str| line.starts_with("NSpid:") && line.ends_with("\t1");
        match status.starts_with("Name:\tsystemd\n") && status.lines().any(is) {
            true => Some(child),
            false => first_of(child),
        }
    })
}
