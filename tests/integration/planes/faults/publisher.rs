//! A publisher that is a process, so that it can be killed and frozen.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::processes;

/// The variable that makes a test of this binary a publisher.
pub(super) const PLAN: &str = "DYNAMO_TEST_PUBLISHER";
/// What its answers begin with: a test prints other lines, too.
pub(super) const ANSWER: &str = "@publisher ";
/// The longest a process may take for an answer; millions of blocks are published meanwhile.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);

/// What is published.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The worker whose cache it is, whichever process publishes it.
    pub(super) worker_id: u64,
    /// Blocks the cache holds when it is full.
    pub(super) blocks: usize,
    /// Events of one block each.
    pub(super) events_per_second: usize,
    /// How long its records outlive it.
    pub(super) ttl: Option<Duration>,
    /// The planes, as `DYN_*` variables.
    pub(super) planes: Vec<(String, String)>,
}

/// What a publisher has published, at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) last_event_id: u64,
    pub(super) digest: String,
    pub(super) blocks: u64,
    pub(super) events: u64,
    pub(super) dropped_messages: u64,
    pub(super) dropped_calls: u64,
}

pub(super) struct Publisher {
    plan: Plan,
    child: Child,
    orders: ChildStdin,
    answers: mpsc::Receiver<Value>,
    /// Events that processes before it have said they published, and it itself.
    events: [u64; 2],
}

impl Publisher {
    pub(super) fn start(plan: Plan) -> Self {
        let told = json!({"worker_id": plan.worker_id, "blocks": plan.blocks, "events_per_second": plan.events_per_second, "ttl_ms": plan.ttl.map(|ttl| ttl.as_millis() as u64)});
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "planes::faults::load::publishes_as_told", "--ignored", "--nocapture"]);
        command.env_clear().envs(plan.planes.iter().cloned()).env(PLAN, told.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (said, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Some(answer) = line.strip_prefix(ANSWER) else { continue };
                // Nobody waits any more where the test has ended.
                let _ = said.send(serde_json::from_str(answer).unwrap());
            }
        });
        Self { plan, child, orders, answers, events: [0; 2] }
    }

    pub(super) fn worker_id(&self) -> String {
        self.plan.worker_id.to_string()
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Fills the cache as fast as it can.
    pub(super) fn fill(&mut self) -> Report {
        self.tell("fill")
    }

    /// Events flow from now on.
    pub(super) fn flow(&mut self) -> Report {
        self.tell("flow")
    }

    /// No event is published after those of the report.
    pub(super) fn pause(&mut self) -> Report {
        self.tell("pause")
    }

    /// Events go on flowing.
    pub(super) fn report(&mut self) -> Report {
        self.tell("tell")
    }

    fn tell(&mut self, order: &str) -> Report {
        writeln!(self.orders, "{order}").unwrap();
        let answer = self.answers.recv_timeout(ANSWERS_WITHIN).expect("the publisher answers");
        let number = |name: &str| answer[name].as_u64().unwrap();
        self.events[1] = number("events");
        Report {
            last_event_id: number("last_event_id"),
            digest: answer["digest"].as_str().unwrap().to_owned(),
            blocks: number("blocks"),
            events: self.events.iter().sum(),
            dropped_messages: number("dropped_messages"),
            dropped_calls: number("dropped_calls"),
        }
    }

    /// SIGKILL; another process takes its place, with an empty cache.
    pub(super) fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let before: u64 = self.events.iter().sum();
        *self = Self::start(self.plan.clone());
        self.events[0] = before;
    }

    pub(super) fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
    }

    pub(super) fn thaw(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        processes::resident_bytes(self.child.id())
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // Also a frozen one ends.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
