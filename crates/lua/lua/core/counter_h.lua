-- The layout of a counter: one 64-bit number.

require("ffi").cdef [[ struct counter { uint64_t c; }; ]]
return {}
