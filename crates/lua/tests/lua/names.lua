-- Our modules must not define C structures under names of the system: programs and ljsyscall declare those themselves.

local ffi = require("ffi")
for _, name in ipairs { "core.app", "core.shm", "core.worker", "core.sync", "lib.checksum", "lib.pcap.pcap",
                        "lib.protocol.datagram", "lib.protocol.icmp.ipv6.header", "brickmoon.filter", "brickmoon.table",
                        "brickmoon.views", "brickmoon.ports" } do
   require(name)
end

-- pflua declares these.
ffi.cdef "struct pcap_file { int a; }; struct pcap_record { int a; }; struct pcap_pkthdr { int a; };"

-- ljsyscall itself, if it is installed. It declares all of these, so they must not be declared before.
package.path = package.path..";/usr/share/lua/5.1/?.lua"
local found, S = pcall(require, "syscall")
if found then
   assert(S.getpid() > 0 and S.stat("/tmp").isdir and #S.util.dirtable("/proc/self", true) > 0)
   return
end
assert(tostring(S):match("module 'syscall' not found"), S)

for name in ([[timespec timeval stat dirent iovec msghdr sockaddr sockaddr_in sockaddr_in6 sockaddr_un servent
   rusage rlimit utsname epoll_event sigaction itimerval ifreq tm passwd tcphdr udphdr iphdr ethhdr]]):gmatch("%S+") do
   ffi.cdef(("struct %s { int defined_by_a_program; };"):format(name))
   assert(ffi.sizeof("struct "..name) == 4)
end
-- Functions may be declared again, even differently.
ffi.cdef [[
int open(const char *path, int flags, ...);
int kill(int32_t pid, int signal);
int symlink(const char *, const char *);
ssize_t readlink(const char *, char *, size_t);
void *mmap(void *, size_t, int, int, int, int64_t);
]]
assert(ffi.C.open("/no/such/file", 0) == -1)
