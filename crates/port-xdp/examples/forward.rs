//! How fast is raw forwarding from one AF_XDP port to another?
//!
//! `forward IN OUT MAC SECONDS [batch=N] [ring=N] [budget=N] [poll=us] [checksums=on] [wait=on]`
//! sends what comes in on IN out on OUT to MAC, one hop spent, and prints packets a second. `budget` polls
//! the driver busily with that many frames a go; `wait=on` sleeps while nothing comes in. To be measured
//! against Linux in the same set-up, turn about.

use std::error::Error;
use std::time::{Duration, Instant};

use bm_frame::{Burst, FramePool, Freelist};
use bm_port::{Port, Steering};
use bm_port_xdp::{Attach, BusyPoll, Checksums, Options, Shared, XdpDevice};

/// The command line.
struct Settings {
    input: String,
    output: String,
    to: [u8; 6],
    time: Duration,
    options: Options,
    wait: bool,
    slots: usize,
}

fn settings() -> Result<Settings, Box<dyn Error>> {
    let usage = "usage: forward IN OUT MAC SECONDS [batch=N] [ring=N] [budget=N] [poll=us] ..";
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().ok_or(usage);
    let (input, output, to, time) = (word()?, word()?, word()?, word()?);
    let to: bm_wire::ethernet::Mac = to.parse().map_err(|error| format!("{to}: {error}"))?;
    let mut options = Options { complete_checksums: Checksums::Off, ..Options::default() };
    let mut settings = Settings {
        input,
        output,
        to: to.0,
        time: Duration::from_secs_f64(time.parse()?),
        options: options.clone(),
        wait: false,
        slots: 65_536,
    };
    for word in words {
        let (key, value) = word.split_once('=').ok_or(usage)?;
        let busy = options.busy_poll.unwrap_or(BusyPoll { microseconds: 20, budget: 64 });
        match key {
            "ring" => options.ring = value.parse()?,
            "budget" => options.busy_poll = Some(BusyPoll { budget: value.parse()?, ..busy }),
            "poll" => options.busy_poll = Some(BusyPoll { microseconds: value.parse()?, ..busy }),
            "checksums" => options.complete_checksums = Checksums::On,
            "generic" => options.attach = Attach::Generic,
            "wait" => settings.wait = true,
            "slots" => settings.slots = value.parse()?,
            _ => return Err(usage.into()),
        }
    }
    settings.options = options;
    Ok(settings)
}

fn main() -> Result<(), Box<dyn Error>> {
    let settings = settings()?;
    let frame_pool = FramePool::new(settings.slots, 2048)?;
    let shared = Shared::new(&frame_pool)?;
    let input = XdpDevice::attach(&settings.input, &shared, settings.options.clone())?;
    let output = XdpDevice::attach(&settings.output, &shared, settings.options.clone())?;
    let (mut from, mut to) = (input.queue(0)?, output.queue(0)?);
    let mut frames = Freelist::new(frame_pool.clone(), 512);
    input.steering()?.set_active(true)?;
    println!("{input}; {output}; {}", frame_pool.memory().pages());
    let header = [settings.to, output.mac()].concat();
    let (mut burst, mut moved, mut bursts, mut idle, mut lost) = (Burst::new(), 0, 0, 0, 0);
    let begin = Instant::now();
    while begin.elapsed() < settings.time {
        for _ in 0..64 {
            from.receive(&mut burst, &mut frames);
            to.tend(&mut frames);
            if burst.is_empty() {
                idle += 1;
                if settings.wait {
                    wait(&from);
                }
                continue;
            }
            burst
                .places_mut()
                .iter_mut()
                .flatten()
                .for_each(|frame| decrement_ttl(frame.data_mut(), &header));
            let count = burst.len();
            let refused = to.transmit(&mut burst, &mut frames);
            let left = refused + burst.free_all(&mut frames);
            (bursts, moved, lost) = (bursts + 1, moved + count - left, lost + left);
        }
    }
    let mpps = moved as f64 / begin.elapsed().as_secs_f64() / 1e6;
    let batch = moved as f64 / f64::from(bursts.max(1));
    println!(
        "{mpps:.3} Mpps, {batch:.1} a burst, {idle} idle, {lost} did not leave, {:?}",
        from.device_counters()
    );
    from.close(&mut frames);
    to.close(&mut frames);
    Ok(())
}

/// New addresses, one hop less; IPv4 and IPv6 without tags.
fn decrement_ttl(packet: &mut [u8], header: &[u8]) {
    packet[..12].copy_from_slice(header);
    if packet[12..14] == [8, 0] {
        packet[22] -= 1;
        let sum = u32::from(u16::from_be_bytes([packet[24], packet[25]])) + 0x0100;
        packet[24..26].copy_from_slice(&((sum + u32::from(sum >= 0xffff)) as u16).to_be_bytes());
    } else {
        packet[21] -= 1;
    }
}

/// Sleeps until a frame comes in, at most a millisecond.
fn wait(port: &impl Port) {
    use std::os::fd::AsRawFd;
    let Some(fd) = port.wait_on() else { return };
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one `pollfd` that outlives the call.
    unsafe { libc::poll(&mut poll, 1, 1) };
}
