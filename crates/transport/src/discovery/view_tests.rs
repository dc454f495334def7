//! The view against its promises.
