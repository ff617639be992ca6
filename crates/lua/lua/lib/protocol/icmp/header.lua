-- The module's name from before ICMP was split by address family. It is the IPv6 class, which also handles IPv4
-- messages, since the pseudo-header is only included if it is given.

return require("lib.protocol.icmp.ipv6.header")
