//! What relay shows of itself while it runs, and how it is steered.

mod metrics;
mod page;
mod steering;
mod top;
mod upstreams;
