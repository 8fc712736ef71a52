//! Where the fields that the program reads are in this kernel's structures, from the kernel's own BTF.

use btf_rs::{Backend, Btf, BtfType, Struct, Type};

/// The kernel's description of its types. Minimum kernel version: 5.4, built with `CONFIG_DEBUG_INFO_BTF`.
pub(super) const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offsets {
    /// `struct tcp_sock`, `write_seq`.
    pub(super) write_seq: u32,
    /// `struct tcp_sock`, `copied_seq`.
    pub(super) copied_seq: u32,
    /// `struct sock`, `sk_wmem_queued`.
    pub(super) wmem_queued: u32,
    /// `struct sock`, `sk_sndbuf`.
    pub(super) sndbuf: u32,
}

/// Why the offsets are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoOffsets {
    #[error("{BTF} cannot be read ({0}); sockmap needs a kernel built with CONFIG_DEBUG_INFO_BTF")]
    Btf(btf_rs::Error),
    #[error("the kernel's BTF has no {0}.{1}")]
    Field(&'static str, &'static str),
}

impl Offsets {
    /// Reads the running kernel's. The BTF is mapped, not read: as objects it would cost 25 MB.
    pub(super) fn read() -> Result<Self, NoOffsets> {
        let btf = Btf::from_file_with_backend(BTF, Backend::Mmap)
            .or_else(|_| Btf::from_file(BTF))
            .map_err(NoOffsets::Btf)?;
        Ok(Self {
            write_seq: offset(&btf, "tcp_sock", "write_seq")?,
            copied_seq: offset(&btf, "tcp_sock", "copied_seq")?,
            wmem_queued: offset(&btf, "sock", "sk_wmem_queued")?,
            sndbuf: offset(&btf, "sock", "sk_sndbuf")?,
        })
    }
}

fn offset(btf: &Btf, name: &'static str, field: &'static str) -> Result<u32, NoOffsets> {
    let missing = || NoOffsets::Field(name, field);
    let types = btf.resolve_types_by_name(name).map_err(|_| missing())?;
    let mut structs = types.iter().filter_map(|kind| match kind {
        Type::Struct(found) => Some(found),
        _ => None,
    });
    structs
        .find_map(|found| find(btf, found, field))
        .map(|bits| bits / 8)
        .ok_or_else(missing)
}

/// The offset of `field` in bits, also in anonymous members.
fn find(btf: &Btf, within: &Struct, field: &str) -> Option<u32> {
    within.members.iter().find_map(|member| {
        let name = btf.resolve_name(member).unwrap_or_default();
        if name == field {
            return Some(member.bit_offset());
        }
        if !name.is_empty() {
            return None;
        }
        let inner = match btf.resolve_chained_type(member).ok()? {
            Type::Struct(inner) | Type::Union(inner) => inner,
            _ => return None,
        };
        debug_assert!(
            member.bitfield_size().unwrap_or(0) == 0,
            "{:?}",
            member.get_name_offset()
        );
        Some(member.bit_offset() + find(btf, &inner, field)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_tells_four_different_offsets() {
        let offsets = Offsets::read().unwrap();
        assert!(offsets.wmem_queued != offsets.sndbuf);
        // A tcp_sock begins with a sock, which has both.
        let within_sock = offsets.wmem_queued.max(offsets.sndbuf);
        assert!(offsets.write_seq.min(offsets.copied_seq) > within_sock);
        assert!(offsets.write_seq != offsets.copied_seq);
    }
}
