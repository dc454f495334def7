//! Publishers that come and go leave nothing behind.

use std::{fs, time::Duration};

use transport::discovery::{Backend, MemStore};
use worker::{KvEventPublisher, KvPublisherOptions, LoadPublisher, Runtime, RuntimeConfig};

use crate::support::{SIZE, stored};

/// Threads, open files, and resident memory in KiB.
fn usage() -> (usize, usize, usize) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let figure = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok()).unwrap();
    (figure("Threads:"), fs::read_dir("/proc/self/fd").unwrap().count(), figure("VmRSS:"))
}

async fn cycle(runtime: &Runtime) {
    let options = KvPublisherOptions { enable_local_indexer: true, ..KvPublisherOptions::new(SIZE) };
    let component = runtime.component("backend");
    let publisher = KvEventPublisher::new(&component, options).await.unwrap();
    let load = LoadPublisher::new(&component, None).await.unwrap();
    publisher.publish_stored(stored(None, 0..1000)).unwrap();
    publisher.shutdown(Duration::from_secs(5)).await;
    load.shutdown(Duration::from_secs(5)).await;
}

/// Alone in its process: other tests have threads and files of their own.
#[test]
fn four_hundred_lives_leave_threads_files_and_memory_as_they_were() {
    if std::env::var_os("WORKER_CYCLES").is_none() {
        let binary = std::env::current_exe().unwrap();
        let name = "cycles::four_hundred_lives_leave_threads_files_and_memory_as_they_were";
        let mut child = std::process::Command::new(binary);
        let status = child.args(["--exact", name, "--test-threads", "1"]).env("WORKER_CYCLES", "1").status().unwrap();
        assert!(status.success());
        return;
    }
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async {
        let runtime = Runtime::start(RuntimeConfig::local(Backend::Mem(MemStore::new()))).await.unwrap();
        for _ in 0..40 {
            cycle(&runtime).await;
        }
        let before = usage();
        for _ in 0..400 {
            cycle(&runtime).await;
        }
        let after = usage();
        println!("threads, files, KiB: {before:?} before, {after:?} after");
        // A thread for blocking work more or less, and a socket that the kernel is about to close.
        assert!(after.0 <= before.0 + 4, "threads {} before, {} after", before.0, after.0);
        assert!(after.1 <= before.1 + 8, "files {} before, {} after", before.1, after.1);
        assert!(after.2 <= before.2 + 8 * 1024, "memory {} KiB before, {} KiB after", before.2, after.2);
        runtime.shutdown(Duration::from_secs(5)).await;
    });
}
