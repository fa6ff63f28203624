pub(crate) struct Redirection {
    pub(crate) slot: u16,
    pub(crate) host: String,
    pub(crate) port: u16,
}
pub(crate) struct Malformed;
pub(crate) fn parse(text: &[u8]) -> Option<Result<Redirection, Malformed>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut w = text.split(' ');
    if !matches!(w.next(), Some("MOVED" | "ASK")) {
        return None;
    }
    let slot = w.next()?.parse().ok()?;
    let (host, port) = w.next()?.rsplit_once(':')?;
    Some(Ok(Redirection { slot, host: host.to_owned(), port: port.parse().ok()? }))
}
