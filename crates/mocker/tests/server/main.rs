//! The simulated engine server as its users meet it: over HTTP, over event sockets, as a process.

mod binary;
mod events;
mod faults;
mod http;
mod support;
