-- The name that ICMP had before it was split by family: the form for IPv6, which also takes IPv4 messages, as the
-- pseudo-header goes in only if it is given.

return require("lib.protocol.icmp.ipv6.header")
