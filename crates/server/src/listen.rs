//! Which sockets to open for a listener section.

use std::net::SocketAddr;

use crate::config::{Listener, resolve_addr};

/// The protocol of a listener below the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Plain or TLS byte stream.
    Tcp,
    /// WebSocket, plain or TLS.
    WebSocket,
    /// KCP over UDP.
    Kcp,
    /// ENet over UDP.
    Enet,
}

/// One socket to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenerPlan {
    /// The key that asked for it: `addr` or `extra`.
    pub(crate) key: &'static str,
    /// Address to bind.
    pub(crate) addr: SocketAddr,
    /// Protocol of the listener.
    pub(crate) transport: Transport,
    /// True if the stream is encrypted.
    pub(crate) tls: bool,
    /// World that its connections enter; empty for the default one.
    pub(crate) world: String,
}

impl ListenerPlan {
    /// The URL scheme people know for it.
    #[must_use]
    pub(crate) fn scheme(&self) -> &'static str {
        match (self.transport, self.tls) {
            (Transport::Tcp, false) => "tcp",
            (Transport::Tcp, true) => "tls",
            (Transport::WebSocket, false) => "ws",
            (Transport::WebSocket, true) => "wss",
            (Transport::Kcp, _) => "kcp",
            (Transport::Enet, _) => "enet",
        }
    }
}

/// The sockets that a section asks for.
///
/// # Errors
/// The key at fault and a phrase with the reason.
pub(crate) fn plan(listener: &Listener) -> Result<Vec<ListenerPlan>, Vec<(&'static str, String)>> {
    let (mut plans, mut wrong) = (Vec::new(), Vec::new());
    if !listener.addr.is_empty() {
        let transport = match listener.transport.as_str() {
            "ws" => Transport::WebSocket,
            "kcp" => Transport::Kcp,
            "enet" => Transport::Enet,
            _ => Transport::Tcp,
        };
        if matches!(transport, Transport::Kcp | Transport::Enet) && listener.tls {
            let why =
                "KCP and ENet have no TLS; use tcp or ws, or `enet_key_file` or `enet_dtls_cert` for ENet";
            wrong.push(("tls", why.to_owned()));
        }
        match resolve_addr(&listener.addr) {
            Ok(addr) => plans.push(ListenerPlan {
                key: "addr",
                addr,
                transport,
                tls: listener.tls,
                world: listener.world.clone(),
            }),
            Err(why) => wrong.push(("addr", why)),
        }
    }
    for url in &listener.extra {
        match parse_url(url) {
            Ok(plan) => plans.push(plan),
            Err(why) => wrong.push(("extra", format!("`{url}`: {why}"))),
        }
    }
    if wrong.is_empty() { Ok(plans) } else { Err(wrong) }
}

/// The value of the key of `plan` with which the system chooses that port and every other address
/// stays.
pub(crate) fn with_free_port(listener: &Listener, plan: &ListenerPlan) -> String {
    let free = SocketAddr::new(plan.addr.ip(), 0);
    if plan.key == "addr" {
        return free.to_string();
    }
    let urls = listener.extra.iter().map(|url| match parse_url(url) {
        Ok(parsed) if parsed == *plan && plan.world.is_empty() => format!("{}://{free}", plan.scheme()),
        Ok(parsed) if parsed == *plan => format!("{}://{free}/{}", plan.scheme(), plan.world),
        _ => url.clone(),
    });
    urls.collect::<Vec<_>>().join(",")
}

fn parse_url(url: &str) -> Result<ListenerPlan, String> {
    let (scheme, addr) = url.split_once("://").ok_or("expected transport://host:port")?;
    let (transport, tls) = match scheme {
        "tcp" => (Transport::Tcp, false),
        "tls" => (Transport::Tcp, true),
        "ws" => (Transport::WebSocket, false),
        "wss" => (Transport::WebSocket, true),
        "kcp" => (Transport::Kcp, false),
        "enet" => (Transport::Enet, false),
        other => return Err(format!("`{other}` is not one of tcp, tls, ws, wss, kcp, enet")),
    };
    let (addr, world) = addr.split_once('/').unwrap_or((addr, ""));
    Ok(ListenerPlan { key: "extra", addr: resolve_addr(addr)?, transport, tls, world: world.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_transport_and_encryption() {
        let plan = parse_url("wss://127.0.0.1:443").unwrap();
        assert_eq!((plan.transport, plan.tls, plan.scheme()), (Transport::WebSocket, true, "wss"));
        let plan = parse_url("kcp://127.0.0.1:443/hub").unwrap();
        assert_eq!((plan.transport, plan.world.as_str()), (Transport::Kcp, "hub"));
        assert!(parse_url("quic://127.0.0.1:1").unwrap_err().contains("quic"));
        assert!(parse_url("127.0.0.1:1").is_err());
    }

    #[test]
    fn a_taken_port_among_several_is_replaced_alone() {
        let loader = crate::config::Loader::new();
        let urls = "ws://127.0.0.1:7001,enet://127.0.0.1:7002";
        let config = loader.flag("test", "gateway.clients.extra", urls).load().unwrap();
        let listener = &config.settings.clients;
        let plans = plan(listener).unwrap();
        assert_eq!(with_free_port(listener, &plans[0]), "127.0.0.1:0");
        assert_eq!(with_free_port(listener, &plans[2]), "ws://127.0.0.1:7001,enet://127.0.0.1:0");
    }
}
