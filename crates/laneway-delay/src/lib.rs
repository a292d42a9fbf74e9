//! Delayed messages.
