-- The layout of links comes with core.link; modules require it by this name too.

require("core.link")
return {}
