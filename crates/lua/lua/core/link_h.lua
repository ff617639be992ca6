-- core.link declares the layout of links; modules require it by this name too.

require("core.link")
return {}
