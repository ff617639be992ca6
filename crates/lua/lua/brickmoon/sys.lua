-- The few system calls that our modules need, called through FFI.
--
-- Every function is declared under a private name for the real symbol, so that nothing here clashes with declarations
-- of a program or of ljsyscall. On failure a function returns nil and the system's message.

local ffi = require("ffi")

ffi.cdef [[
typedef struct { uint64_t inode; int64_t offset; uint16_t bytes; uint8_t type; char name[256]; } bm_dirent;
int bm_open(const char *path, int flags, int mode) __asm__("open");
int bm_close(int fd) __asm__("close");
int64_t bm_lseek(int fd, int64_t offset, int whence) __asm__("lseek");
int bm_ftruncate(int fd, int64_t bytes) __asm__("ftruncate");
int bm_fallocate(int fd, int64_t offset, int64_t bytes) __asm__("posix_fallocate");
int64_t bm_read(int fd, void *to, size_t bytes) __asm__("read");
void *bm_mmap(void *at, size_t bytes, int protection, int flags, int fd, int64_t offset) __asm__("mmap");
int bm_munmap(void *at, size_t bytes) __asm__("munmap");
int bm_mkdir(const char *path, unsigned mode) __asm__("mkdir");
int bm_fchmod(int fd, unsigned mode) __asm__("fchmod");
int bm_statx(int fd, const char *path, int flags, unsigned mask, void *to) __asm__("statx");
int bm_rmdir(const char *path) __asm__("rmdir");
int bm_unlink(const char *path) __asm__("unlink");
int bm_symlink(const char *target, const char *path) __asm__("symlink");
int64_t bm_readlink(const char *path, char *to, size_t bytes) __asm__("readlink");
int bm_access(const char *path, int mode) __asm__("access");
void *bm_opendir(const char *path) __asm__("opendir");
bm_dirent *bm_readdir(void *folder) __asm__("readdir");
int bm_closedir(void *folder) __asm__("closedir");
int bm_getpid(void) __asm__("getpid");
int bm_geteuid(void) __asm__("geteuid");
char *bm_strerror(int number) __asm__("strerror");
int bm_kill(int pid, int signal) __asm__("kill");
int bm_waitpid(int pid, int *status, int options) __asm__("waitpid");
int bm_spawn(int *pid, const char *path, void *actions, void *attributes, char *const *arguments,
             char *const *environment) __asm__("posix_spawn");
int bm_execve(const char *path, char *const *arguments, char *const *environment) __asm__("execve");
int bm_usleep(unsigned microseconds) __asm__("usleep");
void bm_exit(int status) __asm__("_exit");
extern char **bm_environ __asm__("environ");
]]
local C = ffi.C

local M = {}

local O_RDONLY, O_RDWR, O_CREAT, O_CLOEXEC = 0, 2, 0x40, 0x80000
-- The values of these two differ between architectures.
local O_DIRECTORY = ffi.arch == "arm64" and 0x4000 or 0x10000
local O_NOFOLLOW = ffi.arch == "arm64" and 0x8000 or 0x20000
local AT_EMPTY_PATH, STATX_BASIC_STATS, OWNER = 0x1000, 0x7ff, 20
local EINTR, EEXIST, EPERM, EISDIR = 4, 17, 1, 21
local PROT_READ, PROT_WRITE, MAP_SHARED, MAP_PRIVATE = 1, 2, 1, 2
local MAP_ANONYMOUS, MAP_HUGETLB, SEEK_END = 0x20, 0x40000, 2

local function why (number) return ffi.string(C.bm_strerror(number or ffi.errno())) end

local function done (result)
   if result == 0 then return true end
   return nil, why()
end

function M.getpid () return C.bm_getpid() end
function M.user () return C.bm_geteuid() end
function M.is_root () return C.bm_geteuid() == 0 end
function M.exists (path) return C.bm_access(path, 0) == 0 end
function M.writable (path) return C.bm_access(path, 2) == 0 end
function M.symlink (target, path) return done(C.bm_symlink(target, path)) end
function M.usleep (microseconds) C.bm_usleep(microseconds) end
-- Ends the process immediately.
function M.exit (status) C.bm_exit(status) end

-- Creates the directory and its parents. It is no error if it exists.
function M.mkdirs (path, mode)
   local at = path:sub(1, 1) == "/" and "" or "."
   for name in path:gmatch("[^/]+") do
      at = at.."/"..name
      if C.bm_mkdir(at, mode or 0x1ed) ~= 0 and ffi.errno() ~= EEXIST and not M.exists(at) then
         return nil, at..": "..why()
      end
   end
   return true
end

-- Creates a directory that only this user can access, or accepts an existing one that belongs to this user. A symbolic
-- link is refused: in a directory that everybody can write to, another user may have put it there.
function M.own_folder (path)
   local private = 0x1c0
   if C.bm_mkdir(path, private) ~= 0 and ffi.errno() ~= EEXIST then return nil, path..": "..why() end
   local fd = C.bm_open(path, O_RDONLY + O_DIRECTORY + O_NOFOLLOW + O_CLOEXEC, 0)
   if fd < 0 then return nil, path..": "..why() end
   local found = ffi.new("uint32_t[64]")
   local known = C.bm_statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, found) == 0
   local owner = tonumber(found[OWNER / 4])
   local reason = not known and why() or owner ~= C.bm_geteuid() and "it belongs to user "..owner
   if not reason and C.bm_fchmod(fd, private) ~= 0 then reason = why() end
   C.bm_close(fd)
   if reason then return nil, path..": "..reason end
   return true
end

-- Names in a directory, sorted, without `.` and `..`; nil if there is no such directory.
function M.names (path)
   local folder = C.bm_opendir(path)
   if folder == nil then return nil, why() end
   local names = {}
   while true do
      local entry = C.bm_readdir(folder)
      if entry == nil then break end
      local name = ffi.string(entry.name)
      if name ~= "." and name ~= ".." then names[#names + 1] = name end
   end
   C.bm_closedir(folder)
   table.sort(names)
   return names
end

-- Removes a file, a symbolic link, or a directory with all its content. Links are not followed.
function M.remove (path)
   path = path:gsub("/+$", "")
   if C.bm_unlink(path) == 0 then return true end
   local number = ffi.errno()
   if number ~= EISDIR and number ~= EPERM then return nil, why(number) end
   for _, name in ipairs(M.names(path) or {}) do M.remove(path.."/"..name) end
   return done(C.bm_rmdir(path))
end

-- Maps the first `bytes` bytes of a file. With `create` the file is first created or resized.
-- Returns the address and the size that the file had before (nil if it did not exist).
function M.map_file (path, bytes, readonly, create)
   local flags = create and O_RDWR + O_CREAT or readonly and O_RDONLY or O_RDWR
   local fd = C.bm_open(path, flags + O_CLOEXEC, 0x1a4)
   if fd < 0 then return nil, why() end
   local before = tonumber(C.bm_lseek(fd, 0, SEEK_END))
   if not create and before < bytes then
      C.bm_close(fd)
      return nil, ("it has %d bytes, but the type needs %d"):format(before, bytes)
   end
   if create then
      local reason = C.bm_ftruncate(fd, bytes) ~= 0 and why()
      -- On a full file system this returns an error; storing to a page without a block would kill the process.
      local number = reason and 0 or C.bm_fallocate(fd, 0, bytes)
      if number ~= 0 then reason = why(number) end
      if reason then
         C.bm_close(fd)
         if before == 0 then M.remove(path) end
         return nil, reason
      end
   end
   local protection = readonly and PROT_READ or PROT_READ + PROT_WRITE
   local at = C.bm_mmap(nil, bytes, protection, MAP_SHARED, fd, 0)
   local reason = why()
   C.bm_close(fd)
   if ffi.cast("intptr_t", at) == -1 then return nil, reason end
   return at, before
end

-- Anonymous memory, on huge pages if requested and available. Returns the address and whether the pages are huge.
function M.map_memory (bytes, huge)
   local flags = MAP_PRIVATE + MAP_ANONYMOUS + (huge and MAP_HUGETLB or 0)
   local at = C.bm_mmap(nil, bytes, PROT_READ + PROT_WRITE, flags, -1, 0)
   if ffi.cast("intptr_t", at) ~= -1 then return at, huge or false end
   if huge then return M.map_memory(bytes, false) end
   return nil, why()
end

function M.unmap (at, bytes) return done(C.bm_munmap(at, bytes)) end

function M.readlink (path)
   local bytes = 4096
   local text = ffi.new("char[?]", bytes)
   local length = C.bm_readlink(path, text, bytes)
   if length < 0 then return nil, ffi.errno() end
   return ffi.string(text, length)
end

-- `count` random bytes from the kernel, as uint8_t[count]. The fixed length allows assigning them to a field.
function M.random_bytes (count)
   local bytes = ffi.new(ffi.typeof("uint8_t[$]", count))
   local fd = C.bm_open("/dev/urandom", O_RDONLY + O_CLOEXEC, 0)
   if fd < 0 then error("cannot open /dev/urandom: "..why()) end
   local have = 0
   while have < count do
      local got = tonumber(C.bm_read(fd, bytes + have, count - have))
      if got > 0 then have = have + got elseif ffi.errno() ~= EINTR then break end
   end
   C.bm_close(fd)
   if have < count then error("cannot read /dev/urandom: "..why()) end
   return bytes
end

-- The environment variables as a table.
function M.environ ()
   local all, at = {}, 0
   while C.bm_environ[at] ~= nil do
      local name, value = ffi.string(C.bm_environ[at]):match("^([^=]+)=(.*)$")
      if name then all[name] = value end
      at = at + 1
   end
   return all
end

-- A NULL-terminated array of C strings. The second result keeps the strings alive.
local function string_array (strings)
   local array = ffi.new("char *[?]", #strings + 1)
   for i, text in ipairs(strings) do array[i - 1] = ffi.cast("char *", text) end
   return array, strings
end

-- Starts a process with this environment (a table; nil means ours). Returns its pid.
function M.spawn (path, arguments, environment)
   local settings = {}
   for name, value in pairs(environment or M.environ()) do settings[#settings + 1] = name.."="..value end
   local pid = ffi.new("int[1]")
   local argv, keep_arguments = string_array(arguments)
   local envp, keep_settings = string_array(settings)
   local failed = C.bm_spawn(pid, path, nil, nil, argv, envp)
   if failed ~= 0 then return nil, path..": "..why(failed) end
   return pid[0], keep_arguments, keep_settings
end

-- Replaces this process by another program; returns only on failure.
function M.execve (path, arguments)
   local settings = {}
   for name, value in pairs(M.environ()) do settings[#settings + 1] = name.."="..value end
   C.bm_execve(path, (string_array(arguments)), (string_array(settings)))
   return nil, why()
end

function M.kill (pid, signal) return done(C.bm_kill(pid, signal)) end

-- nil while the child runs; then "exit" or "signal", and the number. With `block`, waits for the child to end.
function M.wait (pid, block)
   local status = ffi.new("int[1]")
   local found = C.bm_waitpid(pid, status, block and 0 or 1)
   if found == 0 then return nil end
   if found < 0 then return "gone", 0 end
   local signal = bit.band(status[0], 0x7f)
   if signal ~= 0 then return "signal", signal end
   return "exit", bit.band(bit.rshift(status[0], 8), 0xff)
end

function M.selftest ()
   local folder = os.tmpname()
   os.remove(folder)
   assert(M.mkdirs(folder.."/a/b") and M.mkdirs(folder.."/a/b"), "creating it twice is no error")
   local at, before = M.map_file(folder.."/a/file", 8, false, true)
   assert(before == 0)
   ffi.cast("uint64_t *", at)[0] = 42
   local again, size = M.map_file(folder.."/a/file", 8, true)
   assert(ffi.cast("uint64_t *", again)[0] == 42 and size == 8)
   local none, reason = M.map_file(folder.."/a/file", 16, true)
   assert(none == nil and reason == "it has 8 bytes, but the type needs 16", reason)
   assert(M.unmap(at, 8) and M.unmap(again, 8))
   assert(M.symlink("file", folder.."/a/link") and M.readlink(folder.."/a/link") == "file")
   assert(table.concat(M.names(folder.."/a"), " ") == "b file link")
   local own = folder.."/own"
   assert(M.own_folder(own) and M.own_folder(own), "creating it twice is no error")
   assert(M.symlink(folder.."/a", folder.."/to-a"))
   local refused, link = M.own_folder(folder.."/to-a")
   assert(not refused and link:find("Not a directory", 1, true), link)
   if M.is_root() then
      os.execute("chown 65534 "..own)
      local foreign, owner = M.own_folder(own)
      assert(not foreign and owner == own..": it belongs to user 65534", owner)
   end
   assert(M.remove(folder) and not M.exists(folder) and M.names(folder) == nil)
   local pid = assert(M.spawn("/bin/sh", { "sh", "-c", "exit 7" }))
   local how, number = M.wait(pid, true)
   assert(how == "exit" and number == 7)
   assert(M.spawn("/no/such/program", { "x" }) == nil)
   assert(M.random_bytes(64)[63] ~= nil and M.environ().PATH == os.getenv("PATH"))
end

return M
