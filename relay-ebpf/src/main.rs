//! The entry points that the kernel calls, and nothing else.
#![no_std]
#![no_main]

mod backlog;
mod maps;
mod verdict;

use aya_ebpf::{macros::stream_verdict, programs::SkBuffContext};

/// Judges one segment of a socket in the sockmap. Minimum kernel version: 5.10, which judges without a parser.
#[stream_verdict]
pub fn verdict(context: SkBuffContext) -> u32 {
    verdict::judge(&context)
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
