//! The task that keeps entries and directories, whatever the backend.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::directory::Directories;
use crate::{Error, Instance, InstanceId, Load, RegistrationState, Role};

/// After a failure it is tried again so soon, and then after twice as long each time.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// How sessions are had.
pub(crate) trait Backend: Send + 'static {
    type Session: Session;

    /// Connects, and reads what is there.
    fn connect(&mut self) -> impl Future<Output = Result<Self::Session, Error>> + Send;
}

/// A session with a server. What it has written goes away with it. Every call has a deadline of its own.
pub(crate) trait Session: Send {
    /// Writes the entry of an instance, or changes it.
    fn announce(
        &mut self,
        instance: &Instance,
    ) -> impl Future<Output = Result<Announced, Error>> + Send;

    /// Takes the entry of an instance back. Its instance leaves.
    fn withdraw(
        &mut self,
        role: Role,
        id: InstanceId,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Takes the entry of any instance away, and sees to it that the instance hears of that. Answers whether it was
    /// there.
    fn remove(
        &mut self,
        role: Role,
        id: InstanceId,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Takes a lock if it is free, or with this holder already.
    fn lock(
        &mut self,
        name: &str,
        holder: InstanceId,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Frees a lock if it is with this holder.
    fn unlock(
        &mut self,
        name: &str,
        holder: InstanceId,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// The instances of a role, as far as the session has heard. Those that it announced itself are among them unless
    /// they were removed.
    fn instances(&self, role: Role) -> Vec<Instance>;

    /// Waits for news. Nothing is lost when the caller gives up waiting.
    fn next(&mut self) -> impl Future<Output = News> + Send;
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    Listed,
    /// An operator has taken it off.
    Removed,
}

/// What a session hears.
#[derive(Debug)]
pub(crate) enum News {
    /// Instances came, went or changed.
    Changed,
    /// The server does not answer.
    Away(String),
    /// It answers again, and the session is still there.
    Back,
    /// The session has ended.
    Lost(String),
}

/// What handles ask for.
#[derive(Debug)]
pub(crate) enum Command {
    Register {
        instance: Box<Instance>,
        state: watch::Sender<RegistrationState>,
    },
    Report {
        role: Role,
        id: InstanceId,
        load: Load,
    },
    Leave {
        role: Role,
        id: InstanceId,
        left: Option<oneshot::Sender<()>>,
    },
    Remove {
        role: Role,
        id: InstanceId,
        answer: oneshot::Sender<Result<bool, Error>>,
    },
    Lock {
        name: String,
        holder: InstanceId,
        answer: oneshot::Sender<Result<bool, Error>>,
    },
    Unlock {
        name: String,
        holder: InstanceId,
    },
}

/// What is to be taken back when the server is reached again.
#[derive(Debug)]
enum Debt {
    Withdraw(Role, InstanceId),
    Unlock(String, InstanceId),
}

/// An instance that is registered here.
struct Own {
    instance: Instance,
    state: watch::Sender<RegistrationState>,
    /// Whether its entry says less than is known.
    is_stale: bool,
}

/// Why a session is served no more.
enum Ended {
    /// No handle is left.
    Closed,
    Lost(String),
}

pub(crate) struct Keeper<B> {
    backend: B,
    commands: mpsc::UnboundedReceiver<Command>,
    directories: Arc<Directories>,
    /// A process has an entry for each of its roles, all with its id.
    own: BTreeMap<(Role, InstanceId), Own>,
    debts: Vec<Debt>,
}

impl<B: Backend> Keeper<B> {
    pub(crate) fn new(
        backend: B,
        commands: mpsc::UnboundedReceiver<Command>,
        directories: Arc<Directories>,
    ) -> Self {
        Self {
            backend,
            commands,
            directories,
            own: BTreeMap::new(),
            debts: Vec::new(),
        }
    }

    /// Runs until no handle is left.
    pub(crate) async fn run(mut self) {
        let mut wait = SHORTEST_WAIT;
        loop {
            let reason = match self.connected().await {
                None => return,
                Some(Ok(session)) => {
                    wait = SHORTEST_WAIT;
                    match self.serve(session).await {
                        Ended::Closed => return,
                        Ended::Lost(reason) => reason,
                    }
                }
                Some(Err(error)) => error.to_string(),
            };
            tracing::warn!(
                reason,
                wait_ms = wait.as_millis(),
                "session with the registry lost, connecting again"
            );
            self.directories.freeze();
            for own in self.own.values_mut().filter(|own| !own.is_removed()) {
                own.is_stale = true;
                own.state.send_replace(RegistrationState::Pending);
            }
            if !self.pause(wait).await {
                return;
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Connects, while commands are taken. `None` if no handle is left.
    async fn connected(&mut self) -> Option<Result<B::Session, Error>> {
        let connecting = self.backend.connect();
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                session = &mut connecting => return Some(session),
                command = self.commands.recv() => {
                    take_offline(&mut self.own, &mut self.debts, command?);
                }
            }
        }
    }

    /// Waits, while commands are taken. False if no handle is left.
    async fn pause(&mut self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        loop {
            tokio::select! {
                () = sleep_until(until) => return true,
                command = self.commands.recv() => match command {
                    Some(command) => take_offline(&mut self.own, &mut self.debts, command),
                    None => return false,
                },
            }
        }
    }

    async fn serve(&mut self, mut session: B::Session) -> Ended {
        let mut is_away = false;
        let mut again = None;
        if self.catch_up(&mut session).await.is_err() {
            again = Some(Instant::now() + SHORTEST_WAIT);
        }
        loop {
            tokio::select! {
                command = self.commands.recv() => {
                    let Some(command) = command else {
                        return Ended::Closed;
                    };
                    if self.take(&mut session, command).await.is_err() {
                        again = Some(Instant::now() + SHORTEST_WAIT);
                    }
                    if !is_away {
                        self.refresh(&session);
                    }
                }
                news = session.next() => match news {
                    News::Changed if is_away => {}
                    News::Changed => self.refresh(&session),
                    News::Away(reason) => {
                        tracing::warn!(reason, "the registry does not answer, its lists stay as they are");
                        is_away = true;
                        self.directories.freeze();
                    }
                    News::Back => {
                        tracing::info!("the registry answers again");
                        is_away = false;
                        again = Some(Instant::now());
                    }
                    News::Lost(reason) => return Ended::Lost(reason),
                },
                () = at(again), if !is_away => {
                    again = None;
                    if let Err(error) = self.catch_up(&mut session).await {
                        tracing::debug!(%error, "an entry of the registry could not be written yet");
                        again = Some(Instant::now() + LONGEST_WAIT);
                    }
                }
            }
        }
    }

    /// Writes what is not written yet, takes back what is to be taken back, and tells what is there.
    async fn catch_up(&mut self, session: &mut B::Session) -> Result<(), Error> {
        // What was removed meanwhile must not be written again.
        self.refresh(session);
        while let Some(debt) = self.debts.last() {
            match debt {
                Debt::Withdraw(role, id) => session.withdraw(*role, *id).await?,
                Debt::Unlock(name, holder) => session.unlock(name, *holder).await?,
            }
            self.debts.pop();
        }
        for own in self.own.values_mut().filter(|own| own.is_stale) {
            announce(session, own).await?;
        }
        self.refresh(session);
        Ok(())
    }

    /// Tells what the session has heard. An instance of this process whose entry is gone was removed.
    fn refresh(&mut self, session: &B::Session) {
        for role in Role::ALL {
            let instances = session.instances(role);
            for own in self.own.values_mut() {
                let is_listed = *own.state.borrow() == RegistrationState::Listed;
                let is_there = || instances.iter().any(|it| it.id == own.instance.id);
                if own.instance.role == role && is_listed && !is_there() {
                    own.remove();
                }
            }
            self.directories.update(role, instances);
        }
    }

    /// Does what a handle asks for. An error is of something that is to be done later.
    async fn take(&mut self, session: &mut B::Session, command: Command) -> Result<(), Error> {
        match command {
            Command::Register { instance, state } => {
                let mut own = Own::new(*instance, state);
                let announced = announce(session, &mut own).await;
                self.own.insert((own.instance.role, own.instance.id), own);
                announced
            }
            Command::Report { role, id, load } => {
                let own = self.own.get_mut(&(role, id));
                let Some(own) = own.filter(|own| !own.is_removed()) else {
                    return Ok(());
                };
                own.instance.load = load;
                own.is_stale = true;
                announce(session, own).await
            }
            Command::Leave { role, id, left } => {
                // Dropping a registration that has left says so a second time.
                if self.own.remove(&(role, id)).is_none() {
                    return Ok(());
                }
                let withdrawn = session.withdraw(role, id).await;
                if withdrawn.is_err() {
                    self.debts.push(Debt::Withdraw(role, id));
                }
                left.map(|left| left.send(()));
                withdrawn
            }
            Command::Remove { role, id, answer } => {
                let _ = answer.send(session.remove(role, id).await);
                Ok(())
            }
            Command::Lock {
                name,
                holder,
                answer,
            } => {
                let locked = session.lock(&name, holder).await;
                let is_ours = matches!(locked, Ok(true));
                // A caller that has given up holds nothing; neither does one that was told of an error.
                if answer.send(locked.clone()).is_err() && is_ours || locked.is_err() {
                    self.debts.push(Debt::Unlock(name, holder));
                    return Err(Error::away("a lock is to be freed"));
                }
                Ok(())
            }
            Command::Unlock { name, holder } => {
                let unlocked = session.unlock(&name, holder).await;
                if unlocked.is_err() {
                    self.debts.push(Debt::Unlock(name, holder));
                }
                unlocked
            }
        }
    }
}

/// Takes a command while there is no session.
fn take_offline(
    own: &mut BTreeMap<(Role, InstanceId), Own>,
    debts: &mut Vec<Debt>,
    command: Command,
) {
    let no_session = || Error::away("there is no session");
    match command {
        Command::Register { instance, state } => {
            let entry = (instance.role, instance.id);
            own.insert(entry, Own::new(*instance, state));
        }
        Command::Report { role, id, load } => {
            if let Some(own) = own.get_mut(&(role, id)) {
                own.instance.load = load;
            }
        }
        Command::Leave { role, id, left } => {
            if own.remove(&(role, id)).is_some() {
                debts.push(Debt::Withdraw(role, id));
            }
            left.map(|left| left.send(()));
        }
        Command::Remove { answer, .. } | Command::Lock { answer, .. } => {
            let _ = answer.send(Err(no_session()));
        }
        Command::Unlock { name, holder } => debts.push(Debt::Unlock(name, holder)),
    }
}

async fn announce(session: &mut impl Session, own: &mut Own) -> Result<(), Error> {
    match session.announce(&own.instance).await {
        Ok(Announced::Listed) => {
            own.is_stale = false;
            own.state.send_if_modified(|state| {
                let is_news = *state != RegistrationState::Listed;
                *state = RegistrationState::Listed;
                is_news
            });
            Ok(())
        }
        Ok(Announced::Removed) => {
            own.remove();
            Ok(())
        }
        Err(error) => {
            own.is_stale = true;
            Err(error)
        }
    }
}

impl Own {
    fn new(instance: Instance, state: watch::Sender<RegistrationState>) -> Self {
        Self {
            instance,
            state,
            is_stale: true,
        }
    }

    fn is_removed(&self) -> bool {
        *self.state.borrow() == RegistrationState::Removed
    }

    fn remove(&mut self) {
        tracing::warn!(role = %self.instance.role, id = %self.instance.id, name = self.instance.name,
            "this instance was removed from the registry");
        self.is_stale = false;
        self.state.send_replace(RegistrationState::Removed);
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
