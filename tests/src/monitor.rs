//! A server's executed commands, as MONITOR reports them.
//!
//! The record is complete between two moments that the test chooses.

use std::io;
use std::thread::JoinHandle;

use crate::cli::{Cli, Reply};

/// A running MONITOR. [`stop`](Self::stop) returns all commands that the server executed since it began.
///
/// The server buffers unread output. Keep the observed stretch to some ten thousand commands, or read it continuously with
/// [`follow`](Self::follow).
#[derive(Debug)]
pub struct Monitor {
    feed: Cli,
    /// A second connection, whose sentinel command marks the end of the stretch.
    marker: Cli,
}

impl Monitor {
    pub(crate) fn start(mut feed: Cli, marker: Cli) -> io::Result<Self> {
        match feed.query(&["MONITOR"])? {
            Reply::Status(ok) if ok == "OK" => Ok(Self { feed, marker }),
            other => Err(io::Error::other(format!("MONITOR refused: {other}"))),
        }
    }

    /// Returns all commands that the server has executed since MONITOR began, in the server's order.
    ///
    /// The list is complete, because its last command is the monitor's own, sent at the call of this method.
    ///
    /// # Errors
    ///
    /// A broken connection, or a line in an unknown form.
    pub fn stop(mut self) -> io::Result<Vec<Observed>> {
        self.marker.query(&["ECHO", SENTINEL])?;
        let mut observed = Vec::new();
        while let Some(entry) = next(&mut self.feed, |_| true)? {
            observed.push(entry);
        }
        Ok(observed)
    }

    /// Passes every command of a client to `sink` as it arrives, on a separate thread, without the commands of scripts. The stretch may
    /// have any length, if a command arrives at least every ten seconds.
    #[must_use = "a broken feed is only told when it is stopped"]
    pub fn follow(self, mut sink: impl FnMut(Observed) + Send + 'static) -> Following {
        let Self { mut feed, marker } = self;
        let thread = std::thread::spawn(move || {
            while let Some(entry) = next(&mut feed, |line| !line.contains(FROM_SCRIPT))? {
                sink(entry);
            }
            Ok(())
        });
        Following { marker, thread }
    }
}

/// A MONITOR that a thread reads; see [`Monitor::follow`].
#[derive(Debug)]
pub struct Following {
    marker: Cli,
    thread: JoinHandle<io::Result<()>>,
}

impl Following {
    /// Returns when `sink` has got all commands that were executed before this call.
    ///
    /// # Errors
    ///
    /// A broken connection, or a line in an unknown form.
    pub fn stop(mut self) -> io::Result<()> {
        self.marker.query(&["ECHO", SENTINEL])?;
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Returns the next command whose line `wanted` accepts, or `None` at the end of the stretch.
fn next(feed: &mut Cli, wanted: impl Fn(&str) -> bool) -> io::Result<Option<Observed>> {
    loop {
        let line = feed.read_reply()?.to_string();
        if !wanted(&line) {
            continue;
        }
        let entry = Observed::parse(&line)
            .ok_or_else(|| io::Error::other(format!("not a MONITOR line: {line:?}")))?;
        let is_end = entry.args.get(1).is_some_and(|arg| arg == SENTINEL);
        return Ok((!is_end).then_some(entry));
    }
}

/// An executed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The client's address, or `lua` if a script called the command.
    pub client: String,
    /// The command's name, as sent, and its arguments.
    pub args: Vec<String>,
}

impl Observed {
    /// Returns true if a script, not a client, issued the command.
    #[must_use]
    pub fn from_script(&self) -> bool {
        self.client == "lua"
    }

    /// Returns the command's name in upper case.
    #[must_use]
    pub fn name(&self) -> String {
        self.args.first().map_or_else(String::new, |name| name.to_uppercase())
    }

    /// Parses `1700000000.123456 [0 127.0.0.1:50000] "GET" "key"`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once(" [")?;
        let (database_and_client, rest) = rest.split_once("] ")?;
        let (_, client) = database_and_client.split_once(' ')?;
        Some(Self { client: client.to_owned(), args: parse_quoted(rest)? })
    }
}

/// Splits `"a" "b\"c"`. Escapes are the server's: `\"`, `\\`, `\n`, `\r`, `\t`, `\a`, `\b`, `\xHH`.
fn parse_quoted(text: &str) -> Option<Vec<String>> {
    let mut args = Vec::new();
    let mut chars = text.chars();
    loop {
        match chars.next() {
            None => return Some(args),
            Some(' ') => {}
            Some('"') => {
                let mut arg = String::new();
                loop {
                    match chars.next()? {
                        '"' => break,
                        '\\' => arg.push(match chars.next()? {
                            'n' => '\n',
                            'r' => '\r',
                            't' => '\t',
                            'a' => '\x07',
                            'b' => '\x08',
                            'x' => char::from(
                                u8::from_str_radix(&String::from_iter([chars.next()?, chars.next()?]), 16)
                                    .ok()?,
                            ),
                            literal => literal,
                        }),
                        plain => arg.push(plain),
                    }
                }
                args.push(arg);
            }
            Some(_) => return None,
        }
    }
}

/// Part of every line about a script's command. Other lines contain it only inside an argument.
const FROM_SCRIPT: &str = " lua] ";

/// The text of the sentinel command; tests never send it.
const SENTINEL: &str = "wheellock-tests: end of the observed stretch";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_and_script_lines_are_parsed() {
        let line =
            Observed::parse(r#"1700000000.123456 [0 unix:/tmp/a b.sock] "SET" "k\"\\" "\x00\r\n""#).unwrap();
        assert_eq!(
            line,
            Observed {
                client: "unix:/tmp/a b.sock".into(),
                args: vec!["SET".into(), "k\"\\".into(), "\0\r\n".into()]
            }
        );
        let line = Observed::parse(r#"1700000000.123456 [0 lua] "hincrby" "k" "" "1""#).unwrap();
        assert!(line.from_script());
        assert_eq!(line.name(), "HINCRBY");
        assert_eq!(line.args, ["hincrby", "k", "", "1"]);
    }

    #[test]
    fn other_lines_are_refused() {
        for line in ["", "OK", "1 [0 lua]", "1 [0 lua] \"open", "1 [0 lua] bare"] {
            assert_eq!(Observed::parse(line), None, "{line:?}");
        }
    }
}
