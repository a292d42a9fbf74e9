//! The registry in NATS.

mod conformance;
mod servers;

use std::sync::Mutex;
use std::time::Duration;

use conformance::{Backend, LONG_SESSION};
use laneway_registry::{NatsOptions, Registry};
use servers::Server;

/// The address of a server.
struct There(String);

impl Backend for There {
    async fn open_with(&self, session: Duration) -> Registry {
        let client = async_nats::connect(&self.0).await.expect("a connection");
        Registry::nats(client, NatsOptions::default().session(session))
    }

    fn address(&self) -> String {
        self.0.clone()
    }
}

/// A server of its own for a test: what others register must not be seen.
macro_rules! server {
    () => {{
        let _ = needs::service!("nats");
        match std::env::var("LANEWAY_TEST_NATS_BIN") {
            Ok(program) => Server::nats(program),
            Err(_) => {
                needs::skip!("needs nats: a program to start, and there is only a server");
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
    conformance::a_restart_of_the_server_makes_nobody_look_dead(backend, LONG_SESSION, restart)
        .await;
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
async fn entries_of_others_in_the_bucket_are_passed_over() {
    let server = server!();
    let backend = There(server.address());
    let registry = backend.open().await;
    let one = registry.register(laneway_registry::Instance::new(
        laneway_registry::Role::Worker,
        "one",
        "127.0.0.1:1",
    ));
    let mut workers = registry.watch(laneway_registry::Role::Worker);
    conformance::until("it is listed", &mut workers, conformance::has(one.id())).await;
    let client = async_nats::connect(server.address()).await.unwrap();
    let bucket = async_nats::jetstream::new(client);
    let bucket = bucket.get_key_value("laneway-registry").await.unwrap();
    let stranger = laneway_registry::InstanceId::draw();
    for key in ["instance.worker.x", "instance.chief.1", "other"] {
        bucket.put(key, "\u{ff}{".into()).await.unwrap();
    }
    bucket
        .put(format!("instance.worker.{stranger}"), "[]".into())
        .await
        .unwrap();
    let other = registry.register(laneway_registry::Instance::new(
        laneway_registry::Role::Worker,
        "other",
        "127.0.0.1:2",
    ));
    let seen = conformance::until("goes on", &mut workers, conformance::has(other.id())).await;
    assert_eq!(seen.instances().count(), 2);
}
