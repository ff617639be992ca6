// DynASM's encoder for x86-64, compiled from the LuaJIT sources that the mlua crate brings along.
// Lua modules with the suffix `.dasl` find its functions as `dasm_*` through FFI.

#include <stddef.h>

#define Dst_DECL dasm_State **Dst
#define Dst_REF (*Dst)

// Who resolves names from outside of the code; Lua's binding puts a function here when it needs one.
int (*DASM_EXTERN_FUNC)(void *context, unsigned char *address, int index, int type);

#define DASM_EXTERN(context, address, index, type) \
	(DASM_EXTERN_FUNC ? DASM_EXTERN_FUNC((void *)(context), (address), (index), (type)) : 0)

// Programs ask for a check of each step.
#define DASM_CHECKS 1
#include "dasm_proto.h"
#include "dasm_x86.h"
