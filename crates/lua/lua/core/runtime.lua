-- What Lua and Rust share: links, packets, the freelist and the calls between them, as C structs.
--
-- The layouts are those of crates/lua/src/runtime.rs, crates/link/src/link.rs and crates/frame/src. Everything done for
-- each packet is a load or a store here; Rust is only called for rare things.

local ffi = require("ffi")
local bridge = require("core.startup").bridge

ffi.cdef[[
struct packet;
/* `write` is a 32-bit number below 1024 to Rust. Here it has a type of its own: the compiler takes values of one
   type at two addresses for the same, and would load both indices anew for each packet that is passed on. */
enum { LINK_RING_SIZE = 1024, LINK_MAX_PACKETS = LINK_RING_SIZE - 1 };
struct link {
   struct packet *packets[LINK_RING_SIZE];
   int32_t read;
   int16_t write, write_high;
   uint64_t txbytes, txdrop, txpackets;
   uint64_t kinds;
};
struct freelist {
   int32_t held, limit;
   int64_t traded;
   struct packet *list[1];
};
struct brickmoon_jit { uint64_t traces, aborts, flushes, code_bytes; };
struct brickmoon_place { uint64_t from, to; char line[112]; };
struct brickmoon;
struct brickmoon_native;
struct brickmoon {
   struct freelist *freelist;
   struct link *links;
   int32_t links_max, room;
   uint64_t now_ns;
   int32_t failed, worker;
   uint64_t moved;
   const volatile int32_t *interrupted, *pause, *trouble, *asked;
   void (*refill)(struct brickmoon *);
   void (*spill)(struct brickmoon *);
   uint64_t (*clock)(struct brickmoon *);
   void (*wait)(struct brickmoon *, uint64_t ns);
   void (*pull)(struct brickmoon_native *);
   void (*push)(struct brickmoon_native *);
   struct brickmoon_jit jit;
   int32_t rest_us;
   uint32_t setup;
   struct brickmoon_place *places;
   int32_t places_max;
};
struct brickmoon_frees { uint64_t packets, bytes, short_bytes; };
]]

local shared = ffi.cast("struct brickmoon *", bridge.address)

-- Packets have no field `data`: it is what `at` points to. `room` is for packets that are part of a program's own
-- structure; all others have their slot, and no memory for `room`.
ffi.cdef(([[
enum { PACKET_PAYLOAD_SIZE = %d };
struct packet {
   uint16_t length;
   uint16_t slot_size, start, dropped;
   unsigned char *at;
   uint16_t port, interface, network, verdict;
   uint32_t next_hop, chosen;
   unsigned char *slot;
   uint64_t dpdk[3]; // what a mempool of DPDK keeps in front of its mbuf
   unsigned char room[PACKET_PAYLOAD_SIZE];
};
]]):format(shared.room))

local cast, whole_t = ffi.cast, ffi.typeof("unsigned char (*)[$]", shared.room)

-- `data` is an array of the maximum packet length, so that ffi.sizeof() tells how much can be read into it.
ffi.metatype("struct packet", {
   __index = function (p, key)
      if key == "data" then
         local at = p.at
         if at ~= nil then return cast(whole_t, at)[0] end
         return p.room
      end
      error(("'struct packet' has no member named '%s'"):format(tostring(key)), 2)
   end,
})

return {
   bridge = bridge,
   shared = shared,
   freelist = shared.freelist,
   -- Freed packets, as counted by core.packet and shown by core.app.
   frees = ffi.new("struct brickmoon_frees"),
}
