-- checksum(pointer, length, initial), under the name that Snabb's lib.checksum takes it from.

return { checksum = require("lib.checksum").ipsum }
