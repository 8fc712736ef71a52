//! What this host can do for each engine.
