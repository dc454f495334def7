//! `dynamo-frontend`: reads the command line and runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    dynamo_frontend::run::main()
}
