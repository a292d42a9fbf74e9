//! The registry in one process.

mod conformance;

use std::time::Duration;

use conformance::Backend;
use laneway_registry::Registry;

struct Here(Registry);

impl Backend for Here {
    async fn open_with(&self, _: Duration) -> Registry {
        self.0.clone()
    }

    fn address(&self) -> String {
        "here".to_owned()
    }
}

macro_rules! holds {
    ($($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                conformance::$name(Here(Registry::local())).await;
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
}
