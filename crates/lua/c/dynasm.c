// DynASM's encoder for x86-64, compiled from the LuaJIT sources that the mlua crate brings along.
// Lua modules with the suffix `.dasl` find its functions as `dasm_*` through FFI.

#include <stddef.h>
#define Dst_DECL dasm_State **Dst
#define Dst_REF (*Dst)
#define DASM_CHECKS 1
#include "dasm_proto.h"
#include "dasm_x86.h"
