-- Declarations of the C library that apps and libraries call through `ffi.C` without a cdef of their own. The types
-- follow the platform's ABI where apps only pass and compare numbers.

require("ffi").cdef [[
unsigned int sleep(unsigned int seconds);
int usleep(unsigned long microseconds);
unsigned alarm(unsigned seconds);
unsigned long ualarm(unsigned long microseconds, unsigned long interval);
void *memcpy(void *destination, const void *source, size_t bytes);
void *memset(void *at, int byte, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);
void *memmove(void *destination, const void *source, size_t bytes);
char *strncpy(char *destination, const char *source, size_t bytes);
int strncasecmp(const char *a, const char *b, size_t bytes);
int read(int fd, void *to, size_t bytes);
int write(int fd, const void *from, size_t bytes);
int close(int fd);
int fork();
int64_t pread(int fd, void *to, size_t bytes, int64_t offset);
int64_t pwrite(int fd, const void *from, size_t bytes, int64_t offset);
void *malloc(size_t bytes);
void free(void *at);
int64_t readlink(const char *path, char *to, size_t bytes);
char *dirname(char *path);
char *basename(char *path);
int inet_pton(int family, const char *text, void *address);
const char *inet_ntop(int family, const void *address, char *text, unsigned bytes);
uint16_t htons(uint16_t);
uint16_t ntohs(uint16_t);
uint32_t htonl(uint32_t);
uint32_t ntohl(uint32_t);
int geteuid();
int getpid();
int getppid();
void nop();
/* Snabb's core loads ljsyscall, which has it: pflua's types only name it. */
struct bpf_insn;
]]
return {}
