-- The layout of packets comes with core.packet; modules require it by this name too.

require("core.packet")
return {}
