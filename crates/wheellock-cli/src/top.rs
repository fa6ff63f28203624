//! Shows the locks of a server in a table that is drawn again and again.

use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};

use wheellock::{Error, Listed, LockManager};

use crate::arguments::Top;
use crate::end::{End, Failure};
use crate::ls::{columns_of, lease_left};
use crate::signals::Signals;

pub(crate) async fn show(options: &Top) -> Result<End, Failure> {
    if !std::io::stdout().is_terminal() {
        return Err(Failure::of(End::Usage, "top needs a terminal; ls prints the locks once"));
    }
    let mut signals = Signals::new().map_err(|error| Failure::of(End::Unavailable, error))?;
    let locks = options.server.builder().connect().await?;
    let screen = Screen::open();
    let ended = tokio::select! {
        _signal = signals.next() => Ok(End::Success),
        failure = draw_forever(&locks, options, &screen) => Err(failure),
    };
    drop(screen);
    ended
}

/// Draws the table after each scan of the server. Returns at a failure that another scan would repeat.
async fn draw_forever(locks: &LockManager, options: &Top, screen: &Screen) -> Failure {
    let mut table = Table::default();
    loop {
        let (begun, mut trouble) = (Instant::now(), None);
        match scan(locks, &options.pattern, screen).await {
            Ok(found) => table = found,
            Err(error @ Error::NotInACluster { .. }) => return error.into(),
            Err(error) => trouble = Some(error.to_string()),
        }
        screen.draw(&table, options, trouble.as_deref());
        tokio::time::sleep(options.every.saturating_sub(begun.elapsed()).max(SHORTEST_PAUSE)).await;
    }
}

/// Scans the server once, and shows the progress of a long scan.
async fn scan(locks: &LockManager, pattern: &str, screen: &Screen) -> Result<Table, Error> {
    let mut listing = locks.list(pattern);
    let mut table = Table::default();
    let mut shown = Instant::now();
    while let Some(lock) = listing.next().await? {
        table.add(lock);
        if shown.elapsed() > PROGRESS {
            screen.progress(table.count, listing.keys_seen());
            shown = Instant::now();
        }
    }
    table.keys = listing.keys_seen();
    Ok(table)
}

/// The locks with the most waiters, and then those with the least remaining lease.
#[derive(Default)]
struct Table {
    locks: Vec<Listed>,
    /// Number of all locks.
    count: u64,
    /// Number of all keys.
    keys: u64,
}

impl Table {
    /// Adds a lock. The table keeps its memory bounded: no terminal shows more rows.
    fn add(&mut self, lock: Listed) {
        self.count += 1;
        self.locks.push(lock);
        if self.locks.len() >= 2 * MOST_ROWS {
            self.sort();
        }
    }

    fn sort(&mut self) {
        self.locks.sort_by_cached_key(|lock| {
            let left = lock.holders.holders.iter().map(|holder| holder.lease_left).min();
            (std::cmp::Reverse(lock.waiters), left, lock.name.clone())
        });
        self.locks.truncate(MOST_ROWS);
    }

    /// Returns the lines for a terminal of this size.
    fn lines(&self, options: &Top, trouble: Option<&str>, size: Size) -> Vec<String> {
        let head = trouble.map_or_else(
            || format!("{} locks among {} keys, every {:?}", self.count, self.keys, options.every),
            |trouble| format!("{trouble} (the table is from the last scan that succeeded)"),
        );
        let mut rows = vec![["NAME", "KIND", "WAITING", "LEASE", "HOLDER"].map(str::to_owned)];
        rows.extend(self.locks.iter().take(size.rows.saturating_sub(HEAD_ROWS)).map(row));
        let width = |column: usize| rows.iter().map(|row| width_of(row, column)).max().unwrap_or(0);
        // A long name leaves room for the other columns.
        let widths = [width(0).min(size.columns / 2), width(1), width(2), width(3)];
        let aligned = |[name, kind, waiting, left, holder]: &[String; 5]| {
            let [name_width, kind_width, waiting_width, left_width] = widths;
            format!(
                "{name:name_width$.name_width$}  {kind:kind_width$}  {waiting:>waiting_width$}  {left:>left_width$}  {holder}"
            )
        };
        let lines = std::iter::once(head).chain([String::new()]).chain(rows.iter().map(aligned));
        lines.map(|line| line.chars().take(size.columns).collect()).collect()
    }
}

fn width_of(row: &[String; 5], column: usize) -> usize {
    row.get(column).map_or(0, |text| text.chars().count())
}

/// Returns the columns of a lock: name, kind, waiters, lease, holder.
fn row(lock: &Listed) -> [String; 5] {
    let first = lock.holders.holders.first();
    let others = (lock.holders.holders.len() as u64).saturating_sub(1) + lock.holders.beyond;
    let holder = match (first, others) {
        (Some(holder), 0) => columns_of(holder),
        (Some(holder), more) => format!("{}  and {more} more", columns_of(holder)),
        (None, number) => format!("{number} holders"),
    };
    [
        lock.name.escape_debug().to_string(),
        lock.kind.to_owned(),
        lock.waiters.map_or_else(|| "-".to_owned(), |waiters| waiters.to_string()),
        first.map_or_else(|| "-".to_owned(), lease_left),
        holder,
    ]
}

/// Size of a terminal in characters.
#[derive(Clone, Copy)]
struct Size {
    rows: usize,
    columns: usize,
}

/// The terminal's second screen. Dropping it returns to the first screen with its old content.
struct Screen;

impl Screen {
    fn open() -> Self {
        // The second screen, without a cursor and without line breaks at the margin.
        write("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J");
        Self
    }

    fn draw(&self, table: &Table, options: &Top, trouble: Option<&str>) {
        let lines = table.lines(options, trouble, self.size());
        // Each line clears its rest, and the last line clears the rows below. A cleared screen would flicker.
        write(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")));
    }

    fn progress(&self, locks: u64, keys: u64) {
        let line = format!("scanning: {locks} locks among {keys} keys");
        write(&format!("\x1b[2;1H{}\x1b[K", line.chars().take(self.size().columns).collect::<String>()));
    }

    fn size(&self) -> Size {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
        let size = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
        size.map_or(USUAL, |size| Size { rows: size.ws_row.into(), columns: size.ws_col.into() })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        write("\x1b[?7h\x1b[?25h\x1b[?1049l");
    }
}

/// Writes to the terminal. An error is ignored, because a closed terminal ends the program by SIGHUP.
fn write(text: &str) {
    let mut terminal = std::io::stdout().lock();
    let _written = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

/// Rows above the locks: the head, an empty row, and the names of the columns.
const HEAD_ROWS: usize = 3;
const MOST_ROWS: usize = 500;
const USUAL: Size = Size { rows: 24, columns: 80 };
const PROGRESS: Duration = Duration::from_millis(200);
/// Pause after a scan that takes longer than the interval.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
