//! The registry in `ZooKeeper`.

mod conformance;
mod servers;

use std::sync::Mutex;
use std::time::Duration;

use conformance::{Backend, LONG_SESSION, SESSION};
use laneway_registry::{Registry, ZooKeeperOptions};
use servers::Server;

/// The address of a server.
struct There(String);

impl Backend for There {
    async fn open_with(&self, session: Duration) -> Registry {
        Registry::zookeeper(ZooKeeperOptions::new(&*self.0).session(session))
    }

    fn address(&self) -> String {
        self.0.clone()
    }
}

/// A server of its own for a test: what others register must not be seen.
macro_rules! server {
    () => {{
        let _ = needs::service!("zookeeper");
        match std::env::var("LANEWAY_TEST_ZOOKEEPER_BIN") {
            Ok(program) => Server::zookeeper(program),
            Err(_) => {
                needs::skip!("needs zookeeper: a program to start, and there is only a server");
                return;
            }
        }
    }};
}

macro_rules! holds {
    ($($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let server = server!();
                conformance::$name(There(server.address())).await;
            }
        )*
    };
}

holds! {
    instances_of_all_roles_see_each_other
    a_process_is_listed_with_each_of_its_roles_until_each_has_left
    a_name_can_be_there_twice
    a_lock_has_one_holder
    what_an_operator_removes_stays_away
    who_is_killed_is_missed
    who_was_frozen_comes_back_by_itself
    a_lock_is_freed_by_the_death_of_its_holder
}

/// The other process of tests; as a test it is nothing.
#[tokio::test]
async fn member() {
    if let Some((address, name, session)) = conformance::member_of() {
        let registry = There(address).open_with(session).await;
        conformance::be_there(registry, &name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_server_makes_nobody_look_dead() {
    let mut server = server!();
    let backend = There(server.address());
    let restart = move || {
        server.kill();
        server.resume();
    };
    // To start it takes half a minute where many do so at once.
    let session = Duration::from_secs(50);
    conformance::a_restart_of_the_server_makes_nobody_look_dead(backend, session, restart).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_freeze_while_the_server_is_away() {
    let server = Mutex::new(server!());
    let backend = There(server.lock().expect("not poisoned").address());
    let kill = || server.lock().expect("not poisoned").kill();
    let resume = || server.lock().expect("not poisoned").resume();
    conformance::lists_freeze_while_the_server_is_away(backend, kill, resume).await;
}

#[tokio::test]
async fn with_a_digest_others_can_neither_read_nor_remove() {
    use laneway_registry::{Error, Instance, Role};
    let server = server!();
    let options = || ZooKeeperOptions::new(server.address()).session(LONG_SESSION);
    let ours = Registry::zookeeper(options().digest("laneway", "secret"));
    let one = ours.register(Instance::new(Role::Worker, "one", "127.0.0.1:1"));
    let mut workers = ours.watch(Role::Worker);
    conformance::until("it is listed", &mut workers, conformance::has(one.id())).await;
    let stranger = zookeeper_client::Client::connect(&server.address())
        .await
        .unwrap();
    let path = format!("/laneway/worker/{}", one.id());
    let refused = zookeeper_client::Error::NoAuth;
    assert_eq!(stranger.get_data(&path).await.unwrap_err(), refused);
    assert_eq!(stranger.delete(&path, None).await.unwrap_err(), refused);
    let wrong = Registry::zookeeper(options().digest("laneway", "guess"));
    let removed = wrong.remove(Role::Worker, one.id(), SESSION).await;
    assert!(matches!(
        removed,
        Err(Error::Away { .. } | Error::Refused { .. })
    ));
    assert!(
        conformance::has(one.id())(&workers.borrow()),
        "it is still there"
    );
}
