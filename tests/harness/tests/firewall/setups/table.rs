//! The set-ups: what an engineer types, in a router with `r0` to the LAN and `r1` to the WAN.

/// How the packets of established connections are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fast {
    /// By brickmoon itself, whether it knows flows or not.
    Always,
    /// By brickmoon itself once it knows flows.
    ByFlows,
    /// By Linux: what it does differs from packet to packet, or is no matter of rules.
    Never,
}

/// Where connections begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opens {
    /// In the LAN, to a server in the Internet.
    Lan,
    /// In the Internet, to the router's own address, which forwards ports 8080 and 5353 to a server in the LAN.
    Wan,
}

/// One set-up.
pub struct Setup {
    pub name: &'static str,
    /// Programs that it needs.
    pub needs: &'static [&'static str],
    /// Lines for a shell.
    pub set: &'static str,
    /// Lines that undo them, beside emptying all tables of nftables.
    pub unset: &'static str,
    pub opens: Opens,
    pub fast: Fast,
}

const NFT: &[&str] = &["nft"];
const IPTABLES: &[&str] = &["nft", "iptables-nft"];

/// A set-up of rules alone, for connections from the LAN.
const fn rules(name: &'static str, needs: &'static [&'static str], fast: Fast, set: &'static str) -> Setup {
    Setup { name, needs, set, unset: "", opens: Opens::Lan, fast }
}

/// A set-up of rules alone that forwards connections from the Internet.
const fn forwards(name: &'static str, needs: &'static [&'static str], set: &'static str) -> Setup {
    Setup { name, needs, set, unset: "", opens: Opens::Wan, fast: Fast::ByFlows }
}

/// All of them. `BM_SETUP=N` runs the Nth, from 1.
pub const SETUPS: &[Setup] = &[
    rules("no rules", &[], Fast::Always, "true"),
    rules("a stateful firewall of nft", NFT, Fast::ByFlows, STATEFUL_NFT),
    rules("a stateful firewall of iptables", IPTABLES, Fast::ByFlows, STATEFUL_IPTABLES),
    rules("masquerading by nft", NFT, Fast::ByFlows, MASQUERADE_NFT),
    rules(
        "masquerading by iptables",
        IPTABLES,
        Fast::ByFlows,
        "iptables-nft -t nat -A POSTROUTING -o r1 -j MASQUERADE",
    ),
    forwards("forwarded ports by nft", NFT, FORWARDED_NFT),
    forwards("forwarded ports by iptables", IPTABLES, FORWARDED_IPTABLES),
    forwards("forwarded ports by a map", NFT, FORWARDED_MAP),
    forwards("Docker", IPTABLES, DOCKER),
    rules("firewalld", NFT, Fast::ByFlows, FIREWALLD),
    rules("ufw", IPTABLES, Fast::ByFlows, UFW),
    rules("a limit for new connections", NFT, Fast::ByFlows, LIMITED),
    rules("blocked addresses in a set", NFT, Fast::ByFlows, BLOCKED),
    rules("blocked prefixes in a set", NFT, Fast::ByFlows, BLOCKED_PREFIXES),
    rules("a rule that only counts", NFT, Fast::ByFlows, COUNTED),
    rules("a mark without a rule for it", NFT, Fast::ByFlows, MARKED),
    rules("bogons, and the way back by fib", NFT, Fast::ByFlows, BOGONS),
    rules("notrack", NFT, Fast::ByFlows, NOTRACK),
    rules("DSCP set by a rule", NFT, Fast::Never, DSCP),
    rules("a rate for each address", NFT, Fast::Never, RATES),
    Setup {
        unset: "ip rule del fwmark 7 table 77\nip route flush table 77\n",
        ..rules("routed by mark", NFT, Fast::Never, ROUTED_BY_MARK)
    },
    Setup { unset: "tc qdisc del dev r1 root\n", ..rules("htb at the WAN", &["tc"], Fast::Never, HTB) },
    Setup {
        unset: "tc qdisc del dev r0 clsact\n",
        ..rules("a port dropped by tc", &["tc"], Fast::Never, FLOWER)
    },
];

const STATEFUL_NFT: &str = "nft -f - <<'END'
table inet filter {
 chain input {
  type filter hook input priority filter; policy drop;
  ct state established,related accept
  ct state invalid drop
  iif lo accept
  icmp type echo-request accept
  icmpv6 type { echo-request, nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert } accept
  iifname r0 tcp dport 22 accept
 }
 chain forward {
  type filter hook forward priority filter; policy drop;
  ct state established,related accept
  ct state invalid drop
  iifname r0 oifname r1 accept
 }
}
END
";

const STATEFUL_IPTABLES: &str = "iptables-nft -P FORWARD DROP
iptables-nft -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
iptables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP
iptables-nft -A FORWARD -i r0 -o r1 -j ACCEPT
iptables-nft -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
iptables-nft -A INPUT -i r0 -p tcp --dport 22 -j ACCEPT
";

const MASQUERADE_NFT: &str = "nft add table ip nat
nft 'add chain ip nat postrouting { type nat hook postrouting priority srcnat; }'
nft add rule ip nat postrouting oifname r1 masquerade
";

const FORWARDED_NFT: &str = "nft add table ip nat
nft 'add chain ip nat prerouting { type nat hook prerouting priority dstnat; }'
nft add rule ip nat prerouting iifname r1 tcp dport 8080 dnat to 192.0.2.5:80
nft add rule ip nat prerouting iifname r1 udp dport 5353 dnat to 192.0.2.5:53
";

const FORWARDED_IPTABLES: &str =
    "iptables-nft -t nat -A PREROUTING -i r1 -p tcp --dport 8080 -j DNAT --to-destination 192.0.2.5:80
iptables-nft -t nat -A PREROUTING -i r1 -p udp --dport 5353 -j DNAT --to-destination 192.0.2.5:53
iptables-nft -t nat -A POSTROUTING -o r1 -j MASQUERADE
";

const FORWARDED_MAP: &str = "nft -f - <<'END'
table ip nat {
 map servers {
  type inet_service : ipv4_addr
  elements = { 8080 : 192.0.2.5, 8443 : 192.0.2.6, 5353 : 192.0.2.5 }
 }
 chain prerouting {
  type nat hook prerouting priority dstnat;
  iifname r1 dnat to tcp dport map @servers
  iifname r1 dnat to udp dport map @servers
 }
}
END
";

/// What Docker sets for one network, whose bridge is `r0` here, and one container with two published ports.
const DOCKER: &str = "iptables-nft-restore <<'END'
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 192.0.2.0/24 ! -o r0 -j MASQUERADE
-A POSTROUTING -s 192.0.2.5/32 -d 192.0.2.5/32 -p tcp -m tcp --dport 80 -j MASQUERADE
-A POSTROUTING -s 192.0.2.5/32 -d 192.0.2.5/32 -p udp -m udp --dport 53 -j MASQUERADE
-A DOCKER -i r0 -j RETURN
-A DOCKER ! -i r0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 192.0.2.5:80
-A DOCKER ! -i r0 -p udp -m udp --dport 5353 -j DNAT --to-destination 192.0.2.5:53
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o r0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o r0 -j DOCKER
-A FORWARD -i r0 ! -o r0 -j ACCEPT
-A FORWARD -i r0 -o r0 -j ACCEPT
-A DOCKER -d 192.0.2.5/32 ! -i r0 -o r0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER -d 192.0.2.5/32 ! -i r0 -o r0 -p udp -m udp --dport 53 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i r0 ! -o r0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o r0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
END
";

/// The chains of firewalld with `r0` in the zone `internal` and `r1` in `external`, which masquerades.
const FIREWALLD: &str = "nft -f - <<'END'
table inet firewalld {
 chain filter_PREROUTING {
  type filter hook prerouting priority filter + 10; policy accept;
  icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
  meta nfproto ipv6 fib saddr . mark . iif oif missing drop
 }
 chain nat_PREROUTING {
  type nat hook prerouting priority dstnat + 10; policy accept;
  jump nat_PREROUTING_ZONES
 }
 chain nat_PREROUTING_ZONES {
  iifname \"r0\" return
  return
 }
 chain nat_POSTROUTING {
  type nat hook postrouting priority srcnat + 10; policy accept;
  jump nat_POSTROUTING_ZONES
 }
 chain nat_POSTROUTING_ZONES {
  oifname \"r0\" return
  oifname \"r1\" goto nat_POST_external
 }
 chain nat_POST_external {
  meta nfproto ipv4 oifname != \"lo\" masquerade
 }
 chain filter_INPUT {
  type filter hook input priority filter + 10; policy accept;
  ct state { established, related } accept
  ct status dnat accept
  iifname \"lo\" accept
  ct state invalid drop
  tcp dport 22 accept
  reject with icmpx admin-prohibited
 }
 chain filter_FORWARD {
  type filter hook forward priority filter + 10; policy accept;
  ct state { established, related } accept
  ct status dnat accept
  iifname \"lo\" accept
  ct state invalid drop
  jump filter_FORWARD_ZONES
  reject with icmpx admin-prohibited
 }
 chain filter_FORWARD_ZONES {
  iifname \"r0\" goto filter_FWD_internal
  iifname \"r1\" goto filter_FWD_external
 }
 chain filter_FWD_internal {
  oifname \"r1\" accept
  reject with icmpx admin-prohibited
 }
 chain filter_FWD_external {
  reject with icmpx admin-prohibited
 }
}
END
";

/// The chains of ufw that forwarded packets meet, with `ufw route allow in on r0 out on r1`.
const UFW: &str = "iptables-nft-restore <<'END'
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:ufw-before-logging-forward - [0:0]
:ufw-before-forward - [0:0]
:ufw-after-forward - [0:0]
:ufw-after-logging-forward - [0:0]
:ufw-reject-forward - [0:0]
:ufw-track-forward - [0:0]
:ufw-user-forward - [0:0]
:ufw-skip-to-policy-forward - [0:0]
-A FORWARD -j ufw-before-logging-forward
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-after-forward
-A FORWARD -j ufw-after-logging-forward
-A FORWARD -j ufw-reject-forward
-A FORWARD -j ufw-track-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -p icmp --icmp-type 3 -j ACCEPT
-A ufw-before-forward -p icmp --icmp-type 11 -j ACCEPT
-A ufw-before-forward -p icmp --icmp-type 12 -j ACCEPT
-A ufw-before-forward -p icmp --icmp-type 8 -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-user-forward -i r0 -o r1 -j ACCEPT
-A ufw-after-logging-forward -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix \"[UFW BLOCK] \"
-A ufw-skip-to-policy-forward -j DROP
COMMIT
END
";

const LIMITED: &str = "nft add table inet t
nft 'add chain inet t forward { type filter hook forward priority filter; policy drop; }'
nft add rule inet t forward ct state established,related accept
nft add rule inet t forward iifname r0 ct state new limit rate 100/second burst 50 packets accept
";

const BLOCKED: &str = "nft add table inet t
nft 'add set inet t blocked { type ipv4_addr; }'
nft 'add element inet t blocked { 192.0.2.9, 10.66.0.1, 10.66.0.2, 172.16.66.6 }'
nft 'add chain inet t forward { type filter hook forward priority filter; }'
nft add rule inet t forward ip saddr @blocked drop
nft add rule inet t forward ip daddr @blocked drop
";

const BLOCKED_PREFIXES: &str = "nft add table inet t
nft 'add set inet t blocked { type ipv4_addr; flags interval; }'
nft 'add element inet t blocked { 10.66.0.0/16, 10.67.1.0-10.67.1.99, 172.16.66.0/24 }'
nft 'add chain inet t forward { type filter hook forward priority filter; }'
nft add rule inet t forward ip saddr @blocked drop
nft add rule inet t forward ip daddr @blocked drop
";

const COUNTED: &str = "nft add table inet t
nft 'add chain inet t forward { type filter hook forward priority filter; }'
nft add rule inet t forward iifname r0 counter
nft add rule inet t forward iifname r1 counter
";

const MARKED: &str = "nft add table inet t
nft 'add chain inet t prerouting { type filter hook prerouting priority mangle; }'
nft add rule inet t prerouting iifname r0 meta mark set 0x10
";

const BOGONS: &str = "nft -f - <<'END'
table inet t {
 set bogons {
  type ipv4_addr
  flags interval
  elements = { 0.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/3 }
 }
 chain prerouting {
  type filter hook prerouting priority raw;
  iifname r1 ip saddr @bogons drop
  fib saddr . iif oif missing drop
 }
}
END
";

const NOTRACK: &str = "nft add table inet t
nft 'add chain inet t prerouting { type filter hook prerouting priority raw; }'
nft add rule inet t prerouting notrack
nft 'add chain inet t forward { type filter hook forward priority filter; policy drop; }'
nft add rule inet t forward ct state untracked accept
";

const DSCP: &str = "nft add table inet t
nft 'add chain inet t postrouting { type filter hook postrouting priority mangle; }'
nft add rule inet t postrouting oifname r1 ip dscp set cs5
nft add rule inet t postrouting oifname r0 ip dscp set af11
";

const RATES: &str = "nft -f - <<'END'
table ip t {
 set rates {
  type ipv4_addr
  size 65535
  flags dynamic,timeout
  timeout 1m
 }
 chain forward {
  type filter hook forward priority filter;
  update @rates { ip saddr limit rate over 1000000/second burst 100000 packets } drop
 }
}
END
";

const ROUTED_BY_MARK: &str = "ip rule add fwmark 7 table 77
ip route add 10.0.0.0/8 via 198.51.100.3 table 77
nft add table ip t
nft 'add chain ip t prerouting { type filter hook prerouting priority mangle; }'
nft add rule ip t prerouting iifname r0 meta mark set 7
";

const HTB: &str = "tc qdisc add dev r1 root handle 1: htb default 10
tc class add dev r1 parent 1: classid 1:1 htb rate 10gbit burst 10mb
tc class add dev r1 parent 1:1 classid 1:10 htb rate 10gbit burst 10mb
";

/// Where there is no flower, by a program of the old sort: UDP to port 9999 is dropped, the rest passes.
const FLOWER: &str = "tc qdisc add dev r0 clsact
tc filter add dev r0 ingress protocol ip flower ip_proto udp dst_port 9999 action drop 2>/dev/null ||
tc filter add dev r0 ingress protocol ip bpf da \
 bytecode '6,48 0 0 23,21 0 3 17,40 0 0 36,21 0 1 9999,6 0 0 2,6 0 0 0'
";
