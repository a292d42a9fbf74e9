//! File systems that can be broken: ext4 on a loop device, in a mount namespace of its own.
//!
//! A namespace of its own, because one that others could copy would keep a dead file system alive.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::shell::{self, wait_until};

const LIMIT: Duration = Duration::from_mins(1);

/// The ext4 shutdown ioctl, `_IOR('X', 125, __u32)`, with the flag that drops the file system's own
/// journal in memory, too: from that instant on nothing reaches the disk. Says when it began.
const CUT_POWER: &str = "import fcntl, os, struct, sys, time
disk = os.open(sys.argv[1], os.O_RDONLY)
began = time.time_ns()
fcntl.ioctl(disk, 0x8004587d, struct.pack('I', 2))
print(began, time.time_ns())";

/// A cut of the power, in nanoseconds since 1970. What happens between the two may or may not have reached the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) began: u64,
    pub(crate) done: u64,
}

/// Mounts that nobody else sees. They go with it.
pub(crate) struct Namespace {
    holder: Child,
}

impl Namespace {
    /// A namespace, or why this machine has none.
    pub(crate) fn new() -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "only root may mount file systems"
        );
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private"])
            .args(["sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start unshare")?;
        let stdout = holder.stdout.as_mut().context("the output was piped")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line == "ready\n", "mounts cannot be unshared");
        Ok(Self { holder })
    }

    /// A command that sees the mounts.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .arg("--")
            .arg(program);
        command
    }

    /// Runs a command that sees the mounts; answers what it printed.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, program: &str, arguments: &[S]) -> Result<String> {
        let output = shell::run(self.command(program).args(arguments), LIMIT)?;
        ensure!(
            output.status.success(),
            "{program} ended with {}",
            output.status
        );
        Ok(output.text.trim().to_owned())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// An ext4 file system on a loop device.
pub(crate) struct Disk<'a> {
    namespace: &'a Namespace,
    image: PathBuf,
    device: String,
    mount_point: PathBuf,
}

impl<'a> Disk<'a> {
    /// Makes one of so many MiB, with its image in a folder.
    pub(crate) fn new(namespace: &'a Namespace, folder: &Path, mib: u64) -> Result<Self> {
        let image = folder.join("disk.img");
        let mount_point = folder.join("mounted");
        let size = format!("{mib}M");
        // By commands: the folder may be seen in the namespace only.
        namespace.run("mkdir", &["-p".as_ref(), mount_point.as_os_str()])?;
        let arguments = ["-s".as_ref(), size.as_ref(), image.as_os_str()];
        namespace.run("truncate", &arguments)?;
        namespace.run(
            "mkfs.ext4",
            &["-q".as_ref(), "-F".as_ref(), image.as_os_str()],
        )?;
        let arguments = ["-f".as_ref(), "--show".as_ref(), image.as_os_str()];
        let device = namespace.run("losetup", &arguments)?;
        Ok(Self {
            namespace,
            image,
            device,
            mount_point,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mount_point
    }

    pub(crate) fn mount(&self) -> Result<()> {
        let arguments = [self.device.as_ref(), self.mount_point.as_os_str()];
        self.namespace.run("mount", &arguments)?;
        Ok(())
    }

    /// Lets go of the file system, as soon as nobody uses it.
    pub(crate) fn unmount(&self) -> Result<()> {
        let unmounted = || {
            let mut command = self.namespace.command("umount");
            command.arg(&self.mount_point).stderr(Stdio::null());
            match shell::run(&mut command, LIMIT) {
                Ok(output) if output.status.success() => Some(anyhow::Ok(())),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            }
        };
        wait_until(LIMIT, unmounted)?.context("the file system stays busy")
    }

    /// From now on nothing reaches the disk.
    pub(crate) fn cut_power(&self) -> Result<Cut> {
        let arguments = [
            "-c".as_ref(),
            CUT_POWER.as_ref(),
            self.mount_point.as_os_str(),
        ];
        let said = self.namespace.run("python3", &arguments)?;
        let mut times = said.split_whitespace().map(str::parse);
        let (Some(Ok(began)), Some(Ok(done))) = (times.next(), times.next()) else {
            bail!("python3 did not say when: {said}");
        };
        Ok(Cut { began, done })
    }

    /// Repairs what can be repaired, as after a disk was copied to a new one.
    pub(crate) fn repair(&self) -> Result<()> {
        let mut command = self.namespace.command("e2fsck");
        command.args(["-fy", &self.device]).stdout(Stdio::null());
        let status = shell::run(&mut command, LIMIT)?.status;
        // 1: errors were found, and repaired.
        ensure!(matches!(status.code(), Some(0 | 1)), "e2fsck: {status}");
        Ok(())
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let mut unmount = self.namespace.command("umount");
        unmount.arg(&self.mount_point).stderr(Stdio::null());
        let _ = shell::run(&mut unmount, LIMIT);
        let _ = self.namespace.run("losetup", &["-d", &self.device]);
        let _ = self
            .namespace
            .run("rm", &["-f".as_ref(), self.image.as_os_str()]);
    }
}
