//! A finding as a shell script that needs nothing of this crate: the lab, the steps, the packets.

use crate::model::compare::hex;
use crate::model::filters;
use crate::model::probes;
use crate::model::run::Finding;
use crate::model::step::{Place, Step, Tool};
use bm_tests::lab::{Ends, Lab, SIDES};
use bm_tests::subject::{Forwarding, Subject};
use std::fmt::Write;

/// Frames of a script; the first are those of which a difference speaks.
const FRAMES_MAX: usize = 12;

/// The script of a finding.
pub fn of(finding: &Finding) -> String {
    let Finding { seed, subject, what, steps, .. } = finding;
    let mut text = format!("#!/bin/sh\n# BM_SEED={seed}: {subject} differs from Linux alone.\n");
    for line in what.lines() {
        let _ = writeln!(text, "#   {line}");
    }
    text += "# As root; BRICKMOON=PATH names the binary, BRICKMOON=true is Linux alone. Shows what leaves the router.\n";
    text += "set -u; BRICKMOON=${BRICKMOON:-brickmoon}; src=bm-src rtr=bm-rtr snk=bm-snk config=$(mktemp)\n";
    text += "echo '[filter]' > $config\n";
    text += "trap 'kill $pids; for n in $src $rtr $snk; do ip netns del $n; done; rm $config' EXIT; pids=\n";
    text += "for n in $src $rtr $snk; do ip netns add $n; done\n";
    for (place, tool, lines) in Lab::script(Ends::Silent) {
        text += &command(place_name(&place), tool, &lines);
    }
    let _ = writeln!(
        text,
        "ip netns exec $rtr $BRICKMOON up{} --config $config --port r0 --port r1 --port r2 & pids=\"$pids $!\"; sleep 3",
        options(subject)
    );
    for step in steps {
        text += &of_step(step);
    }
    text += "sleep 1\nfor i in s0:$src k0:$snk k1:$snk; do ip netns exec ${i#*:} tcpdump -Q in -nexi ${i%:*} & pids=\"$pids $!\"; done; sleep 1\n";
    text += "send() { ip netns exec $1 python3 -c 'import socket, sys\ns = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind((sys.argv[1], 0))\ns.send(bytes.fromhex(sys.argv[2]))' $2 $3; }\n";
    let all = probes::of_round(finding.round);
    for (side, frame) in all.iter().filter(|(_, frame)| is_about(what, frame)).take(FRAMES_MAX) {
        let place = if side.host() == "s0" { "$src" } else { "$snk" };
        let _ = writeln!(text, "send {place} {} {}", side.host(), hex(frame));
    }
    text + "sleep 1\n"
}

/// Whether a difference speaks of a frame with this destination.
fn is_about(what: &str, frame: &[u8]) -> bool {
    // What is shown of a frame contains the end of the packet's addresses, also as part of an error.
    let Some(addresses) = frame.get(26..34).or(frame.get(22..30)) else { return false };
    what.contains(&hex(addresses))
}

fn place_name(name: &str) -> &'static str {
    match name {
        "src" => "$src",
        "snk" => "$snk",
        _ => "$rtr",
    }
}

fn options(subject: &Subject) -> &'static str {
    match subject {
        Subject::Brickmoon { forwarding: Forwarding::User, .. } => " --path user",
        Subject::Brickmoon { forwarding: Forwarding::Kernel, .. } => " --path kernel --attach xdp",
        Subject::Brickmoon { forwarding: Forwarding::KernelTc, .. } => " --path kernel --attach tc",
        _ => "",
    }
}

fn of_step(step: &Step) -> String {
    let place = match step.place {
        Place::Router => "$rtr",
        Place::Source => "$src",
        Place::Sink => "$snk",
    };
    let lines = step.whole().replace("@src", "$src").replace("@rtr", "$rtr").replace("@snk", "$snk");
    match step.tool {
        Tool::Verify => "$BRICKMOON verify\n".to_owned(),
        Tool::Filter => {
            let config = filters::config(&lines);
            let alone: String = SIDES
                .iter()
                .map(|side| {
                    let (port, table) = (side.router(), filters::table(side.router()));
                    let make = if lines.is_empty() { String::new() } else { filters::ruleset(&lines, port) };
                    format!("table netdev {table}\ndelete table netdev {table}\n{make}")
                })
                .collect();
            let alone = command(place, "nft -f -", &alone);
            format!("cat > $config <<END\n{config}END\n$BRICKMOON reload\n[ $BRICKMOON != true ] || {alone}")
        }
        Tool::Set => {
            let settings = lines.lines().filter_map(|line| line.split_once(' '));
            let lines = settings
                .map(|(path, value)| format!("echo {value} > /proc/sys/{path}\n"))
                .collect::<String>();
            command(place, "sh", &lines)
        }
        Tool::Ip => command(place, "ip -force -batch -", &lines),
        Tool::Ip6 => command(place, "ip -6 -force -batch -", &lines),
        Tool::Tc => command(place, "tc -force -batch -", &lines),
        Tool::Nft => command(place, "nft -f -", &lines),
    }
}

/// A command in a namespace that reads lines.
fn command(place: &str, tool: &str, lines: &str) -> String {
    format!("ip netns exec {place} {tool} <<END\n{}\nEND\n", lines.trim_end())
}

/// The difference, the steps and the script, for a report.
pub fn report(finding: &Finding) -> String {
    let mut text =
        format!("BM_SEED={}: {} differs from Linux alone: {}\n", finding.seed, finding.subject, finding.what);
    for step in &finding.steps {
        let _ = writeln!(text, "  step {:?}: {step}", step.kind);
    }
    text
}
