-- checksum(pointer, length, initial), under the name that Snabb's lib.checksum takes it from; so it may not ask for
-- lib.checksum itself.

local C = require("ffi").C
require("lib.checksum_h")

return { checksum = C.cksum }
