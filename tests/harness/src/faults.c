/* Injects faults, chosen by a seed, into an unmodified program: the daemon is started with this library in LD_PRELOAD,
 * and calls of the C library fail in ways in which the system may fail them. BM_FAULTS names the file in which a test
 * sets when and how often, and in which it reads how many faults there were (src/faults.rs).
 *
 * Which call of a kind fails depends only on the seed and on the number of calls of this kind under that seed. Inline
 * system calls, as rustix makes them, bypass the C library and never fail here.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { RECEIVE, SEND, WAIT, OPEN, SOCKET, READ, MAP, BPF, CLOCK, TAP_READ, TAP_WRITE, CONTROL_CLOCK, KINDS };

/* Shared with the test, which writes it through the file; only this library changes the counts. */
struct control {
	uint64_t seed;
	/* How many of 1024 calls fail; 0 for none. */
	uint64_t rate;
	/* Kinds of calls that may fail; a bit each. */
	uint64_t kinds;
	uint64_t calls[KINDS];
	uint64_t faults[KINDS];
};

static struct control *control;

/* Set while dlsym runs, which frees memory: AddressSanitizer's free asks for the time, and dlsym cannot be nested.
 * Volatile, since dlsym is declared as a function that never calls back. */
static __thread volatile int searching;

static void *next(const char *name)
{
	searching = 1;
	void *found = dlsym(RTLD_NEXT, name);

	searching = 0;
	return found;
}
#define NEXT(name) static __typeof__(&name) real; if (!real) real = next(#name)

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("BM_FAULTS");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (fd < 0)
		return;
	void *mapped = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	close(fd);
	if (mapped != MAP_FAILED)
		control = mapped;
}

/* A number above zero if this call is to fail. */
static uint64_t fails(enum kind kind)
{
	uint64_t rate = control ? __atomic_load_n(&control->rate, __ATOMIC_RELAXED) : 0;

	if (!rate || !(__atomic_load_n(&control->kinds, __ATOMIC_RELAXED) >> kind & 1))
		return 0;
	uint64_t count = __atomic_fetch_add(&control->calls[kind], 1, __ATOMIC_RELAXED);
	uint64_t x = control->seed * 0x9e3779b97f4a7c15 + ((uint64_t)kind << 56) + count;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	x ^= x >> 31;
	if ((x & 1023) >= rate)
		return 0;
	__atomic_fetch_add(&control->faults[kind], 1, __ATOMIC_RELAXED);
	return x >> 10 | 1ull << 60;
}

static int failed(uint64_t number, const int *errors, unsigned count)
{
	errno = errors[number % count];
	return -1;
}
#define FAILED(number, ...) ({ static const int errors[] = { __VA_ARGS__ }; \
	failed(number, errors, sizeof(errors) / sizeof(*errors)); })

int recvmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags, struct timespec *timeout)
{
	NEXT(recvmmsg);
	uint64_t fault = fails(RECEIVE);

	/* One message instead of all available ones, or none and an error. */
	if (fault && fault % 4 == 0)
		return real(fd, messages, 1, flags, timeout);
	return fault ? FAILED(fault, ENOBUFS, EINTR, ENOMEM) : real(fd, messages, count, flags, timeout);
}

ssize_t recv(int fd, void *data, size_t length, int flags)
{
	NEXT(recv);
	uint64_t fault = fails(RECEIVE);

	return fault ? FAILED(fault, EINTR, ENOBUFS) : real(fd, data, length, flags);
}

ssize_t send(int fd, const void *data, size_t length, int flags)
{
	NEXT(send);
	uint64_t fault = fails(SEND);

	return fault ? FAILED(fault, ENOBUFS, ENOMEM, EINTR) : real(fd, data, length, flags);
}

ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t size)
{
	NEXT(sendto);
	uint64_t fault = fails(SEND);

	return fault ? FAILED(fault, ENOBUFS, EAGAIN, EBUSY) : real(fd, data, length, flags, to, size);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	NEXT(sendmsg);
	uint64_t fault = fails(SEND);

	return fault ? FAILED(fault, ENOBUFS, ENOMEM) : real(fd, message, flags);
}

int poll(struct pollfd *fds, nfds_t count, int ms)
{
	NEXT(poll);
	uint64_t fault = fails(WAIT);

	return fault ? FAILED(fault, EINTR) : real(fds, count, ms);
}

int epoll_wait(int fd, struct epoll_event *events, int count, int ms)
{
	NEXT(epoll_wait);
	uint64_t fault = fails(WAIT);

	return fault ? FAILED(fault, EINTR) : real(fd, events, count, ms);
}

static mode_t mode_of(int flags, va_list list)
{
	return flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
}

#define OPENS(name) \
int name(const char *path, int flags, ...) \
{ \
	NEXT(name); \
	va_list list; \
	va_start(list, flags); \
	mode_t mode = mode_of(flags, list); \
	va_end(list); \
	uint64_t fault = fails(OPEN); \
	return fault ? FAILED(fault, EMFILE, ENFILE, ENOMEM) : real(path, flags, mode); \
}
OPENS(open)
OPENS(open64)

int socket(int domain, int type, int protocol)
{
	NEXT(socket);
	uint64_t fault = fails(SOCKET);

	return fault ? FAILED(fault, EMFILE, ENOBUFS, ENOMEM) : real(domain, type, protocol);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
	NEXT(accept4);
	uint64_t fault = fails(SOCKET);

	return fault ? FAILED(fault, ECONNABORTED, EINTR) : real(fd, address, length, flags);
}

/* Which descriptors are queues of TAP interfaces. Duplicates of them carry no frames. */
#define DESCRIPTORS 65536
static uint8_t taps[DESCRIPTORS];

static int is_tap(int fd)
{
	return fd >= 0 && fd < DESCRIPTORS && __atomic_load_n(&taps[fd], __ATOMIC_RELAXED);
}

static void note_tap(int fd, uint8_t tap)
{
	if (fd >= 0 && fd < DESCRIPTORS)
		__atomic_store_n(&taps[fd], tap, __ATOMIC_RELAXED);
}

int ioctl(int fd, unsigned long request, ...)
{
	NEXT(ioctl);
	va_list list;

	va_start(list, request);
	void *argument = va_arg(list, void *);
	va_end(list);
	int done = real(fd, request, argument);

	if (request == TUNSETIFF && !done)
		note_tap(fd, 1);
	return done;
}

int close(int fd)
{
	NEXT(close);

	note_tap(fd, 0);
	return real(fd);
}

/* A frame that cannot be read stays in the queue. */
static ssize_t tap_not_read(uint64_t fault)
{
	return FAILED(fault, EAGAIN, EIO, ENOBUFS, EINTR);
}

ssize_t readv(int fd, const struct iovec *parts, int count)
{
	NEXT(readv);
	uint64_t fault = is_tap(fd) ? fails(TAP_READ) : 0;

	return fault ? tap_not_read(fault) : real(fd, parts, count);
}

ssize_t write(int fd, const void *data, size_t length)
{
	NEXT(write);
	uint64_t fault = is_tap(fd) ? fails(TAP_WRITE) : 0;

	/* The beginning of a frame, or nothing and an error. */
	if (fault && fault % 5 == 0 && length > 28)
		return real(fd, data, length / 2);
	return fault ? FAILED(fault, EAGAIN, EIO, ENOBUFS, EINTR) : real(fd, data, length);
}

ssize_t read(int fd, void *data, size_t length)
{
	NEXT(read);
	uint64_t fault = fails(is_tap(fd) ? TAP_READ : READ);

	if (fault && is_tap(fd))
		return tap_not_read(fault);

	/* Fewer bytes than available. An event counter is read as eight bytes or not at all. */
	if (fault && fault % 2 && length > 8)
		return real(fd, data, 1 + fault % (length - 1));
	return fault ? FAILED(fault, EINTR) : real(fd, data, length);
}

#define MAPS(name) \
void *name(void *at, size_t length, int protection, int flags, int fd, off_t offset) \
{ \
	NEXT(name); \
	/* Rust panics where it cannot have a stack for signals, and we cannot change that. */ \
	uint64_t fault = flags & MAP_STACK ? 0 : fails(MAP); \
	return fault ? (FAILED(fault, ENOMEM), MAP_FAILED) : real(at, length, protection, flags, fd, offset); \
}
MAPS(mmap)
MAPS(mmap64)

long syscall(long number, ...)
{
	NEXT(syscall);
	va_list list;
	long a[6];

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_bpf) {
		int makes = a[0] == BPF_MAP_CREATE || a[0] == BPF_PROG_LOAD;
		int changes = a[0] == BPF_MAP_UPDATE_ELEM || a[0] == BPF_MAP_DELETE_ELEM ||
			a[0] == BPF_MAP_UPDATE_BATCH || a[0] == BPF_LINK_UPDATE;
		uint64_t fault = makes || changes ? fails(BPF) : 0;

		if (fault)
			return makes ? FAILED(fault, ENOMEM, EMFILE) : FAILED(fault, ENOMEM, EBUSY, E2BIG);
	}
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* Whether the control thread is to panic here, which Rust's standard library does where a clock fails. Once only, since
 * what reports the panic asks for the time, too. */
static int control_panics(void)
{
	static __thread int has;
	char name[16] = "";

	if (has || pthread_getname_np(pthread_self(), name, sizeof(name)) || strcmp(name, "bm-control"))
		return 0;
	return has = fails(CONTROL_CLOCK) != 0;
}

/* The time of day jumps by up to twelve days; clocks that count from boot never jump. */
int clock_gettime(clockid_t clock, struct timespec *time)
{
	if (searching) {
		/* An allocator only compares times. */
		*time = (struct timespec){0};
		return 0;
	}
	NEXT(clock_gettime);
	static int64_t ahead;

	if (control_panics()) {
		errno = EINVAL;
		return -1;
	}
	int done = real(clock, time);

	if (done || clock != CLOCK_REALTIME)
		return done;
	uint64_t fault = fails(CLOCK);

	if (fault)
		__atomic_store_n(&ahead, (int64_t)(fault % (1 << 21)) - (1 << 20), __ATOMIC_RELAXED);
	time->tv_sec += __atomic_load_n(&ahead, __ATOMIC_RELAXED);
	return done;
}
