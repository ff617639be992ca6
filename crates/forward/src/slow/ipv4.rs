//! The handling of IPv4 packets that are not of the common kind.

use bm_fib::NextHop;
use bm_frame::{Frame, Meta};
use bm_stats::Reason;
use bm_wire::Family;
use bm_wire::icmp;
use bm_wire::ipv4::{self, Ipv4};
use bm_wire::prefix::Address as _;

use super::error::Error;
use super::onward::onward;
use super::option::{self, Context, Fault};
use super::{ALERTS_BURST, ALERTS_PER_SECOND, Core, Decision, Now, SlowCounter, address};
use crate::compiled::Ingress;
use crate::route::{self, Route};
use crate::stages::source;
use crate::stages::validate;
use crate::tables::Tables;
use crate::verdict::{Refusal, Verdict};

/// Where a packet goes and where it came in.
struct PacketRoute {
    interface: u16,
    vrf: u16,
    on: Option<Ingress>,
    source: u32,
    destination: u32,
    way: Route,
}

impl Core {
    /// Decides on the IPv4 packet at the frame's network offset; may write into its options.
    pub(super) fn decide_ipv4(&mut self, tables: &Tables, frame: &mut Frame, now: Now) -> Decision {
        let meta = *frame.meta();
        let packet = frame.data_mut().get_mut(usize::from(meta.network)..).unwrap_or(&mut []);
        let has_options = match validate::ipv4(packet) {
            Ok(_) => false,
            Err(Refusal::Slow(Verdict::Options)) => true,
            Err(refusal) => return refusal.into(),
        };
        let Ok(ip) = Ipv4::parse(&*packet) else { return Decision::Drop(Reason::Ipv4Short) };
        let packet_route = packet_route(tables, &meta, &ip);
        if route::is_linuxs(tables, Family::V4, packet_route.interface, &packet_route.way) {
            return Decision::Host;
        }
        if let Some(refusal) = refused_source(tables, &packet_route) {
            return refusal.into();
        }
        if has_options {
            self.with_options(tables, packet, &packet_route, now)
        } else {
            onward(tables, packet, packet_route.way, self.encrypts)
        }
    }

    /// Handles a packet with options. They are written only if the packet leaves immediately: one that waits is handled
    /// again, and one that causes an error is for Linux, or with IPsec is quoted as it arrived.
    fn with_options(
        &mut self,
        tables: &Tables,
        packet: &mut [u8],
        packet_route: &PacketRoute,
        now: Now,
    ) -> Decision {
        let header_len = usize::from(packet[0] & 0x0f) * 4;
        let known_as = route::to(tables, packet_route.vrf, packet_route.source.show(), || 0).out();
        let known_as =
            known_as.map_or(0, |(hop, interface)| own_address(tables, hop, interface, packet_route.source));
        let context = Context {
            address: known_as,
            midnight_ms: now.midnight_ms,
            is_ours: &|address| route::to(tables, packet_route.vrf, address.show(), || 0) == Route::Host,
        };
        let mut options = [0; ipv4::HEADER_LEN_MAX - ipv4::HEADER_LEN];
        let options = &mut options[..header_len - ipv4::HEADER_LEN];
        options.copy_from_slice(&packet[ipv4::HEADER_LEN..header_len]);
        let done = option::process(options, &context);
        let fate = match done.fault {
            Some(Fault::SourceRoute) if tables.settings.source_routes => return Decision::Host,
            Some(Fault::SourceRoute) => return Decision::Drop(Reason::Ipv4Options),
            Some(Fault::At(pointer)) => {
                Decision::Tell(icmp::parameter_problem(pointer).into(), Reason::Ipv4Options)
            }
            None if done.alert && self.may_alert(tables, packet, packet_route.way, now) => {
                return Decision::Host;
            }
            None => onward(tables, packet, packet_route.way, self.encrypts),
        };
        match fate {
            // Linux writes the options before it knows of the error, which quotes them so.
            Decision::Tell(..) if done.changed && !self.encrypts => Decision::Host,
            Decision::Tell(Error::Ipv4 { problem, by_route, .. }, reason) => {
                match done.echo(options, &context) {
                    Some(options) => Decision::Tell(Error::Ipv4 { problem, by_route, options }, reason),
                    None => Decision::Drop(reason),
                }
            }
            // Which of its addresses it writes there is as uncertain as the source of an error.
            Decision::Send(..) | Decision::Cut(..)
                if done.changed && !self.encrypts && tables.linux_tells(Family::V4) =>
            {
                Decision::Host
            }
            Decision::Send(..) | Decision::Cut(..) if done.changed => {
                let leaves_with = packet_route.way.out().map_or(0, |(hop, interface)| {
                    own_address(tables, hop, interface, packet_route.destination)
                });
                done.record_again(options, leaves_with);
                packet[ipv4::HEADER_LEN..header_len].copy_from_slice(options);
                let sum = bm_wire::checksum::ipv4_header(&packet[..header_len]);
                packet[Ipv4::<&[u8]>::CHECKSUM].copy_from_slice(&sum.to_be_bytes());
                fate
            }
            fate => fate,
        }
    }

    /// Whether Linux may get a packet with a Router Alert. Those above the limit are routed like any other, and so are those
    /// that are encrypted, which Linux cannot do.
    pub(super) fn may_alert(&mut self, tables: &Tables, packet: &[u8], way: Route, now: Now) -> bool {
        if let (Some(policies), Some((_, out))) = (&self.policies, way.out())
            && policies.protect_or_discard(tables, packet, out)
        {
            return false;
        }
        let may = self.alerts.take(now.monotonic_ns, ALERTS_PER_SECOND, ALERTS_BURST);
        if !may {
            self.bump(SlowCounter::AlertsLimited);
        }
        may
    }
}

/// What the tables say about a packet.
fn packet_route(tables: &Tables, meta: &Meta, ip: &Ipv4<&[u8]>) -> PacketRoute {
    let interface = meta.interface;
    let on = tables.compiled.ingress.get(usize::from(interface)).copied();
    let vrf = on.map_or(0, |on| on.vrf);
    let (source, destination) = (ip.source(), ip.destination());
    let way = route::of_packet(tables, meta, vrf, destination.show(), ip.packet());
    PacketRoute { interface, vrf, on, source, destination, way }
}

/// Why the source may not send this packet through this router, if it would be forwarded.
fn refused_source(tables: &Tables, packet_route: &PacketRoute) -> Option<Refusal> {
    let PacketRoute { interface, on, source, way, .. } = *packet_route;
    way.out()?;
    let on = on?;
    source::refused(tables, &on, interface, source)
}

/// Our address on the way out to `destination`.
fn own_address(tables: &Tables, hop: NextHop, interface: u16, destination: u32) -> u32 {
    address::ipv4(tables, interface, address::gateway_ipv4(tables, hop), destination)
}
