//! relay against segments made by hand: everything that a peer may say, and an ordinary one rarely does.

mod busy;
mod early;
mod ends;
mod greeted;
mod order;
mod overlap;
mod probes;
mod telling;
mod terms;
mod urgent;
mod vanished;
mod window;

use busy::*;
use early::*;
use ends::*;
use greeted::*;
use order::*;
use overlap::*;
use probes::*;
use terms::*;
use urgent::*;
use vanished::*;
use window::*;

/// Makes a test of every case under every engine, named `engine::case`.
macro_rules! segments {
    ($play:ident in $place:ident: $($case:ident),+ $(,)?) => {
        mod $place {
            mod sockmap { $( segments!(@ $play Sockmap $case); )+ }
            mod splice { $( segments!(@ $play Splice $case); )+ }
            mod copy { $( segments!(@ $play Copy $case); )+ }
        }
    };
    (@ $play:ident $engine:ident $case:ident) => {
        #[test]
        fn $case() -> ::anyhow::Result<()> {
            ::relay_tests::rawtcp::$play(
                concat!(module_path!(), "::", stringify!($case)),
                ::relay_tests::record::Engine::$engine,
                crate::$case,
            )
        }
    };
}

segments! { play in plain:
    a_probe_adds_no_bytes,
    a_repeated_head,
    a_repeated_head_of_garbage,
    a_repeated_header,
    a_reset_behind_bytes,
    a_reset_behind_the_fin,
    a_reset_in_mid_stream,
    a_segment_of_header_and_bytes,
    an_urgent_byte_takes_no_others_along,
    bytes_with_the_handshake,
    bytes_with_the_syn_ack,
    client_vanishes,
    fin_before_its_bytes,
    fin_with_repeated_bytes,
    holes_filled_later,
    large_overlaps,
    many_urgent_bytes_take_no_others_along,
    overlaps_before_accept,
    random_large_cuts,
    random_small_cuts,
    random_cuts_from_upstream,
    random_cuts_to_a_late_reader,
    silly_windows,
    tiny_segments_to_the_client,
    urgent_byte_and_fin_before_accept,
    with_and_without_options,
    zero_window,
}

segments! { play_offloaded in offloaded:
    repeats_become_one_segment,
}
