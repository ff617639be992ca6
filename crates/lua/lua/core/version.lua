-- The version that programs print: that of brickmoon.

return { version = require("core.startup").bridge.version, extra_version = "brickmoon" }
