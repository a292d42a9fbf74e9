//! Logs in memory do what every log must.

mod log;

use log::Fixture;

struct Memory;

impl Fixture for Memory {
    fn new() -> Self {
        Self
    }

    fn address(&self) -> String {
        "memory:".to_owned()
    }

    fn is_kept(&self) -> bool {
        false
    }
}

log::of_every_log!(Memory);
