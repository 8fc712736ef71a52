//! One file per thing that can happen to a connection. Each function is one story, told for every engine; the number is
//! that of the scenario in the project's list.

mod bulk;
mod churn;
mod crosstalk;
mod drain;
mod early_bytes;
mod early_fin;
mod families;
mod fin_after_bytes;
mod half_close;
mod idle;
mod killed;
mod many_idle;
mod mptcp;
mod ping_pong;
mod real;
mod reload;
mod reset;
mod stalled_reader;
mod starved;
mod stopped;
mod tail;
mod tiny_segments;

pub use bulk::*;
pub use churn::*;
pub use crosstalk::*;
pub use drain::*;
pub use early_bytes::*;
pub use early_fin::*;
pub use families::*;
pub use fin_after_bytes::*;
pub use half_close::*;
pub use idle::*;
pub use killed::*;
pub use many_idle::*;
pub use mptcp::*;
pub use ping_pong::*;
pub use real::*;
pub use reload::*;
pub use reset::*;
pub use stalled_reader::*;
pub use starved::*;
pub use stopped::*;
pub use tail::*;
pub use tiny_segments::*;
