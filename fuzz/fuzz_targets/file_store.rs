//! Any bytes in the place of rows, catalog rows and journals of the store on disk.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| laneway::fuzzing::file_store(data));
