-- The name that this module had before ICMP was split by family.

return require("lib.protocol.icmp.ipv6.ptb")
