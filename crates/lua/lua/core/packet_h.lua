-- core.packet declares the layout of packets; modules require it by this name too.

require("core.packet")
return {}
