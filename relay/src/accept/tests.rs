//! What accept is held to.
