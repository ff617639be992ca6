-- Memory in huge pages, allocated in pieces that are never freed.
--
-- Programs request it as DMA memory. Our devices have their own memory (the frame region), so there are no physical
-- addresses here. Programs that expect one get the virtual address, which is fine for any use but programming a NIC.

local ffi = require("ffi")
local sys = require("brickmoon.sys")

local M = { base_page_size = 4096 }

-- The size of a huge page in bytes, and how many of them the system has reserved.
local function read_huge_pages ()
   local file = io.open("/proc/meminfo")
   local text = file and file:read("*a") or ""
   if file then file:close() end
   local kib = tonumber(text:match("Hugepagesize:%s+(%d+) kB"))
   return kib and kib > 0 and kib * 1024 or 2 * 1024 * 1024, tonumber(text:match("HugePages_Total:%s+(%d+)")) or 0
end

-- The size of a huge page in bytes, and its binary logarithm.
M.huge_page_size = read_huge_pages()
M.huge_page_bits = math.floor(math.log(M.huge_page_size) / math.log(2) + 0.5)

-- The size that mappings of huge pages are multiples of; that of a plain page if the system has reserved no huge ones.
-- Programs request huge pages, fall back to plain ones, and round up the size that they unmap in both cases: with the
-- larger size they would then unmap memory that is not theirs.
function M.get_huge_page_size ()
   local size, pages = read_huge_pages()
   return pages > 0 and size or M.base_page_size
end

-- { pointer, physical, size, used, huge } of each piece allocated from the system.
M.chunks = {}

local function next_chunk ()
   local at, huge = sys.map_memory(M.huge_page_size, true)
   if not at then error(("memory: cannot allocate %d bytes: %s"):format(M.huge_page_size, huge), 3) end
   local chunk = { pointer = ffi.cast("char *", at), physical = ffi.cast("uint64_t", at),
                   size = M.huge_page_size, used = 0, huge = huge }
   M.chunks[#M.chunks + 1] = chunk
   return chunk
end

-- Allocates zeroed memory. Returns the pointer, the address as a number (see above) and the size. More than a huge
-- page is an error.
function M.dma_alloc (bytes, align)
   if bytes > M.huge_page_size then
      error(("memory: %d bytes requested, but one allocation can have at most %d"):format(bytes, M.huge_page_size), 2)
   end
   align = align or 128
   local chunk = M.chunks[#M.chunks] or next_chunk()
   local where = math.ceil(chunk.used / align) * align
   if where + bytes > chunk.size then chunk, where = next_chunk(), 0 end
   chunk.used = where + bytes
   return chunk.pointer + where, chunk.physical + where, bytes
end

-- The address as a number.
function M.virtual_to_physical (pointer) return ffi.cast("uint64_t", pointer) end

-- Nothing outlives the process, so there is nothing to do.
function M.shutdown () end

function M.selftest ()
   local a, address, size = M.dma_alloc(100)
   assert(size == 100 and M.virtual_to_physical(a) == address and address % 128 == 0)
   local b = M.dma_alloc(8, 4096)
   assert(M.virtual_to_physical(b) % 4096 == 0 and b[0] == 0 and b ~= a)
   b[7] = 1
   local whole = M.dma_alloc(M.huge_page_size)
   whole[M.huge_page_size - 1] = 1
   local chunks = #M.chunks
   M.dma_alloc(1)
   assert(#M.chunks == chunks + 1)
   local fine, why = pcall(M.dma_alloc, M.huge_page_size + 1)
   assert(not fine and why:match("one allocation can have"))
   assert(2 ^ M.huge_page_bits == M.huge_page_size)
   local _, pages = read_huge_pages()
   assert(M.get_huge_page_size() == (pages > 0 and M.huge_page_size or 4096))
end

return M
