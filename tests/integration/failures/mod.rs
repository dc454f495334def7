//! What goes wrong in a fleet, and what a client sees of it: before the first byte a request moves to another worker,
//! after it a stream ends in good form (rule 15). After each failure every gauge is back at zero.

mod before_first_byte;
mod clients;
mod down;
mod drain;
mod frozen;
mod membership;
mod mid_stream;
mod raw;
mod reset;
mod rig;
mod sse;
mod storm;
