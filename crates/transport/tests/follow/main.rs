//! A rank on the event plane end to end: real sockets of both planes, the real feed, the real index, and publishers that follow a
//! script. Expected block counts come from what was scripted, not from the code under test.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod faults;
mod recovery;
mod support;
