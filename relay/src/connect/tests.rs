//! What connect is held to.
