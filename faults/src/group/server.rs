//! Servers that can be killed and started again, with what they had stored.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::shell::{self, wait_until};

/// The first time a program may have to be downloaded.
const FETCH_LIMIT: Duration = Duration::from_mins(10);
const START_LIMIT: Duration = Duration::from_mins(2);

/// How a server is run, and how it is known to answer.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What people call it.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// Where it works, and its log is.
    pub(crate) folder: PathBuf,
    pub(crate) port: u16,
    pub(crate) answers: fn(&Server) -> bool,
}

/// One server. Dropped, it is killed.
#[derive(Debug)]
pub struct Server {
    plan: Plan,
    starts: usize,
    process: Option<Child>,
}

impl Server {
    /// One that is not started yet.
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            starts: 0,
            process: None,
        }
    }

    /// Starts servers, and waits until all of them answer.
    pub(crate) fn start_all(plans: Vec<Plan>) -> Result<Vec<Self>> {
        let mut servers: Vec<_> = plans.into_iter().map(Self::new).collect();
        for server in &mut servers {
            server.spawn()?;
        }
        for server in &mut servers {
            server.wait()?;
        }
        Ok(servers)
    }

    /// What people call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.plan.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.plan.port
    }

    /// How often it was started.
    pub(crate) fn starts(&self) -> usize {
        self.starts
    }

    /// What it has written, since its first start.
    pub(crate) fn log(&self) -> String {
        let log = fs::read(self.plan.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// If it does not.
    pub fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait()
    }

    /// Kills it with signal 9.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("it does not run")?;
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    fn spawn(&mut self) -> Result<()> {
        let Plan {
            program, folder, ..
        } = &self.plan;
        let log = File::options()
            .create(true)
            .append(true)
            .open(folder.join("log"))?;
        let process = Command::new(program)
            .current_dir(folder)
            .args(&self.plan.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        self.process = Some(process);
        self.starts += 1;
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        let answered = wait_until(START_LIMIT, || {
            match self.process.as_mut().map(Child::try_wait) {
                Some(Ok(None)) => (self.plan.answers)(self).then_some(Ok(())),
                _ => Some(Err(anyhow!("{} has ended", self.plan.name))),
            }
        });
        let answered = answered.and_then(|answered| {
            answered.with_context(|| format!("{} does not answer", self.plan.name))
        });
        answered.with_context(|| {
            let log = self.log();
            let from = log.len().saturating_sub(2000);
            format!("its log ends with:\n{}", log.get(from..).unwrap_or(&log))
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process.is_some() {
            let _ = self.kill();
        }
    }
}

/// The program of a server: the one that a variable names, or the one that `cargo xtask services` has.
pub(crate) fn program(service: &str, variable: &str) -> Result<PathBuf> {
    if let Some(program) = env::var_os(variable) {
        return Ok(program.into());
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(["xtask", "services", "run", "--only", service, "--"])
        .args(["printenv", variable]);
    let output = shell::run(&mut command, FETCH_LIMIT)?;
    let program = output.text.trim();
    ensure!(
        output.status.success() && !program.is_empty(),
        "there is no server of {service}: set {variable}"
    );
    Ok(program.into())
}

/// Ports that nobody has right now.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    for (port, free) in ports.iter_mut().zip(some_free_ports(N)?) {
        *port = free;
    }
    Ok(ports)
}

/// So many ports that nobody has right now.
pub(crate) fn some_free_ports(count: usize) -> Result<Vec<u16>> {
    // All at once: a port that is given back may be given out again.
    let mut listeners = Vec::new();
    for _ in 0..count {
        listeners.push(TcpListener::bind(("127.0.0.1", 0)).context("no free port")?);
    }
    let ports = listeners
        .iter()
        .map(|listener| Ok(listener.local_addr()?.port()));
    ports.collect()
}
