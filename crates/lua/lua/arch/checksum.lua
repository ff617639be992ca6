-- checksum(pointer, length, initial), under the name by which Snabb's lib.checksum requires it. So this module must
-- not require lib.checksum.

local C = require("ffi").C
require("lib.checksum_h")

return { checksum = C.cksum }
