//! The flow records as the controller sees them: mapped memory, read and written without system calls.

use std::{
    io,
    mem::{offset_of, size_of},
    os::fd::AsFd,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use relay_common::flow::{Flow, Judged, Steered};

use crate::sys::shared::Shared;

/// All flow records.
#[derive(Debug)]
pub(super) struct Ledger {
    memory: Shared,
}

impl Ledger {
    /// Maps the records of `slots` flows.
    pub(super) fn map(flows: impl AsFd, slots: u32) -> io::Result<Self> {
        let memory = Shared::map(flows, slots as usize * size_of::<Flow>())?;
        Ok(Self { memory })
    }

    /// The record of the flow from `slot`.
    pub(super) fn entry(&self, slot: u32) -> Entry<'_> {
        Entry {
            memory: &self.memory,
            start: slot as usize * size_of::<Flow>(),
        }
    }
}

/// One flow record.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    memory: &'a Shared,
    start: usize,
}

const JUDGED: usize = offset_of!(Flow, judged);
const STEERED: usize = offset_of!(Flow, steered);

impl<'a> Entry<'a> {
    /// Makes the record that of a new flow, its gate closed. Only for a slot whose socket is not in the map.
    pub(super) fn reset(self) {
        for word in (0..size_of::<Flow>()).step_by(8) {
            self.memory
                .u64_at(self.start + word)
                .store(0, Ordering::Relaxed);
        }
        self.set_gate(relay_common::flow::CLOSED);
    }

    /// Bytes that the program redirected.
    pub(super) fn redirected(self) -> u64 {
        self.u64(JUDGED + offset_of!(Judged, redirected))
            .load(Ordering::Acquire)
    }

    /// Bytes that the program left to the controller.
    pub(super) fn passed(self) -> u64 {
        self.u64(JUDGED + offset_of!(Judged, passed))
            .load(Ordering::Acquire)
    }

    /// Bytes cut off because they had been judged before.
    pub(super) fn trimmed(self) -> u32 {
        self.u32(JUDGED + offset_of!(Judged, trimmed))
            .load(Ordering::Relaxed)
    }

    /// What should not have happened.
    pub(super) fn faults(self) -> u32 {
        self.u32(JUDGED + offset_of!(Judged, faults))
            .load(Ordering::Relaxed)
    }

    /// Bytes that the controller has relayed.
    pub(super) fn relayed(self) -> u64 {
        self.relayed_word().load(Ordering::Relaxed)
    }

    /// Counts bytes that the target's socket has taken from the controller.
    pub(super) fn add_relayed(self, bytes: u64) {
        self.relayed_word()
            .store(self.relayed() + bytes, Ordering::Release);
    }

    /// Bytes that are on their way to the target or there.
    pub(super) fn given(self) -> u64 {
        self.redirected() + self.relayed()
    }

    /// Bytes that wait for the controller.
    pub(super) fn waiting(self) -> u64 {
        self.passed() - self.relayed()
    }

    /// Opens, holds or closes the gate.
    pub(super) fn set_gate(self, gate: u32) {
        self.u32(STEERED + offset_of!(Steered, gate))
            .store(gate, Ordering::Release);
    }

    /// Takes note of every question so far, so that the program may ask anew.
    pub(super) fn answer(self) {
        let asked = self
            .u32(JUDGED + offset_of!(Judged, asked))
            .load(Ordering::Acquire);
        self.u32(STEERED + offset_of!(Steered, answered))
            .store(asked, Ordering::Release);
    }

    fn relayed_word(self) -> &'a AtomicU64 {
        self.u64(STEERED + offset_of!(Steered, relayed))
    }

    fn u64(self, offset: usize) -> &'a AtomicU64 {
        self.memory.u64_at(self.start + offset)
    }

    fn u32(self, offset: usize) -> &'a AtomicU32 {
        self.memory.u32_at(self.start + offset)
    }
}
