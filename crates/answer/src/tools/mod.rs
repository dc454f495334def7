//! Parsers of the calls of tools that a model writes into its text.
