//! Keys of the tables that datagrams are looked up in.

use core::hash::{Hash, Hasher};
use core::net::{IpAddr, SocketAddr};

/// A socket address and a peer id, in 24 bytes that hash as three words, or as one for IPv4. A
/// `SocketAddr` takes 32 and hashes field by field.
///
/// IPv4 addresses and the IPv6 addresses that stand for them are the same here, as they are for the
/// kernel. The flow label says nothing about who sent a datagram and is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key([u32; 6]);

impl Key {
    pub(crate) fn new(address: SocketAddr, id: u16) -> Self {
        let (bits, scope) = match address {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped().to_bits(), 0),
            SocketAddr::V6(v6) => (v6.ip().to_bits(), v6.scope_id()),
        };
        let word = |shift: u32| (bits >> shift) as u32;
        let tail = u32::from(address.port()) << 16 | u32::from(id);
        Self([word(96), word(64), word(32), word(0), scope, tail])
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let [a, b, c, d, e, f] = self.0.map(u64::from);
        // An IPv4 address fits one word. The hasher counts words, so no longer key equals it.
        if (a, b, c, e) == (0, 0, 0xFFFF, 0) {
            return hasher.write_u64(d << 32 | f);
        }
        hasher.write_u64(a << 32 | b);
        hasher.write_u64(c << 32 | d);
        hasher.write_u64(e << 32 | f);
    }
}

/// Addresses that one stranger is likely to own all of: family and width, and the leading bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Block(u8, u64);

impl Block {
    /// An IPv4 address, or an IPv6 /64.
    pub(crate) fn of_ip(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self(32, ip.to_bits().into()),
            IpAddr::V6(ip) => Self(64, (ip.to_bits() >> 64) as u64),
        }
    }

    /// An IPv4 /24, or an IPv6 /48.
    pub(crate) fn prefix_of_ip(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self(24, u64::from(ip.to_bits()) >> 8),
            IpAddr::V6(ip) => Self(48, (ip.to_bits() >> 80) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6};

    #[test]
    fn keys_differ_in_everything_that_tells_senders_apart() {
        let v4 = |last: u8, port: u16| SocketAddr::from((Ipv4Addr::new(10, 0, 0, last), port));
        let v6 =
            |scope: u32, flow: u32| SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 7, flow, scope));
        let keys = [
            Key::new(v4(1, 1), 1),
            Key::new(v4(2, 1), 1),
            Key::new(v4(1, 2), 1),
            Key::new(v4(1, 1), 2),
            Key::new(v6(0, 0), 1),
            Key::new(v6(1, 0), 1),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|other| other != key), "{key:?}");
        }
        assert_eq!(Key::new(v6(0, 9), 1), keys[4], "the flow label is not part of an address");
        let mapped = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped(), 1));
        assert_eq!(Key::new(mapped, 1), keys[0]);
    }
}
