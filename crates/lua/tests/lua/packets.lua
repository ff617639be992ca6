-- What apps written for Snabb do with packets other than receiving and sending them.

local ffi, bit = require("ffi"), require("bit")
local packet, link = require("core.packet"), require("core.link")

-- Metadata in front of packets: 48 bytes before the packet's address, accessed by that address.
local notes_t = ffi.typeof("struct { uint64_t number[6]; } *")
local held = {}
for i = 1, 3000 do
   local p = packet.from_string(("%04d"):format(i))
   local room = bit.band(ffi.cast("uint64_t", p), packet.packet_alignment - 1)
   assert(room >= ffi.sizeof("uint64_t[6]"), "no room in front of a packet")
   local notes = ffi.cast(notes_t, ffi.cast("uint8_t *", p) - 48)
   for k = 0, 5 do notes.number[k] = i * 10 + k end
   held[i] = p
end
for i, p in ipairs(held) do
   assert(p.length == 4 and ffi.string(p.data, 4) == ("%04d"):format(i), "notes are in another packet")
   local notes = ffi.cast(notes_t, ffi.cast("uint8_t *", p) - 48)
   for k = 0, 5 do assert(notes.number[k] == i * 10 + k, "notes were written over") end
   packet.free(p)
end

-- Reads as much as fits and no more: data is an array of known size.
local p = packet.allocate()
assert(ffi.sizeof(p.data) == packet.max_payload and ffi.C.PACKET_PAYLOAD_SIZE == packet.max_payload)
local box = ffi.new("uint8_t *[1]")
box[0] = p.data
assert(box[0] == p.data and ffi.cast("uint8_t *", p.data) + 5 == p.data + 5)
p.data[packet.max_payload - 1] = 77
assert(box[0][packet.max_payload - 1] == 77)
local fine, why = pcall(function () return p.nonsense end)
assert(not fine and why:match("'struct packet' has no member named 'nonsense'"), why)
packet.free(p)

-- A table of structures that contain packets, which moves them in memory.
local entry_t = ffi.typeof("struct { uint16_t fragments; struct packet packet; } __attribute__((packed))")
local entries = ffi.new(ffi.typeof("$[4]", entry_t))
packet.append(entries[0].packet, "fragment 1, ", 12)
packet.append(entries[0].packet, "fragment 2", 10)
ffi.copy(entries[3], entries[0], ffi.sizeof(entry_t))
ffi.fill(entries[0], ffi.sizeof(entry_t), 0xff)
local whole = packet.clone(entries[3].packet)
assert(ffi.string(whole.data, whole.length) == "fragment 1, fragment 2")
packet.free(whole)

-- A packet in the program's own memory, longer than any of ours: headers can be prepended, and it is sent and freed
-- like others, but its memory is not freed.
local memory = ffi.new("uint8_t[?]", 50000)
local own = ffi.cast("struct packet *", require("core.lib").align(ffi.cast("uintptr_t", memory), packet.packet_alignment)
                                        + packet.default_headroom)
own.length = 15000
own.data[14999] = 9
own = packet.prepend(own, "header", 6)
assert(own.length == 15006 and own.data[15005] == 9 and ffi.string(own.data, 6) == "header")
local wire = link.new("wire")
link.transmit(wire, own)
assert(link.receive(wire) == own)
link.free(wire, "wire")
packet.free(own)
packet.free_internal(own)
for _ = 1, 5000 do
   local fresh = packet.allocate()
   assert(fresh ~= own and fresh.slot ~= nil)
   held[_] = fresh
end
for _ = 1, 5000 do packet.free(held[_]) end

-- An app that floods sends a packet first and clones it afterwards: a full link loses only its own copy.
local full, free = link.new("full"), link.new("free")
while not link.full(full) do link.transmit(full, packet.from_string("waits")) end
for i = 1, 500 do
   local frame = packet.shiftleft(packet.from_string(("x"):rep(i)..("%d"):format(i)), 1)
   link.transmit(full, frame)
   link.transmit(free, packet.clone(frame))
   local got = link.receive(free)
   assert(ffi.string(got.data, got.length) == ("x"):rep(i - 1)..i)
   packet.free(got)
end
assert(link.stats(full).txdrop == 500 and link.nreadable(full) == link.max)
link.free(full, "full")
link.free(free, "free")
