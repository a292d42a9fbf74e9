//! The wall clock of a process, to be set at will: a library that is loaded before all others adds what a file
//! says. It is compiled here; where there is no C compiler the clock is not set.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int (*real)(clockid_t, struct timespec *);
static volatile int64_t *offset;

__attribute__((constructor)) static void start(void) {
    real = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("FAULTS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, time);
    if (result == 0 && clock == CLOCK_REALTIME && offset) time->tv_sec += *offset;
    return result;
}
"#;

/// By how much the clock of a child is wrong.
#[derive(Debug)]
pub(crate) struct WallClock {
    library: PathBuf,
    offset: PathBuf,
}

impl WallClock {
    /// Compiles the library.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let source = folder.join("clock.c");
        let clock = Self {
            library: folder.join("clock.so"),
            offset: folder.join("clock.offset"),
        };
        fs::write(&source, SOURCE)?;
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&clock.library, &source])
            .arg("-ldl")
            .output()
            .context("there is no C compiler")?;
        let said = String::from_utf8_lossy(&compiled.stderr);
        ensure!(compiled.status.success(), "cc: {said}");
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets it ahead by so many seconds, or back, while the child runs.
    pub(crate) fn set(&self, seconds: i64) -> Result<()> {
        // In place: the child has it mapped.
        let file = fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.offset)?;
        std::os::unix::fs::FileExt::write_all_at(&file, &seconds.to_ne_bytes(), 0)?;
        Ok(())
    }

    /// Lets a child have this clock.
    pub(crate) fn give_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            // `laneway` takes variables that begin with its name for its settings.
            .env("FAULTS_CLOCK", &self.offset);
    }
}
