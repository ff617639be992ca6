//! `brickmoon capture` and `brickmoon trace`: packets at the daemon's ports.
//!
//! The daemon only says which ports it has. This process loads the programs that show packets, and the kernel removes
//! them when it ends (docs/decisions/0043-capture.md).

mod outcome;
mod output;
mod points;
mod session;
pub mod trace;

use std::io::IsTerminal;

use bm_capture::{Options, Packet};

use crate::args::Capture;
use bm_cli::Failure;
use bm_daemon::log;
use output::{Format, Output, OutputEnd};
use session::Session;

/// `brickmoon capture`.
pub fn run(capture: &Capture) -> Result<(), Failure> {
    let filter = points::filter(&capture.filter)?;
    let ports = points::ports(&capture.socket)?;
    let chosen = points::chosen(&ports, capture.point.as_deref(), capture.direction)?;
    points::hints(&ports, &chosen).iter().for_each(|hint| log::say(hint));
    let options = Options::new(filter, capture.snaplen, capture.sample, false);
    let mut session = Session::start(options, chosen)?;
    let mut output = Output::open(format(capture), session.names(), capture.snaplen)?;
    let mut left = capture.count.unwrap_or(u64::MAX);
    let mut shown = 0;
    let ended = loop {
        if bm_lua::interrupted() || left == 0 || output.is_abandoned() {
            break Ok(());
        }
        let packets: Vec<Packet> =
            session.next()?.into_iter().take(left.try_into().unwrap_or(usize::MAX)).collect();
        left -= packets.len() as u64;
        match output.write(&session, &packets) {
            Ok(()) => shown += packets.len(),
            Err(ended) => break Err(ended),
        }
    };
    let lost = session.lost();
    let ended = ended.and_then(|()| output.end(lost));
    let lost = match lost {
        0 => "none lost".into(),
        lost => {
            format!("{lost} lost because the buffer was full; use a narrower filter, --sample or --snaplen")
        }
    };
    log::say(&format!("{shown} packets captured, {lost}"));
    match ended {
        Ok(()) | Err(OutputEnd::Closed) => Ok(()),
        Err(OutputEnd::Failed(why)) => Err(Failure::Failed(why)),
    }
}

fn format(capture: &Capture) -> Format {
    match &capture.write {
        Some(path) if path.as_os_str() == "-" => Format::Pcapng(None),
        Some(path) => Format::Pcapng(Some(path.clone())),
        None if capture.json => Format::Json,
        None if capture.lines || std::io::stdout().is_terminal() => Format::Lines,
        None => Format::Pcapng(None),
    }
}
