//! What holds for every registry. A test program names a [`Backend`] and calls [`conformance!`].

#![allow(
    dead_code,
    reason = "a registry in one process has no servers and no sessions"
)]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use laneway_registry::{Directory, Instance, InstanceId, Load, RegistrationState, Registry, Role};
use tokio::sync::watch;

/// Sessions of those that are to be missed, and of those that watch them: they may also be missed in between, because the
/// machine is busy.
pub(crate) const SESSION: Duration = Duration::from_millis(1500);

/// Of those that must not be missed before they are killed.
const LASTING_SESSION: Duration = Duration::from_secs(6);

/// Where nothing is to be missed.
pub(crate) const LONG_SESSION: Duration = Duration::from_secs(20);

/// Everything that must happen happens within this, on however busy a machine.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// What another process of the test is told.
const MEMBER: &str = "LANEWAY_REGISTRY_MEMBER";

/// A member of this name takes a lock.
const LOCKS: &str = "locks";

/// Where a registry is kept.
pub(crate) trait Backend: Send {
    /// Opens it, as a process of its own would. Nothing of it is missed.
    fn open(&self) -> impl Future<Output = Registry> + Send {
        self.open_with(LONG_SESSION)
    }

    /// Opens it with another time-out of its session.
    fn open_with(&self, session: Duration) -> impl Future<Output = Registry> + Send;

    /// What another process needs to open it.
    fn address(&self) -> String;
}

/// Waits until a directory is as it should be.
pub(crate) async fn until(
    what: &str,
    directory: &mut watch::Receiver<Directory>,
    is_so: impl FnMut(&Directory) -> bool,
) -> Directory {
    let seen = directory.clone();
    let waiting = tokio::time::timeout(LIMIT, directory.wait_for(is_so));
    let Ok(reached) = waiting.await else {
        panic!("not in time: {what}; there is {:?}", seen.borrow());
    };
    reached.expect("the registry is open").clone()
}

/// Waits until a registration has a state.
pub(crate) async fn until_state(
    states: &mut watch::Receiver<RegistrationState>,
    wanted: RegistrationState,
) {
    let waiting = tokio::time::timeout(LIMIT, states.wait_for(|state| *state == wanted));
    waiting.await.expect("in time").expect("it is registered");
}

pub(crate) fn has(id: InstanceId) -> impl FnMut(&Directory) -> bool {
    move |directory| directory.is_current() && directory.get(id).is_some()
}

pub(crate) fn lacks(id: InstanceId) -> impl FnMut(&Directory) -> bool {
    move |directory| directory.is_current() && directory.get(id).is_none()
}

fn names(directory: &Directory) -> Vec<&str> {
    let mut names: Vec<_> = directory.instances().map(|it| &*it.name).collect();
    names.sort_unstable();
    names
}

pub(crate) async fn instances_of_all_roles_see_each_other(backend: impl Backend) {
    let (one, other) = (backend.open().await, backend.open().await);
    for role in Role::ALL {
        let instance = Instance::new(role, "one", "127.0.0.1:1").weight(7);
        let id = instance.id;
        let registration = one.register(instance.clone());
        for registry in [&one, &other] {
            let seen = until("it is listed", &mut registry.watch(role), has(id)).await;
            assert_eq!(seen.get(id), Some(&instance));
        }
        let load = Load {
            held: 12,
            cpu: 0.25,
            memory: 0.5,
        };
        registration.report(load);
        let reported = |seen: &Directory| seen.get(id).is_some_and(|it| it.load == load);
        until("its load is told", &mut other.watch(role), reported).await;
        registration.leave().await;
        until("it has left", &mut other.watch(role), lacks(id)).await;
    }
}

pub(crate) async fn a_process_is_listed_with_each_of_its_roles_until_each_has_left(
    backend: impl Backend,
) {
    let (one, other) = (backend.open().await, backend.open().await);
    let id = laneway_registry::InstanceId::draw();
    // At once, before there is a session.
    let registrations = Role::ALL.map(|role| {
        let mut instance = Instance::new(role, "all", "127.0.0.1:1");
        instance.id = id;
        (role, one.register(instance))
    });
    for role in Role::ALL {
        until("it is listed", &mut other.watch(role), has(id)).await;
    }
    for (role, registration) in registrations {
        let mut states = registration.states();
        until_state(&mut states, RegistrationState::Listed).await;
        registration.leave().await;
        until("it has left", &mut other.watch(role), lacks(id)).await;
        let later = Role::ALL.into_iter().filter(|later| *later > role);
        for later in later {
            assert!(other.watch(later).borrow().get(id).is_some(), "{later}");
        }
    }
}

pub(crate) async fn a_name_can_be_there_twice(backend: impl Backend) {
    let (one, other) = (backend.open().await, backend.open().await);
    let first = one.register(Instance::new(Role::Worker, "same", "127.0.0.1:1"));
    let second = other.register(Instance::new(Role::Worker, "same", "127.0.0.1:2"));
    let mut workers = one.watch(Role::Worker);
    let both = |seen: &Directory| names(seen) == ["same", "same"];
    until("both are listed", &mut workers, both).await;
    drop(first);
    let gone = until("the second stays", &mut workers, |seen| {
        names(seen) == ["same"]
    })
    .await;
    assert!(gone.get(second.id()).is_some());
}

pub(crate) async fn a_lock_has_one_holder(backend: impl Backend) {
    let (one, other) = (backend.open().await, backend.open().await);
    let first = one.register(Instance::new(Role::Center, "one", "127.0.0.1:1"));
    let second = other.register(Instance::new(Role::Center, "other", "127.0.0.1:2"));
    for registry in [&one, &other] {
        let both = |seen: &Directory| seen.instances().count() == 2;
        until("both are listed", &mut registry.watch(Role::Center), both).await;
    }
    let lock = async |registry: &Registry, holder| {
        let locked = registry.try_lock("worker-1", holder, LIMIT).await;
        locked.expect("the registry answers")
    };
    let held = lock(&one, first.id()).await.expect("it is free");
    assert!(lock(&other, second.id()).await.is_none(), "it is held");
    let elsewhere = other.try_lock("worker-2", second.id(), LIMIT).await;
    assert!(
        elsewhere.expect("it answers").is_some(),
        "another one is free"
    );
    drop(held);
    let deadline = tokio::time::Instant::now() + LIMIT;
    while lock(&other, second.id()).await.is_none() {
        assert!(tokio::time::Instant::now() < deadline, "it is not freed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let error = one.try_lock("a/b", first.id(), LIMIT).await.unwrap_err();
    assert!(error.to_string().contains("letters, digits"), "{error}");
}

pub(crate) async fn what_an_operator_removes_stays_away(backend: impl Backend) {
    let (one, operator) = (backend.open().await, backend.open().await);
    let registration = one.register(Instance::new(Role::Worker, "one", "127.0.0.1:1"));
    let id = registration.id();
    let mut workers = operator.watch(Role::Worker);
    until("it is listed", &mut workers, has(id)).await;
    let removed = operator.remove(Role::Worker, id, LIMIT).await;
    assert!(removed.expect("it answers"), "it was there");
    until("it is gone", &mut workers, lacks(id)).await;
    until_state(&mut registration.states(), RegistrationState::Removed).await;
    registration.report(Load::default());
    let other = one.register(Instance::new(Role::Worker, "other", "127.0.0.1:2"));
    // Commands are taken in order, so the report is done with.
    let seen = until("another is listed", &mut workers, has(other.id())).await;
    assert!(seen.get(id).is_none(), "it has come back");
    let again = operator.remove(Role::Worker, id, LIMIT).await;
    assert!(!again.expect("it answers"), "it was not there any more");
}

/// Another process that is registered.
pub(crate) struct Member(Child);

impl Member {
    pub(crate) fn start(backend: &impl Backend, name: &str, session: Duration) -> Self {
        let session = session.as_millis();
        let program = std::env::current_exe().expect("this program");
        let process = Command::new(program)
            .args(["--exact", "member", "--nocapture"])
            .env(MEMBER, format!("{} {name} {session}", backend.address()))
            .stdout(Stdio::null())
            .spawn();
        Self(process.expect("it starts"))
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status();
        assert!(
            sent.is_ok_and(|status| status.success()),
            "{signal} is not sent"
        );
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a member does: it is there. `None` in the process of the tests.
pub(crate) fn member_of() -> Option<(String, String, Duration)> {
    let told = std::env::var(MEMBER).ok()?;
    let mut words = told.split(' ');
    let (address, name) = (words.next()?.to_owned(), words.next()?.to_owned());
    let session = words.next()?.parse().ok()?;
    Some((address, name, Duration::from_millis(session)))
}

pub(crate) async fn be_there(registry: Registry, name: &str) {
    let registration = registry.register(Instance::new(Role::Worker, name, "127.0.0.1:1"));
    until_state(&mut registration.states(), RegistrationState::Listed).await;
    let mut lock = None;
    while name == LOCKS && lock.is_none() {
        let locked = registry
            .try_lock("worker-9", registration.id(), LIMIT)
            .await;
        lock = locked.expect("the registry answers");
    }
    let held = u64::from(lock.is_some());
    registration.report(Load {
        held,
        ..Load::default()
    });
    tokio::time::sleep(Duration::from_mins(10)).await;
}

pub(crate) async fn who_is_killed_is_missed(backend: impl Backend) {
    let registry = backend.open_with(SESSION).await;
    let mut workers = registry.watch(Role::Worker);
    let member = Member::start(&backend, "mortal", SESSION);
    until("it is listed", &mut workers, |seen| {
        names(seen) == ["mortal"]
    })
    .await;
    drop(member);
    let nobody = |seen: &Directory| seen.is_current() && names(seen).is_empty();
    until("it is missed", &mut workers, nobody).await;
}

pub(crate) async fn who_was_frozen_comes_back_by_itself(backend: impl Backend) {
    let registry = backend.open_with(SESSION).await;
    let mut workers = registry.watch(Role::Worker);
    let member = Member::start(&backend, "frozen", SESSION);
    let there = until("it is listed", &mut workers, |seen| {
        names(seen) == ["frozen"]
    })
    .await;
    let id = there.instances().next().expect("it is there").id;
    member.signal("-STOP");
    until("it is missed", &mut workers, lacks(id)).await;
    member.signal("-CONT");
    until("it is listed again", &mut workers, has(id)).await;
}

pub(crate) async fn a_lock_is_freed_by_the_death_of_its_holder(backend: impl Backend) {
    let registry = backend.open_with(LASTING_SESSION).await;
    let next = registry.register(Instance::new(Role::Center, "next", "127.0.0.1:1"));
    let mut centers = registry.watch(Role::Center);
    until("it is listed", &mut centers, has(next.id())).await;
    let member = Member::start(&backend, LOCKS, LASTING_SESSION);
    let mut workers = registry.watch(Role::Worker);
    // It says that it has the lock.
    let has_locked = |seen: &Directory| seen.instances().any(|it| it.load.held == 1);
    until("another has the lock", &mut workers, has_locked).await;
    let lock = async || {
        let locked = registry.try_lock("worker-9", next.id(), LIMIT).await;
        locked.expect("the registry answers").is_some()
    };
    assert!(!lock().await, "it is held");
    drop(member);
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !lock().await {
        assert!(tokio::time::Instant::now() < deadline, "it is never freed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The server is killed and started again: all that were there are, and at no time was one missed. The sessions have to be
/// longer than a busy machine takes to start it and to connect again: a process that does not is rightly missed.
pub(crate) async fn a_restart_of_the_server_makes_nobody_look_dead(
    backend: impl Backend,
    session: Duration,
    mut restart: impl FnMut(),
) {
    let (one, other) = (
        backend.open_with(session).await,
        backend.open_with(session).await,
    );
    let first = one.register(Instance::new(Role::Worker, "one", "127.0.0.1:1"));
    let second = other.register(Instance::new(Role::Worker, "other", "127.0.0.1:2"));
    let mut workers = one.watch(Role::Worker);
    let both = |seen: &Directory| names(seen) == ["one", "other"];
    until("both are listed", &mut workers, both).await;
    let watching = one.watch(Role::Worker);
    let least = tokio::spawn(fewest(watching));
    for _ in 0..3 {
        restart();
        let new = one.register(Instance::new(Role::Admin, "new", "127.0.0.1:3"));
        until_state(&mut new.states(), RegistrationState::Listed).await;
    }
    until("both are current", &mut workers, |seen| {
        seen.is_current() && both(seen)
    })
    .await;
    drop((first, second));
    until("both have left", &mut workers, |seen| {
        names(seen).is_empty()
    })
    .await;
    assert!(
        least.await.expect("it counts") >= 2,
        "one looked dead in between"
    );
}

/// The fewest that were there, before the first has left for good: both leave together in the end.
async fn fewest(mut directory: watch::Receiver<Directory>) -> usize {
    let mut counts = Vec::new();
    loop {
        let count = directory.borrow_and_update().instances().count();
        if count == 0 {
            break;
        }
        counts.push(count);
        if directory.changed().await.is_err() {
            break;
        }
    }
    // The way from both to none may lead over one, which may be told more than once.
    while counts.last() == Some(&1) {
        counts.pop();
    }
    counts.into_iter().min().unwrap_or_default()
}

/// The server is away for longer than sessions: lists freeze. A process that dies meanwhile is missed afterwards, and
/// only then.
pub(crate) async fn lists_freeze_while_the_server_is_away(
    backend: impl Backend,
    kill: impl FnOnce(),
    resume: impl FnOnce(),
) {
    let registry = backend.open_with(LASTING_SESSION).await;
    let survivor = registry.register(Instance::new(Role::Worker, "survivor", "127.0.0.1:1"));
    let member = Member::start(&backend, "mortal", LASTING_SESSION);
    let mut workers = registry.watch(Role::Worker);
    let both = |seen: &Directory| names(seen) == ["mortal", "survivor"];
    until("both are listed", &mut workers, both).await;
    kill();
    let frozen = until("the list is frozen", &mut workers, |seen| {
        !seen.is_current()
    })
    .await;
    assert!(both(&frozen), "the list stays as it was");
    let asked = registry.try_lock("worker-1", survivor.id(), SESSION).await;
    assert!(asked.is_err(), "a lock is had without a server");
    drop(member);
    tokio::time::sleep(LASTING_SESSION * 3 / 2).await;
    assert!(
        both(&workers.borrow()),
        "the list stays, however long it takes"
    );
    resume();
    let alone = |seen: &Directory| seen.is_current() && names(seen) == ["survivor"];
    until("the one that died is missed", &mut workers, alone).await;
    until_state(&mut survivor.states(), RegistrationState::Listed).await;
    drop(survivor);
}
