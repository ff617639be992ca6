// DynASM's encoder for x86-64, compiled from the LuaJIT sources in the mlua crate. Lua modules with the suffix `.dasl`
// call its functions through FFI as `dasm_*`.

#include <stddef.h>

#define Dst_DECL dasm_State **Dst
#define Dst_REF (*Dst)

// Resolves symbols outside of the generated code; DynASM's Lua binding sets it when needed.
int (*DASM_EXTERN_FUNC)(void *context, unsigned char *address, int index, int type);

#define DASM_EXTERN(context, address, index, type) \
	(DASM_EXTERN_FUNC ? DASM_EXTERN_FUNC((void *)(context), (address), (index), (type)) : 0)

// Enables DynASM's checks, which programs expect.
#define DASM_CHECKS 1
#include "dasm_proto.h"
#include "dasm_x86.h"
