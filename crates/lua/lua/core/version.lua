-- What programs print as their version: brickmoon's own.

return { version = require("core.startup").bridge.version, extra_version = "brickmoon" }
