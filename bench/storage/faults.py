#!/usr/bin/env python3
"""What an engine makes of a power cut, an I/O error, a full disk and damaged bytes.

Needs root, Linux and mkfs.ext4; works on loop devices in a directory of its own. Example:

    cargo build --release
    sudo ./faults.py --bench target/release/laneway-bench-storage cuts --engine fjall-packed

A power cut is the ext4 shutdown ioctl without a log flush: from that instant nothing reaches the
disk any more. After a remount every acked record must be there, in order, with its bytes.
"""

import argparse
import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time

# _IOR('X', 125, __u32), and the flag that drops the file system's journal in memory too.
EXT4_IOC_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
NO_LOG_FLUSH = 2


class Disk:
    """An ext4 file system on a loop device."""

    def __init__(self, directory, mib):
        self.image = os.path.join(directory, "disk.img")
        self.mount_point = os.path.join(directory, "mnt")
        os.makedirs(self.mount_point, exist_ok=True)
        with open(self.image, "wb") as image:
            image.truncate(mib << 20)
        run("mkfs.ext4", "-q", "-F", self.image)
        self.device = run("losetup", "-f", "--show", self.image)

    def mount(self):
        run("mount", self.device, self.mount_point)

    def unmount(self):
        for _ in range(50):
            if subprocess.run(["umount", self.mount_point], capture_output=True).returncode == 0:
                return
            time.sleep(0.1)
        raise RuntimeError("the file system stays busy")

    def cut_power(self):
        descriptor = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def remove(self):
        subprocess.run(["umount", self.mount_point], capture_output=True)
        run("losetup", "-d", self.device)
        os.unlink(self.image)


class Writer:
    """The bench's `write`, with the acks it told."""

    def __init__(self, options, directory, publishers, size, *more):
        self.acked = {}
        self.count = 0
        self.failure = None
        command = bench(options, "write", directory, size)
        command += ["--publishers", str(publishers), *more]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.reader = threading.Thread(target=self.listen)
        self.reader.start()

    def listen(self):
        for line in self.process.stdout:
            if not line.endswith("\n"):
                continue
            if line.startswith("failed "):
                self.failure = line[7:].strip()
                continue
            stream, offset = map(int, line.split())
            self.acked[stream] = max(self.acked.get(stream, -1), offset)
            self.count += 1

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def bench(options, what, directory, size):
    return [options.bench, what, "--engine", options.engine, "--directory", directory,
            "--size", str(size)]


def verify(options, directory, size, acked):
    """(records there, acked records lost, what is wrong)."""
    begun = time.monotonic()
    result = subprocess.run(bench(options, "verify", directory, size), capture_output=True, text=True)
    took = time.monotonic() - begun
    if result.returncode != 0:
        return 0, sum(last + 1 for last in acked.values()), [f"does not open: {result.stderr.strip()[:300]}"], took
    found = json.loads(result.stdout)
    counts = found["counts"]
    lost = sum(max(0, last + 1 - counts[stream]) for stream, last in acked.items())
    return sum(counts), lost, found["wrong"], took


def cuts(options, scratch):
    totals = {"cuts": 0, "acked": 0, "lost": 0, "wrong": 0, "unopened": 0}
    # The same directory lives through several cuts; then a fresh one.
    for number in range(options.cuts):
        if number % 5 == 0:
            disk = Disk(scratch, 1536)
            acked = {}
            size = random.choice([128, 1024, 16384])
        disk.mount()
        directory = os.path.join(disk.mount_point, "log")
        writer = Writer(options, directory, random.choice([1, 16, 256]), size)
        time.sleep(random.uniform(0.3, 2.0))
        disk.cut_power()
        # The acks told so far count; the writer may still be told of none after the cut.
        writer.stop()
        for stream, last in writer.acked.items():
            acked[stream] = max(acked.get(stream, -1), last)
        disk.unmount()
        disk.mount()
        there, lost, wrong, took = verify(options, directory, size, acked)
        totals["cuts"] += 1
        totals["acked"] += writer.count
        totals["lost"] += lost
        totals["wrong"] += len(wrong)
        totals["unopened"] += any("does not open" in text for text in wrong)
        print(f"cut {number + 1}: size {size}, {writer.count} acked, {there} there, {lost} lost, "
              f"verify {took:.1f}s {wrong or ''} {writer.failure or ''}", flush=True)
        disk.unmount()
        if number % 5 == 4 or number + 1 == options.cuts:
            disk.remove()
    print(json.dumps({"engine": options.engine, **totals}))


def full(options, scratch):
    """Writes until the disk is full, makes room, and sees whether the same process goes on."""
    disk = Disk(scratch, 400)
    disk.mount()
    ballast = os.path.join(disk.mount_point, "ballast")
    run("fallocate", "-l", "150M", ballast)
    directory = os.path.join(disk.mount_point, "log")
    writer = Writer(options, directory, 256, 1024, "--reopen")
    deadline = time.monotonic() + 120
    while writer.failure is None and writer.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    first, at = writer.failure, writer.count
    time.sleep(2)
    while_full, tail = writer.count - at, writer.failure
    os.unlink(ballast)
    freed = writer.count
    time.sleep(4)
    print(f"full: {at} acked, then: {first}; {while_full} more while full; last error: {tail}")
    print(f"  with room again: {writer.count - freed} acked by the same process")
    writer.stop()
    there, lost, wrong, _ = verify(options, directory, 1024, writer.acked)
    print(f"  at the end: {writer.count} acked, {there} there, {lost} lost {wrong or ''}")
    disk.unmount()
    disk.remove()


def broken(options, scratch):
    """The disk below fails: its image lies on a tmpfs that runs full."""
    small = os.path.join(scratch, "small")
    os.makedirs(small, exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", "size=96M", "tmpfs", small)
    disk = Disk(small, 1024)
    try:
        disk.mount()
        directory = os.path.join(disk.mount_point, "log")
        writer = Writer(options, directory, 256, 1024)
        deadline = time.monotonic() + 60
        while writer.failure is None and writer.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        writer.stop()
        print(f"broken: {writer.count} acked, then: {writer.failure}")
        disk.unmount()
        # Room again, as if the disk had been replaced: what was acked must be on it.
        run("mount", "-o", "remount,size=1200M", small)
        subprocess.run(["e2fsck", "-fy", disk.device], capture_output=True)
        disk.mount()
        there, lost, wrong, _ = verify(options, directory, 1024, writer.acked)
        print(f"  after repair: {there} there, {lost} lost {wrong or ''}")
        disk.unmount()
    finally:
        disk.remove()
        run("umount", small)


def fill(options, directory, records, size):
    """A log that was killed, not closed."""
    shutil.rmtree(directory, ignore_errors=True)
    command = bench(options, "fill", directory, size) + ["--records", str(records), "--hold"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.kill()
    process.wait()


def damage(options, scratch):
    """Bytes of a fjall journal that never reached the disk, or changed there. Needs no root."""
    directory = os.path.join(scratch, "log")
    page = 4096
    for size, records in [(128, 5000), (1024, 5000), (16384, 3000)]:
        fill(options, directory, records, size)
        journal = os.path.join(directory, "0.jnl")
        with open(journal, "rb") as file:
            whole = file.read()
        end = len(whole.rstrip(b"\0"))
        batch = end * 1000 // records
        found = {}

        def judge(what, damaged):
            with open(journal, "wb") as file:
                file.write(damaged)
            there, _, wrong, _ = verify(options, directory, size, {})
            if wrong:
                outcome = "refuses to open"
            elif there >= records - 1000:
                outcome = "all but at most the last batch there"
            else:
                outcome = "ACKED RECORDS MISSING WITHOUT A WORD"
            key = f"{what}: {outcome}"
            found[key] = found.get(key, 0) + 1

        for _ in range(options.cuts):
            damaged = bytearray(whole)
            holes = random.choice([0.01, 0.1, 0.5])
            for number in range((end - batch) // page + 1, end // page + 1):
                if random.random() < holes:
                    damaged[number * page:(number + 1) * page] = bytes(page)
            judge("pages of the last batch unwritten", damaged)
            for what, first, last in [("the last batch", end - batch + page, end),
                                      ("an earlier batch", 0, end - 2 * batch)]:
                damaged = bytearray(whole)
                damaged[random.randrange(first, last)] ^= 1 << random.randrange(8)
                judge(f"a bit flipped in {what}", damaged)
            damaged = bytearray(whole)
            number = random.randrange(0, (end - 2 * batch) // page)
            damaged[number * page:(number + 1) * page] = bytes(page)
            judge("a page zeroed in an earlier batch", damaged)
        for outcome, count in sorted(found.items()):
            print(f"{options.engine}, {size} B, {outcome}: {count} times")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the built binary")
    parser.add_argument("fault", choices=["cuts", "full", "broken", "damage"])
    parser.add_argument("--engine", required=True)
    parser.add_argument("--cuts", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # In a mount namespace of our own: one that others could copy would keep a dead file system alive.
    if options.fault != "damage" and "LANEWAY_OWN_MOUNTS" not in os.environ:
        os.environ["LANEWAY_OWN_MOUNTS"] = "yes"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        {"cuts": cuts, "full": full, "broken": broken, "damage": damage}[options.fault](options, scratch)


if __name__ == "__main__":
    main()
