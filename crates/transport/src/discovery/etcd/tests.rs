//! Small parts.
