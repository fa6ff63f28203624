//! The command line against real servers.
//!
//! Uses real commands, signals and kills.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use wheellock::{Lock, LockManager};
use wheellock_tests::locks::{PATIENCE, listeners, manager};
use wheellock_tests::{RedisServer, poll_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_wheellock_cli");

/// Returns the tool's command with the server's URL.
fn tool(server: &RedisServer, arguments: &[&str]) -> Command {
    // A shell in the background may ignore signals, and a child inherits that.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM", PROGRAM]).args(arguments);
    command.env("WHEELLOCK_URL", server.url()).stdin(Stdio::null());
    in_background(&mut command);
    command
}

/// Gives the command a process group. A terminal may run these tests in its foreground, and a command would share their group.
fn in_background(command: &mut Command) -> &mut Command {
    command.process_group(0)
}

/// Runs the tool to its end.
fn ended(server: &RedisServer, arguments: &[&str]) -> Output {
    tool(server, arguments).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("the tool ends by itself")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The running tool. Dropping it kills the process.
struct Running(Child);

impl Running {
    /// Runs `script` under a lock. `options` are the words before the command, such as the lock's name.
    fn start(server: &RedisServer, options: &[&str], script: &str) -> Self {
        let arguments = [&["run"][..], options, &["--", "sh", "-c", script]].concat();
        Self(tool(server, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Returns the exit code and the text of stderr.
    fn end(mut self) -> (i32, String) {
        let child = std::mem::replace(&mut self.0, Command::new("true").spawn().unwrap());
        let output = child.wait_with_output().unwrap();
        (code(&output), stderr(&output))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// Returns a file in the server's own directory, for messages between commands and tests.
fn file(server: &RedisServer, name: &str) -> PathBuf {
    server.directory().join(name)
}

/// Returns a command that waits for `path`. The command also ends when the server's directory is gone, so that a failed test does not leave
/// it running.
fn until(server: &RedisServer, path: &Path) -> String {
    format!(
        "while [ -e {} ] && ! [ -e {} ]; do sleep 0.01; done",
        server.directory().display(),
        path.display()
    )
}

/// Returns a command that waits until the server's directory is gone.
fn forever(server: &RedisServer) -> String {
    until(server, &file(server, "never"))
}

fn written(path: &Path) -> bool {
    poll_until(PATIENCE, || fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n')))
}

/// Returns the process whose id a command has written.
fn process(path: &Path) -> Pid {
    assert!(written(path), "the command has begun");
    Pid::from_raw(fs::read_to_string(path).unwrap().trim().parse().unwrap()).unwrap()
}

/// Returns true if the process is dead or exiting. A busy system may take seconds to clean up a killed process that shares memory with
/// others (seen with kdamond, beside a full load).
fn is_gone(process: Pid) -> bool {
    const PF_EXITING: u32 = 4;
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    // The name may contain any characters. The seventh field after the name contains the flags.
    let flags = stat.rsplit(") ").next().and_then(|fields| fields.split(' ').nth(6)?.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & PF_EXITING != 0) || test_kill_process(process).is_err()
}

fn is_free(server: &RedisServer, key: &str) -> bool {
    poll_until(PATIENCE, || server.cli(&["EXISTS", key]) == "0")
}

/// Makes the lock of a test.
type Named = fn(&LockManager) -> Lock;

/// Returns a lock that a test holds, on a separate runtime.
fn held(server: &RedisServer, label: &str, kind: Named) -> impl Sized {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let guard = runtime.block_on(async {
        let locks = LockManager::builder(&server.url()).label(label).connect().await.unwrap();
        let guard = kind(&locks).acquire().await.unwrap();
        (guard, locks)
    });
    (guard, runtime)
}

#[test]
fn command_exit_code_passes_through() {
    let server = RedisServer::start();
    let run = |script: &str| ended(&server, &["run", "job", "--", "sh", "-c", script]);
    for wanted in [0, 1, 7, 255] {
        assert_eq!(code(&run(&format!("exit {wanted}"))), wanted);
        assert_eq!(server.cli(&["DBSIZE"]), "0", "the lock and the label are gone");
    }
    assert_eq!(code(&run("kill -TERM $$")), 128 + 15);
    assert_eq!(code(&run("kill -KILL $$")), 128 + 9);
    assert_eq!(stdout(&run("echo out; echo \"$WHEELLOCK_NAME/$WHEELLOCK_TOKEN\"")), "out\njob/\n");
    let fenced = ["run", "job", "--kind", "fenced", "--", "sh", "-c", "echo $WHEELLOCK_TOKEN"];
    let tokens = [(); 2].map(|()| stdout(&ended(&server, &fenced)).trim().parse::<u64>().unwrap());
    assert!(tokens[0] < tokens[1], "{tokens:?}");
    for kind in ["plain", "fair", "read", "write", "spin", "simple"] {
        let output = ended(&server, &["run", kind, "--kind", kind, "--wait", "1s", "--", "true"]);
        assert_eq!(code(&output), 0, "{kind}: {}", stderr(&output));
        assert!(is_free(&server, kind));
    }
    assert_eq!(code(&ended(&server, &["run", "job", "--", "no-such-command-anywhere"])), 127);
    assert_eq!(code(&ended(&server, &["run", "job", "--", "/"])), 126);
    assert!(is_free(&server, "job"));
}

#[test]
fn second_run_reports_first_holder() {
    let server = RedisServer::start();
    let _held = held(&server, "web-3/1/billing", |locks| locks.lock("job"));
    let (mark, mark_text) = (file(&server, "ran"), file(&server, "ran").display().to_string());
    let run = |options: &[&str]| {
        ended(&server, &[&["run", "job"][..], options, &["--", "touch", &mark_text]].concat())
    };
    let refused = run(&["--wait", "0"]);
    assert_eq!(code(&refused), 1);
    assert!(
        stderr(&refused).starts_with("wheellock: \"job\" is taken: web-3/1/billing ["),
        "{}",
        stderr(&refused)
    );
    let refused = run(&["--wait", "0", "--conflict-exit-code", "9", "--quiet"]);
    assert_eq!((code(&refused), &*stderr(&refused)), (9, ""));
    let (wait, start) = (Duration::from_millis(300), Instant::now());
    assert_eq!(code(&run(&["--wait", "300ms", "-E", "0"])), 0);
    assert!(start.elapsed() >= wait);
    assert!(!mark.exists(), "the command never ran");
}

#[test]
fn prefix_precedes_name() {
    let server = RedisServer::start();
    let _held = held(&server, "web-3/1/billing", |locks| locks.lock("billing:job"));
    let prefixed = ["run", "job", "--prefix", "billing:", "--wait", "0", "--", "true"];
    let refused = ended(&server, &prefixed);
    assert_eq!(code(&refused), 1);
    assert!(stderr(&refused).starts_with("wheellock: \"billing:job\" is taken"), "{}", stderr(&refused));
    assert_eq!(code(&ended(&server, &["run", "job", "--wait", "0", "--", "true"])), 0);
    let shown = ended(&server, &["holder", "job", "--prefix", "billing:", "--json"]);
    assert_eq!(code(&shown), 0, "{}", stderr(&shown));
    assert!(stdout(&shown).contains("\"name\":\"billing:job\""), "{}", stdout(&shown));
}

#[test]
fn only_one_of_five_runs() {
    let server = RedisServer::start();
    let (go, log) = (file(&server, "go"), file(&server, "ran"));
    let script = format!("echo ran >> {}; {}", log.display(), until(&server, &go));
    let mut jobs = [(); 5].map(|()| Running::start(&server, &["once", "--wait", "0"], &script)).map(Some);
    let refused = |jobs: &mut [Option<Running>; 5]| {
        let ended =
            |job: &mut Option<Running>| job.as_mut().is_some_and(|job| job.0.try_wait().unwrap().is_some());
        let over: Vec<Running> =
            jobs.iter_mut().filter_map(|job| if ended(job) { job.take() } else { None }).collect();
        over.into_iter().map(|job| job.end().0).collect::<Vec<_>>()
    };
    let mut codes = Vec::new();
    assert!(poll_until(PATIENCE, || {
        codes.extend(refused(&mut jobs));
        codes.len() == 4
    }));
    assert_eq!(codes, [1; 4]);
    fs::write(&go, "").unwrap();
    assert_eq!(jobs.iter_mut().find_map(Option::take).unwrap().end().0, 0);
    assert_eq!(fs::read_to_string(log).unwrap(), "ran\n");
}

#[test]
fn error_selects_exit_code_hides_password() {
    let server = RedisServer::builder().tcp().arg("requirepass", "hunter2").start();
    let at = |url: &str, verb: &[&str]| {
        let output =
            Command::new(PROGRAM).env("WHEELLOCK_URL", url).args(verb).stdin(Stdio::null()).output().unwrap();
        let said = format!("{}{}", stdout(&output), stderr(&output));
        assert!(!said.contains("hunter2") && !said.contains("sesame"), "{said}");
        (code(&output), said)
    };
    let nowhere = format!("unix://:hunter2@{}", file(&server, "none.sock").display());
    let wrong = server.tcp_url().replace("redis://", "redis://:sesame@");
    let right = server.tcp_url().replace("redis://", "redis://:hunter2@");
    for verb in [&["run", "n", "--", "true"][..], &["holder", "n"], &["doctor"], &["bench", "--time", "10ms"]]
    {
        for url in [&*nowhere, &wrong] {
            let (code, said) = at(url, verb);
            assert_eq!(code, 69, "{verb:?} {url}: {said}");
            assert!(said.starts_with("wheellock: "), "{said}");
        }
        assert_eq!(at("gopher://:hunter2@there", verb).0, 64, "{verb:?}");
        let (code, said) = at(&right, verb);
        assert!([0, 1].contains(&code), "{verb:?}: {said}");
    }
    for verb in [
        &["run"][..],
        &["run", "n"],
        &["run", "n", "--wait", "soon", "--", "true"],
        &["fly"],
        &[],
        &["run", "", "--", "true"],
    ] {
        assert_eq!(at(&right, verb).0, 64, "{verb:?}");
    }
    for verb in [&["--help"][..], &["run", "--help"], &["help", "doctor"], &["--version"]] {
        assert_eq!(at(&right, verb).0, 0, "{verb:?}");
    }
    assert_eq!(server.connect().unwrap().query(&["SET", "text", "x"]).unwrap().to_string(), "OK");
    assert_eq!(at(&right, &["run", "text", "--", "true"]).0, 65);
}

/// Another process takes the lock away by force. The command gets a signal, and is killed if it ignores the signal.
#[tokio::test]
async fn a_lost_lock_ends_the_command() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let terminated = file(&server, "terminated");
    let polite =
        format!("trap 'echo $? > {}; exit 0' TERM; echo > $0; {}", terminated.display(), forever(&server));
    // The command and its child ignore SIGTERM.
    let forever = forever(&server);
    let deaf = format!("trap '' TERM; ({forever}) & echo $! > $0.child; echo $$ > $0; {forever}");
    for (name, script) in [("polite", &*polite), ("deaf", &*deaf)] {
        let begun = file(&server, name);
        let script = script.replace("$0", &begun.display().to_string());
        let job = Running::start(&server, &[name, "--lease", "3s", "--grace", "200ms"], &script);
        assert!(written(&begun));
        assert!(locks.lock(name).force_release().await.unwrap());
        let (code, said) = job.end();
        assert_eq!(code, 75, "{said}");
        assert!(said.contains("was lost") && said.contains("stopped"), "{said}");
    }
    assert!(terminated.exists(), "the polite one was asked first");
    for deaf in [file(&server, "deaf"), file(&server, "deaf.child")] {
        assert!(poll_until(PATIENCE, || is_gone(process(&deaf))), "nothing is left of the deaf one");
    }
}

/// A program that listens is told, and so is a run that stops on request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ask_tells_listening_holders() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    let ask = |more: &[&str]| ended(&server, &[&["ask", "job", "--reason", "deploy 4711"], more].concat());
    let free = ask(&[]);
    assert_eq!((code(&free), &*stdout(&free)), (1, "free\n"));
    for kind in ["plain", "fenced", "fair", "simple", "read", "write"] {
        let begun = file(&server, kind);
        let script = format!("echo $$ > {}; {}", begun.display(), forever(&server));
        let job = Running::start(&server, &["job", "--kind", kind], &script);
        assert!(written(&begun));
        let deaf = ask(&[]);
        assert_eq!(code(&deaf), 1, "{kind}");
        assert!(stdout(&deaf).starts_with("does not listen: "), "{kind}: {}", stdout(&deaf));
        job.signal(Signal::TERM);
        job.end();
        fs::remove_file(&begun).unwrap();

        let listens = ["job", "--kind", kind, "--stop-on-request", "--grace", "200ms"];
        let job = Running::start(&server, &listens, &script);
        assert!(written(&begun));
        assert!(poll_until(PATIENCE, || code(&ask(&[])) == 0), "{kind}");
        let (code, said) = job.end();
        assert_eq!(code, 75, "{kind}: {said}");
        assert!(said.contains("was requested by ") && said.contains("deploy 4711"), "{kind}: {said}");
        fs::remove_file(&begun).unwrap();
    }
    let guard = locks.lock("job").acquire().await.unwrap();
    let wait = tokio::spawn(async move { (guard.release_requested().await, guard) });
    let mut told = ask(&["--kind", "plain"]);
    assert!(poll_until(PATIENCE, || {
        told = ask(&["--kind", "plain"]);
        code(&told) == 0
    }));
    assert!(stdout(&told).starts_with("told: "), "{}", stdout(&told));
    let (request, _guard) = wait.await.unwrap();
    assert!(request.label.is_some_and(|label| label.ends_with("/wheellock")), "{}", request.reason);
    assert_eq!(code(&ended(&server, &["ask", "job", "--reason", "two\nlines"])), 64);
    assert_eq!(server.cli(&["RPUSH", "list", "data"]), "1");
    assert_eq!(code(&ended(&server, &["ask", "list"])), 65);
}

/// The command ends long before the minimum. No other run gets the lock before the minimum is over.
#[test]
fn minimum_time_runs_job_once() {
    let server = RedisServer::start();
    for kind in ["plain", "fenced", "fair", "simple"] {
        let began = Instant::now();
        let run = |options: &[&str]| {
            let arguments = [&["run", kind, "--kind", kind][..], options, &["--", "true"]].concat();
            code(&ended(&server, &arguments))
        };
        assert_eq!(run(&["--at-least", "3s"]), 0);
        assert!(began.elapsed() < Duration::from_secs(2), "the tool itself does not wait");
        let next = run(&["--wait", "0", "-E", "7"]);
        assert!(next == 7 || began.elapsed() >= Duration::from_secs(3), "{kind}: {next}");
        assert_eq!(run(&[]), 0);
        assert!(began.elapsed() >= Duration::from_secs(3), "{kind}: {:?}", began.elapsed());
        assert_eq!(run(&["--wait", "0"]), 0, "a run without a minimum keeps nothing");
    }
    let longer = ended(&server, &["run", "n", "--at-most", "2s", "--at-least", "3s", "--", "true"]);
    assert_eq!(code(&longer), 64);
    assert!(stderr(&longer).contains("--at-most is shorter than --at-least"), "{}", stderr(&longer));
    let refused = ended(&server, &["run", "n", "--kind", "read", "--at-least", "3s", "--", "true"]);
    assert_eq!(code(&refused), 64, "{}", stderr(&refused));
}

/// The lock is held for its maximum time. The command ends before that, even if it ignores the signal.
#[test]
fn maximum_time_ends_the_command() {
    let server = RedisServer::start();
    for (name, lease) in [("renewed", "1s"), ("brief", "30s")] {
        let begun = file(&server, name);
        let script = format!("trap '' TERM; echo $$ > {}; {}", begun.display(), forever(&server));
        let began = Instant::now();
        let job = Running::start(&server, &[name, "--at-most", "3s", "--lease", lease], &script);
        let command = process(&begun);
        let next =
            ended(&server, &["run", name, "--", "sh", "-c", &format!("! kill -0 {}", command.as_raw_pid())]);
        let waited = began.elapsed();
        assert_eq!(code(&next), 0, "the next owner finds the command gone: {}", stderr(&next));
        assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(6), "{waited:?}");
        let (code, said) = job.end();
        assert_eq!(code, 75, "{said}");
        assert!(said.contains("held for its maximum time"), "{said}");
    }
}

/// The server stops or dies. The command ends before its lease ends on the server, even if it ignores the signal.
#[test]
fn unreachable_server_ends_command_before_expiry() {
    for dies in [false, true] {
        let mut server = RedisServer::start();
        let begun = file(&server, "begun");
        let script = format!("trap '' TERM; echo $$ > {}; {}", begun.display(), forever(&server));
        let job = Running::start(&server, &["job", "--lease", "6s", "--grace", "10s"], &script);
        let command = process(&begun);
        // Just renewed: the next renewal cannot happen before the server is gone.
        let mut ends = Instant::now();
        assert!(poll_until(PATIENCE, || {
            let left: u64 = server.cli(&["PTTL", "job"]).parse().unwrap();
            ends = Instant::now() + Duration::from_millis(left);
            left > 5_000
        }));
        if dies {
            server.kill();
        } else {
            server.pause();
        }
        assert!(poll_until(2 * PATIENCE, || is_gone(command)));
        assert!(Instant::now() < ends, "gone {:?} after the lease's end", ends.elapsed());
        if !dies {
            server.resume();
        }
        let (code, said) = job.end();
        assert_eq!(code, 75, "{said}");
    }
}

/// T3: the tool was stopped for longer than its lease, and the server was up all the time.
#[test]
fn a_stopped_tool_says_so() {
    let server = RedisServer::start();
    let begun = file(&server, "begun");
    let script = format!("echo $$ > {}; {}", begun.display(), forever(&server));
    let job = Running::start(&server, &["job", "--lease", "3s"], &script);
    assert!(written(&begun));
    job.signal(Signal::STOP);
    assert!(poll_until(PATIENCE, || server.cli(&["EXISTS", "job"]) == "0"), "its lease has ended");
    job.signal(Signal::CONT);
    let (code, said) = job.end();
    assert_eq!(code, 75, "{said}");
    assert!(said.contains("stood still for") && !said.contains("could not be reached"), "{said}");
}

/// L4: the data of another program is not a lock.
#[test]
fn an_application_hash_is_bad_data() {
    let server = RedisServer::start();
    assert_eq!(server.cli(&["HSET", "user:42", "name", "Ada"]), "1");
    for arguments in [&["run", "user:42", "--wait", "0s", "--", "true"][..], &["holder", "user:42"]] {
        let output = ended(&server, arguments);
        assert_eq!(code(&output), 65, "{}", stderr(&output));
    }
    assert_eq!(server.cli(&["HGETALL", "user:42"]), "name\nAda");
}

/// A late renewal is harmless if it succeeds in time.
#[test]
fn short_server_pause_keeps_command_running() {
    let server = RedisServer::start();
    let (begun, go) = (file(&server, "begun"), file(&server, "go"));
    let script = format!("echo $$ > {}; {}; exit 4", begun.display(), until(&server, &go));
    let job = Running::start(&server, &["job", "--lease", "6s"], &script);
    let _command = process(&begun);
    let renewed = |server: &RedisServer| {
        let left = || server.cli(&["PTTL", "job"]).parse::<i64>().unwrap();
        let mut last = left();
        poll_until(PATIENCE, || {
            let now = left();
            let renewed = now > last;
            last = now;
            renewed
        })
    };
    assert!(renewed(&server));
    server.pause();
    // Shorter than the renewal's reserve. A renewal is due after 2 s, and the command runs until 2 s before the end of the lease.
    std::thread::sleep(Duration::from_secs(1));
    server.resume();
    assert!(renewed(&server) && renewed(&server));
    fs::write(go, "").unwrap();
    let (code, said) = job.end();
    assert_eq!((code, &*said), (4, ""));
}

#[test]
fn forwarded_signal_releases_after_command_exit() {
    let server = RedisServer::start();
    for (name, signal) in
        [("HUP", Signal::HUP), ("INT", Signal::INT), ("QUIT", Signal::QUIT), ("TERM", Signal::TERM)]
    {
        let [begun, heard, go] =
            ["begun", "heard", "go"].map(|what| file(&server, &format!("{name}.{what}")));
        let script = format!(
            "trap 'echo > {}; {}; exit 3' {name}; echo $$ > {}; {}",
            heard.display(),
            until(&server, &go),
            begun.display(),
            forever(&server)
        );
        let job = Running::start(&server, &[name], &script);
        let _command = process(&begun);
        job.signal(signal);
        assert!(written(&heard), "{name} is passed on");
        assert_eq!(server.cli(&["EXISTS", name]), "1", "held until the command has ended");
        fs::write(go, "").unwrap();
        assert_eq!(job.end().0, 3);
        assert_eq!(server.cli(&["EXISTS", name]), "0");
    }
}

/// A background process that uses its terminal is stopped, and does not handle signals until it is continued.
#[cfg(target_os = "linux")]
#[test]
fn stopped_command_continues_on_signal() {
    let server = RedisServer::start();
    let [begun, heard] = ["begun", "heard"].map(|what| file(&server, what));
    let script = format!(
        "trap 'echo > {}; exit 3' TERM; echo $$ > {}; kill -STOP $$; {}",
        heard.display(),
        begun.display(),
        forever(&server)
    );
    let job = Running::start(&server, &["job"], &script);
    let command = process(&begun);
    let stat = format!("/proc/{}/stat", command.as_raw_nonzero());
    let is_stopped = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "));
    assert!(poll_until(PATIENCE, is_stopped));
    job.signal(Signal::TERM);
    assert!(written(&heard));
    assert_eq!(job.end().0, 3);
    assert!(is_free(&server, "job"));
}

/// The command reads its input from a pipe, and prompts the user on the terminal, as ssh does for a password.
#[cfg(target_os = "linux")]
#[test]
fn piped_command_may_use_terminal() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    let server = RedisServer::start();
    let heard = file(&server, "heard");
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let terminal = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
    fs::File::from(controller.try_clone().unwrap()).write_all(b"from the terminal\n").unwrap();
    // The first terminal that a session leader opens becomes the session's terminal, and the leader runs in its foreground. The terminal
    // reads input there.
    let pipeline = format!("exec 3<>{terminal}; echo list | \"$@\" 2>&3; exit $?");
    let asks = format!("read line < /dev/tty; echo \"$line, $(cat)\" > {}", heard.display());
    let mut session = Command::new("setsid");
    session.args(["--wait", "sh", "-c", &pipeline, "sh", PROGRAM, "run", "job", "--", "sh", "-c", &asks]);
    session.env("WHEELLOCK_URL", server.url()).stdin(Stdio::null());
    let job = Running(session.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert!(written(&heard));
    assert_eq!(fs::read_to_string(&heard).unwrap(), "from the terminal, list\n");
    assert_eq!(job.end(), (0, String::new()));
}

/// The command ignores the signals that the tool was started to ignore, as with `nohup`.
#[test]
fn ignored_signal_stays_ignored() {
    let server = RedisServer::start();
    let [begun, go] = ["begun", "go"].map(|name| file(&server, name));
    let waits = format!("echo $$ > {}; {}", begun.display(), until(&server, &go));
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh", PROGRAM, "run", "job", "--", "sh", "-c", &waits]);
    in_background(nohup.env("WHEELLOCK_URL", server.url()).stdin(Stdio::null()));
    let job = Running(nohup.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let command = process(&begun);
    job.signal(Signal::HUP);
    kill_process(command, Signal::HUP).unwrap();
    fs::write(go, "").unwrap();
    let (code, said) = job.end();
    assert_eq!((code, &*said), (0, ""));
}

/// A process that ignores SIGCHLD passes that on to its children. The system then removes dead children before their parent can read the
/// exit status.
#[test]
fn exit_status_survives_ignored_sigchld() {
    let server = RedisServer::start();
    let mut ignored = Command::new("env");
    ignored.args(["--ignore-signal=CHLD", PROGRAM, "run", "job", "--", "sh", "-c", "exit 3"]);
    let output = ignored.env("WHEELLOCK_URL", server.url()).stdin(Stdio::null()).output().unwrap();
    assert_eq!((code(&output), &*stderr(&output)), (3, ""));
    assert!(is_free(&server, "job"));
}

#[tokio::test]
async fn signal_cancels_wait_leaves_nothing() {
    let server = RedisServer::start();
    let locks = manager(&server.url()).await;
    for (kind, lock) in [("plain", locks.lock("plain")), ("fair", locks.fair_lock("fair"))] {
        let guard = lock.acquire().await.unwrap();
        let job = Running::start(&server, &[kind, "--kind", kind], "true");
        let waits = || match kind {
            "fair" => server.cli(&["LLEN", "redisson_lock_queue:{fair}"]) == "1",
            _ => !server.cli(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{plain}"]).ends_with("\n0"),
        };
        assert!(poll_until(PATIENCE, waits));
        job.signal(Signal::INT);
        assert_eq!(job.end().0, 128 + 2);
        guard.release().await.unwrap();
        assert_eq!(server.cli(&["LLEN", "redisson_lock_queue:{fair}"]), "0");
        assert_eq!(server.cli(&["EXISTS", kind]), "0");
    }
    assert!(listeners(&server, "plain", 0).await);
}

#[cfg(target_os = "linux")]
#[test]
fn command_dies_with_killed_tool() {
    let server = RedisServer::start();
    let begun = file(&server, "begun");
    let script = format!("trap '' TERM HUP INT; echo $$ > {}; {}", begun.display(), forever(&server));
    let job = Running::start(&server, &["job", "--lease", "2s"], &script);
    let command = process(&begun);
    job.signal(Signal::KILL);
    assert!(poll_until(PATIENCE, || is_gone(command)));
    drop(job);
    assert!(is_free(&server, "job"), "and the lock ends with its lease");
}

#[test]
fn command_ending_after_loss_fails() {
    let server = RedisServer::start();
    let [begun, go] = ["begun", "go"].map(|name| file(&server, name));
    let script = format!("echo $$ > {}; {}", begun.display(), until(&server, &go));
    let job = Running::start(&server, &["job"], &script);
    let _command = process(&begun);
    assert_eq!(server.cli(&["DEL", "job"]), "1");
    fs::write(go, "").unwrap();
    let (code, said) = job.end();
    assert_eq!(code, 75, "{said}");
    assert!(said.contains("was lost before the command had ended"), "{said}");
}

#[test]
fn holder_prints_text_and_json() {
    let server = RedisServer::start();
    let free = ended(&server, &["holder", "job"]);
    assert_eq!((code(&free), &*stdout(&free)), (1, "free\n"));
    let free = ended(&server, &["holder", "job", "--json"]);
    let nobody = "{\"name\":\"job\",\"held\":false,\"holders\":[],\"beyond\":0}\n";
    assert_eq!((code(&free), &*stdout(&free)), (1, nobody));

    let begun = file(&server, "begun");
    let job = Running::start(&server, &["job"], &format!("echo $$ > {}; exec sleep 60", begun.display()));
    let _command = process(&begun);
    let told = ended(&server, &["holder", "job"]);
    let own_label = format!("/{}/sh [", job.0.id());
    assert!(code(&told) == 0 && stdout(&told).contains(&own_label), "{}", stdout(&told));
    job.signal(Signal::TERM);
    assert_eq!(job.end().0, 128 + 15);

    let kinds: [(&str, &str, Named); 5] = [
        ("plain", "exclusive", |locks| locks.lock("plain")),
        ("fair", "exclusive", |locks| locks.fair_lock("fair")),
        ("read", "read", |locks| locks.read_write_lock("read").read()),
        ("write", "write", |locks| locks.read_write_lock("write").write()),
        ("simple", "exclusive", |locks| locks.simple_lock("simple")),
    ];
    for (name, mode, kind) in kinds {
        let _held = held(&server, "a \"label\"", kind);
        for more in [&[][..], &["--kind", name]] {
            let told = ended(&server, &[&["holder", name, "--json"][..], more].concat());
            assert_eq!(code(&told), 0, "{name}: {}", stderr(&told));
            let value: serde_json::Value = serde_json::from_str(&stdout(&told)).unwrap();
            assert_eq!((&value["held"], &value["beyond"]), (&true.into(), &0.into()), "{name}");
            let [holder] = &value["holders"].as_array().unwrap()[..] else { panic!("{name}: {value}") };
            assert_eq!((&holder["mode"], &holder["hold_count"]), (&mode.into(), &1.into()), "{name}");
            assert_eq!(holder["label"], "a \"label\"");
            let process = holder["process"].as_str().unwrap();
            assert!(holder["owner"].as_str().unwrap().starts_with(process));
            assert!((1..=30_000).contains(&holder["lease_left_ms"].as_u64().unwrap()));
            assert_eq!(holder.get("held_ms"), Some(&serde_json::Value::Null), "it is young");
        }
    }
    let _written = server.cli(&["RPUSH", "list", "x"]);
    // A number of permits, or another program's text, is not a lock either.
    assert_eq!(server.cli(&["SET", "number", "3"]), "OK");
    for other in ["list", "number"] {
        assert_eq!(code(&ended(&server, &["holder", other])), 65, "{other}");
    }
}

#[test]
fn doctor_reports_problems_leaves_nothing() {
    let ill = RedisServer::start();
    let told = ended(&ill, &["doctor"]);
    assert_eq!(code(&told), 1, "{}", stdout(&told));
    assert!(stdout(&told).contains("FAIL  server      without an append-only file"), "{}", stdout(&told));
    assert!(stdout(&told).ends_with("\n1 thing is not well\n"), "{}", stdout(&told));

    let well = RedisServer::builder().arg("appendonly", "yes").start();
    let url = well.url();
    let told = Command::new(PROGRAM).args(["doctor", &url]).output().unwrap();
    if well.redis_version() >= (7, 0, 0) {
        assert_eq!(code(&told), 0, "{}", stdout(&told));
        assert!(stdout(&told).ends_with("\nall is well\n"), "{}", stdout(&told));
        assert!(stdout(&told).contains("permissions are fit for plain locks\n"), "{}", stdout(&told));
    }
    for part in
        ["  ok  connection", "  ok  round trip", "  ok  clock", "  ok  trial lock  taken and released"]
    {
        assert!(stdout(&told).contains(part), "{part}: {}", stdout(&told));
    }
    assert_eq!(well.cli(&["DBSIZE"]), "0");
}

/// Several URLs are the servers of a quorum.
#[test]
fn doctor_names_unusable_quorum_member() {
    let servers = [(); 3].map(|()| RedisServer::builder().arg("appendonly", "yes").start());
    let urls = servers.each_ref().map(RedisServer::url);
    let doctor = |urls: &[String]| Command::new(PROGRAM).arg("doctor").args(urls).output().unwrap();
    let told = doctor(&urls);
    let printed = stdout(&told);
    assert!(printed.contains("  ok  quorum      2 of 3 independent servers"), "{printed}");
    if servers[0].redis_version() >= (7, 0, 0) {
        assert_eq!(code(&told), 0, "{printed}");
    }
    let wrong = urls[2].replacen("://", "://nosuch:hunter2@", 1);
    let told = doctor(&[urls[0].clone(), urls[1].clone(), wrong]);
    let printed = stdout(&told);
    assert_eq!(code(&told), 1, "{printed}");
    assert!(printed.contains("FAIL  quorum      ") && printed.contains("\"nosuch\""), "{printed}");
    assert!(!printed.contains("hunter2"), "{printed}");
    let told = doctor(&[urls[0].clone(), urls[1].clone(), urls[0].clone()]);
    assert!(stdout(&told).contains("it is named twice"), "{}", stdout(&told));
}

#[test]
fn the_bench_measures_and_leaves_nothing() {
    let server = RedisServer::start();
    let measured = ended(&server, &["bench", "--time", "100ms", "--tasks", "4"]);
    assert_eq!(code(&measured), 0, "{}", stderr(&measured));
    let rows = [
        "round trip (PING)",
        "acquire + release",
        "hot lock, 4 tasks, handed over",
        "hot lock, 4 tasks, always",
    ];
    for row in rows {
        let printed = stdout(&measured);
        let line =
            printed.lines().find(|line| line.starts_with(row)).unwrap_or_else(|| panic!("{row}: {printed}"));
        assert!(line.split_whitespace().last().unwrap().parse::<f64>().unwrap() > 0.0, "{line}");
    }
    assert_eq!(server.cli(&["DBSIZE"]), "0");

    let before = pings(&server);
    let mut bench = tool(&server, &["bench", "--time", "60s"]).stdout(Stdio::piped()).spawn().unwrap();
    assert!(poll_until(PATIENCE, || pings(&server) > before + 200), "it measures");
    kill_process(Pid::from_child(&bench), Signal::TERM).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}

fn pings(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_ping:calls="));
    calls.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn shells_get_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = Command::new(PROGRAM).args(["completions", shell]).output().unwrap();
        assert_eq!(code(&output), 0);
        assert!(stdout(&output).contains("conflict-exit-code"), "{shell}");
        assert!(!stdout(&output).contains("bound"), "{shell}");
    }
}

/// `docs/tables/manual.md` ends with the tool's own manual. With `WHEELLOCK_BLESS` set, the test writes that part of the page.
#[test]
fn page_matches_help() {
    const MARK: &str = "<!-- What follows is printed by `wheellock manual`. -->\n\n";
    let output = Command::new(PROGRAM).arg("manual").env_remove("WHEELLOCK_URL").output().unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tables/manual.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, printed) = page.split_once(MARK).expect("the page has the mark");
    if std::env::var_os("WHEELLOCK_BLESS").is_some() {
        fs::write(&path, format!("{head}{MARK}{}", stdout(&output))).unwrap();
    } else {
        assert!(
            printed == stdout(&output),
            "docs/tables/manual.md is old: run this test with WHEELLOCK_BLESS=1"
        );
    }
}
