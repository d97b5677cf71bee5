//! Reports the server's state to the process that started it, as systemd expects of services with `Type=notify`
//! (`sd_notify(3)`): a datagram to the socket that the environment names.

/// Sends a state to that process, if it gave a socket. The server continues if this fails.
#[cfg(unix)]
pub(super) fn tell(state: &str) {
    use std::os::unix::net::UnixDatagram;
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let send = || {
        let socket = UnixDatagram::unbound()?;
        // A process that does not read must not block the server.
        socket.set_nonblocking(true)?;
        // A name that starts with `@` is abstract, not a path.
        #[cfg(target_os = "linux")]
        if let Some(name) = path.to_str().and_then(|path| path.strip_prefix('@')) {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            return socket.send_to_addr(state.as_bytes(), &address);
        }
        socket.send_to(state.as_bytes(), &path)
    };
    if let Err(error) = send() {
        tracing::warn!(%error, state, "cannot write to NOTIFY_SOCKET");
    }
}

#[cfg(not(unix))]
pub(super) fn tell(_: &str) {}
