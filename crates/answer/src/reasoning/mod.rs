//! Parsers of what a model thinks before it answers.
