//! One end of a connection, whose segments a test makes by hand.

use std::{
    fmt,
    net::SocketAddrV4,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use etherparse::TcpOptionElement;

use super::{
    tap::Tap,
    wire::{Header, Heard},
};
use crate::patience;

/// How long to listen before looking again at what is waited for.
const MOMENT: Duration = Duration::from_millis(20);

/// So many segments with bytes are acknowledged at once.
const ACK_EVERY: u32 = 16;

/// What the SYN says.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The first sequence number; that of the first byte is one more.
    pub first: u32,
    /// The largest segment to be sent here.
    pub mss: Option<u16>,
    /// The scale of windows.
    pub scale: Option<u8>,
    /// Whether selective acknowledgements are welcome.
    pub sack: bool,
    /// Whether segments carry time stamps.
    pub stamps: bool,
    /// The window, bytes.
    pub window: u32,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            first: 0x1234_5678,
            mss: Some(65495),
            scale: Some(7),
            sack: false,
            stamps: false,
            window: 1 << 20,
        }
    }
}

/// A segment to be said, placed by its offset in the own stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Say<'a> {
    /// Where its first byte belongs; negative is before the first byte.
    pub at: i64,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Flag FIN.
    pub fin: bool,
    /// Flag RST.
    pub rst: bool,
    /// The urgent pointer: the urgent byte is the one before it.
    pub urgent: Option<u16>,
}

/// A connection of this machine's kernel with nobody but the test.
pub struct Endpoint<'a> {
    tap: &'a Tap,
    local: SocketAddrV4,
    remote: SocketAddrV4,
    terms: Terms,
    /// The other side's first sequence number.
    theirs: u32,
    /// The clock in the last segment that came.
    clock: Option<u32>,
    begun: Instant,
    window: u32,
    scale: u8,
    silent: bool,
    pending: u32,
    acked: u64,
    their_scale: u8,
    their_window: u64,
    came: Vec<u8>,
    taken: usize,
    segments: u64,
    fin: bool,
    reset: bool,
}

impl<'a> Endpoint<'a> {
    /// Connects from `local` to `remote`, up to the SYN-ACK; what is said next completes the handshake.
    ///
    /// # Errors
    ///
    /// Fails when nobody answers.
    pub fn dial(
        tap: &'a Tap,
        local: SocketAddrV4,
        remote: SocketAddrV4,
        terms: Terms,
    ) -> Result<Self> {
        let mut new = Self::new(tap, local, remote, terms);
        new.synchronize(None)?;
        let answer = new.expect_syn(|heard| heard.from == remote && heard.to == local)?;
        ensure!(
            answer.header.ack == Some(terms.first.wrapping_add(1)),
            "not an answer: {answer:?}"
        );
        new.meet(&answer);
        Ok(new)
    }

    /// Waits for somebody to connect to `local`, and answers with the SYN-ACK.
    ///
    /// # Errors
    ///
    /// Fails when nobody comes.
    pub fn accept(tap: &'a Tap, local: SocketAddrV4, terms: Terms) -> Result<Self> {
        let mut new = Self::new(tap, local, local, terms);
        let call = new.expect_syn(|heard| heard.to == local)?;
        new.remote = call.header.from;
        new.meet(&call);
        new.synchronize(Some(call.header.seq.wrapping_add(1)))?;
        Ok(new)
    }

    fn new(tap: &'a Tap, local: SocketAddrV4, remote: SocketAddrV4, terms: Terms) -> Self {
        Self {
            tap,
            local,
            remote,
            terms,
            theirs: 0,
            clock: None,
            begun: Instant::now(),
            window: terms.window,
            scale: 0,
            silent: false,
            pending: 0,
            acked: 0,
            their_scale: 0,
            their_window: 0,
            came: Vec::new(),
            taken: 0,
            segments: 0,
            fin: false,
            reset: false,
        }
    }

    fn synchronize(&self, ack: Option<u32>) -> Result<()> {
        let mut options = Vec::new();
        options.extend(self.terms.mss.map(TcpOptionElement::MaximumSegmentSize));
        options.extend(self.terms.scale.map(TcpOptionElement::WindowScale));
        if self.terms.sack {
            options.push(TcpOptionElement::SelectiveAcknowledgementPermitted);
        }
        options.extend(self.stamp());
        let header = Header {
            seq: self.terms.first,
            ack,
            syn: true,
            window: u16::try_from(self.window).unwrap_or(u16::MAX),
            ..self.header()
        };
        self.tap.send(&header.write(&options, &[])?)
    }

    fn expect_syn(&self, ours: impl Fn(&Header) -> bool) -> Result<Heard> {
        patience::until("a SYN", || {
            while let Some(packet) = self.tap.receive(MOMENT)? {
                let heard = Heard::read(&packet)?;
                let heard = heard.filter(|heard| ours(&heard.header));
                if let Some(heard) = heard {
                    ensure!(!heard.header.rst, "refused");
                    if heard.header.syn {
                        return Ok(Some(heard));
                    }
                }
            }
            Ok(None)
        })
    }

    fn meet(&mut self, syn: &Heard) {
        self.theirs = syn.header.seq;
        self.clock = syn.clock.filter(|_| self.terms.stamps);
        self.their_window = syn.header.window.into();
        if let (Some(own), Some(theirs)) = (self.terms.scale, syn.scale) {
            (self.scale, self.their_scale) = (own, theirs);
        }
    }

    /// The own address: what relay calls the client.
    #[must_use]
    pub fn local(&self) -> String {
        self.local.to_string()
    }

    /// How many bytes of the own stream the other side has acknowledged; a FIN counts as one.
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Up to where the other side takes bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.acked + self.their_window
    }

    /// How many segments have come.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// How many bytes have come, in order.
    #[must_use]
    pub fn came(&self) -> u64 {
        self.came.len() as u64
    }

    /// Whether the other side's FIN has come, after all of its bytes.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.fin
    }

    /// Whether a reset has come.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.reset
    }

    /// The bytes that have come since this was last asked.
    pub fn take(&mut self) -> &[u8] {
        let taken = std::mem::replace(&mut self.taken, self.came.len());
        &self.came[taken..]
    }

    /// Never says anything again of its own accord.
    pub fn vanish(&mut self) {
        self.silent = true;
    }

    /// Offers this window from now on, and says so.
    ///
    /// # Errors
    ///
    /// Fails when the device is gone.
    pub fn open(&mut self, window: u32) -> Result<()> {
        self.window = window;
        self.acknowledge()
    }

    /// Says what has come, and the window.
    ///
    /// # Errors
    ///
    /// Fails when the device is gone.
    pub fn acknowledge(&mut self) -> Result<()> {
        self.say(Say {
            at: i64::try_from(self.acked)?,
            ..Say::default()
        })
    }

    /// Says a segment, whatever was said before.
    ///
    /// # Errors
    ///
    /// Fails when the device is gone.
    pub fn say(&mut self, say: Say<'_>) -> Result<()> {
        let offset = say.at as u32;
        let header = Header {
            seq: self.terms.first.wrapping_add(1).wrapping_add(offset),
            fin: say.fin,
            rst: say.rst,
            urgent: say.urgent,
            ..self.header()
        };
        let options: Vec<_> = self.stamp().into_iter().collect();
        self.pending = 0;
        self.tap.send(&header.write(&options, say.bytes)?)
    }

    /// Says bytes that belong at `at`.
    ///
    /// # Errors
    ///
    /// Fails when the device is gone.
    pub fn data(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.say(Say {
            at: i64::try_from(at)?,
            bytes,
            ..Say::default()
        })
    }

    /// Says bytes that belong at `at`, and that nothing comes after them.
    ///
    /// # Errors
    ///
    /// Fails when the device is gone.
    pub fn last(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.say(Say {
            at: i64::try_from(at)?,
            bytes,
            fin: true,
            ..Say::default()
        })
    }

    /// Says a reset that is valid when everything up to `at` has been received.
    ///
    /// # Errors
    ///
    /// Fails when the device is gone.
    pub fn reset(&mut self, at: usize) -> Result<()> {
        self.say(Say {
            at: i64::try_from(at)?,
            rst: true,
            ..Say::default()
        })
    }

    fn header(&self) -> Header {
        let expected = self
            .theirs
            .wrapping_add(1)
            .wrapping_add(self.came.len() as u32);
        Header {
            from: self.local,
            to: self.remote,
            seq: 0,
            ack: Some(expected.wrapping_add(self.fin.into())),
            window: u16::try_from(self.window >> self.scale).unwrap_or(u16::MAX),
            syn: false,
            fin: false,
            rst: false,
            urgent: None,
        }
    }

    fn stamp(&self) -> Option<TcpOptionElement> {
        let now = u32::try_from(self.begun.elapsed().as_millis()).unwrap_or(0);
        // Before the handshake there is nothing to echo.
        let echo = self.clock.unwrap_or(0);
        let stamps = self.terms.stamps && (self.clock.is_some() || self.theirs == 0);
        stamps.then_some(TcpOptionElement::Timestamp(now + 1, echo))
    }

    /// Listens until nothing has come for `wait`, and answers. Gives whether anything came.
    ///
    /// # Errors
    ///
    /// Fails when the device is gone, or a damaged segment comes.
    pub fn hear(&mut self, wait: Duration) -> Result<bool> {
        let mut any = false;
        let mut wait = wait;
        while let Some(packet) = self.tap.receive(wait)? {
            if let Some(heard) = Heard::read(&packet)? {
                let header = &heard.header;
                if (header.from, header.to) == (self.remote, self.local) {
                    self.note(&heard)?;
                    any = true;
                }
            }
            wait = Duration::ZERO;
        }
        if self.pending > 0 && !self.silent {
            self.acknowledge()?;
        }
        Ok(any)
    }

    /// Listens until something holds, and does `meanwhile` whenever nothing comes.
    ///
    /// # Errors
    ///
    /// Fails when it does not within [`patience::limit`], and with what `meanwhile` fails with.
    pub fn until(
        &mut self,
        what: &str,
        holds: impl Fn(&Self) -> bool,
        mut meanwhile: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let begun = Instant::now();
        while !holds(self) {
            if begun.elapsed() > patience::limit() {
                bail!("gave up waiting for {what}: {self:?}");
            }
            if !self.hear(MOMENT)? {
                meanwhile(self)?;
            }
        }
        Ok(())
    }

    /// Listens until something holds.
    ///
    /// # Errors
    ///
    /// Fails when it does not within [`patience::limit`].
    pub fn wait(&mut self, what: &str, holds: impl Fn(&Self) -> bool) -> Result<()> {
        self.until(what, holds, |_| Ok(()))
    }

    /// Listens until so many bytes are acknowledged.
    ///
    /// # Errors
    ///
    /// Fails when they are not within [`patience::limit`].
    pub fn wait_acked(&mut self, count: usize) -> Result<()> {
        let count = count as u64;
        self.wait(&format!("byte {count} to be acknowledged"), |this| {
            this.acked >= count
        })
    }

    fn note(&mut self, heard: &Heard) -> Result<()> {
        let header = &heard.header;
        self.segments += 1;
        if header.rst {
            self.reset = true;
            return Ok(());
        }
        if self.clock.is_some() {
            self.clock = heard.clock.or(self.clock);
        }
        if let Some(ack) = header.ack {
            let seen = self
                .terms
                .first
                .wrapping_add(1)
                .wrapping_add(self.acked as u32);
            let more = ack.wrapping_sub(seen) as i32;
            if more >= 0 {
                self.acked += u64::from(more.unsigned_abs());
                self.their_window = u64::from(header.window);
                if !header.syn {
                    self.their_window <<= self.their_scale;
                }
            }
        }
        let expected = self
            .theirs
            .wrapping_add(1)
            .wrapping_add(self.came.len() as u32);
        let known = expected.wrapping_sub(header.seq) as i32;
        let length = heard.bytes.len();
        if header.syn || length > 0 || header.fin || known != 0 {
            // A SYN again, bytes, or a probe of something known: all want an answer.
            self.pending += 1;
        }
        if !header.syn && known >= 0 && !self.fin {
            let known = known.unsigned_abs() as usize;
            if known <= length {
                self.came.extend_from_slice(&heard.bytes[known..]);
                self.fin = header.fin;
            }
        }
        if self.pending >= ACK_EVERY && !self.silent {
            self.acknowledge()?;
        }
        Ok(())
    }
}

impl fmt::Debug for Endpoint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("local", &self.local)
            .field("remote", &self.remote)
            .field("terms", &self.terms)
            .field("acked", &self.acked)
            .field("their_window", &self.their_window)
            .field("came", &self.came.len())
            .field("fin", &self.fin)
            .field("reset", &self.reset)
            .finish_non_exhaustive()
    }
}
