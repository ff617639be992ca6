// Connects a program's XFRM sockets to brickmoon: for charon and `ip xfrm`, unmodified (docs/ipsec.md).
//
//   socket(AF_NETLINK, .., NETLINK_XFRM)  ->  a Unix socket, connected to the daemon
//   bind, setsockopt                      ->  a message that says which groups and which port the program has
//   getsockname, addresses of messages    ->  those of netlink
//
// Each datagram is what it would be on netlink, so sending and receiving need no translation but of addresses. All other
// sockets of the program, also those of other netlink families, are left alone. It is loaded with LD_PRELOAD, and finds
// the daemon's socket in BRICKMOON_XFRM.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/netlink.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_PATH "/run/brickmoon/xfrm.sock"
// Type of the message about the socket itself: below those of all netlink families.
#define HELLO 0x0f
#define WANTS_TEXTS 1
#define SOCKETS 4096

// A program's view of a socket. An entry is written before the program knows the descriptor, and its fields are set
// by calls on this descriptor only.
static struct {
	_Atomic int is_ours;
	uint32_t groups, port, options;
} sockets[SOCKETS];
static _Atomic uint32_t count;

// The function of the C library.
#define NEXT(type, name, ...)                                                                                           \
	static type (*next)(__VA_ARGS__);                                                                               \
	if (!next)                                                                                                      \
		next = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int ours(int fd)
{
	return fd >= 0 && fd < SOCKETS && atomic_load(&sockets[fd].is_ours);
}

static int hello(int fd)
{
	struct {
		struct nlmsghdr header;
		uint32_t groups, port, options;
	} message = {
		.header = {.nlmsg_len = sizeof message, .nlmsg_type = HELLO},
		.groups = sockets[fd].groups,
		.port = sockets[fd].port,
		.options = sockets[fd].options,
	};
	return send(fd, &message, sizeof message, MSG_NOSIGNAL) == sizeof message ? 0 : -1;
}

static int open_socket(int flags)
{
	NEXT(int, "socket", int, int, int);
	const char *path = getenv("BRICKMOON_XFRM");
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	if (!path)
		path = DEFAULT_PATH;
	if (strlen(path) >= sizeof to.sun_path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(to.sun_path, path);
	// Blocking until it is connected: the daemon may be busy.
	int fd = next(AF_UNIX, SOCK_SEQPACKET | (flags & SOCK_CLOEXEC), 0);
	if (fd < 0)
		return -1;
	if (fd >= SOCKETS) {
		close(fd);
		errno = EMFILE;
		return -1;
	}
	// The descriptor of a socket that was closed past close() may come again.
	atomic_store(&sockets[fd].is_ours, 0);
	// As netlink does: the process is the first port, other sockets get large ones.
	uint32_t number = atomic_fetch_add(&count, 1);
	sockets[fd].groups = sockets[fd].options = 0;
	sockets[fd].port = number ? 0x80000000u + (uint32_t)getpid() * 64 + number : (uint32_t)getpid();
	if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0 || hello(fd) < 0) {
		int why = errno;
		close(fd);
		errno = why;
		return -1;
	}
	if (flags & SOCK_NONBLOCK) {
		NEXT(int, "fcntl", int, int, ...);
		next(fd, 4 /* F_SETFL */, SOCK_NONBLOCK);
	}
	atomic_store(&sockets[fd].is_ours, 1);
	return fd;
}

int socket(int domain, int type, int protocol)
{
	NEXT(int, "socket", int, int, int);
	if (domain == AF_NETLINK && protocol == NETLINK_XFRM)
		return open_socket(type & (SOCK_CLOEXEC | SOCK_NONBLOCK));
	int fd = next(domain, type, protocol);
	if (ours(fd))
		atomic_store(&sockets[fd].is_ours, 0);
	return fd;
}

int close(int fd)
{
	NEXT(int, "close", int);
	if (ours(fd))
		atomic_store(&sockets[fd].is_ours, 0);
	return next(fd);
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
	NEXT(int, "bind", int, const struct sockaddr *, socklen_t);
	if (!ours(fd))
		return next(fd, address, length);
	const struct sockaddr_nl *own = (const struct sockaddr_nl *)address;
	if (length < sizeof *own || own->nl_family != AF_NETLINK) {
		errno = EINVAL;
		return -1;
	}
	sockets[fd].groups = own->nl_groups;
	if (own->nl_pid)
		sockets[fd].port = own->nl_pid;
	return hello(fd);
}

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
	NEXT(int, "connect", int, const struct sockaddr *, socklen_t);
	// To the kernel, which it is already connected to.
	return ours(fd) ? 0 : next(fd, address, length);
}

// Writes a netlink address where a program wants one.
static void put(struct sockaddr *to, socklen_t *length, uint32_t port, uint32_t groups)
{
	struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_pid = port, .nl_groups = groups};
	if (!to || !length)
		return;
	memcpy(to, &address, *length < sizeof address ? *length : sizeof address);
	*length = sizeof address;
}

int getsockname(int fd, struct sockaddr *restrict address, socklen_t *restrict length)
{
	NEXT(int, "getsockname", int, struct sockaddr *, socklen_t *);
	if (!ours(fd))
		return next(fd, address, length);
	put(address, length, sockets[fd].port, sockets[fd].groups);
	return 0;
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
	NEXT(int, "setsockopt", int, int, int, const void *, socklen_t);
	if (!ours(fd) || level != SOL_NETLINK)
		return next(fd, level, option, value, length);
	int number = 0;
	if (length < sizeof number) {
		errno = EINVAL;
		return -1;
	}
	memcpy(&number, value, sizeof number);
	uint32_t group = number > 0 && number <= 32 ? 1u << (number - 1) : 0;
	switch (option) {
	case NETLINK_ADD_MEMBERSHIP:
		sockets[fd].groups |= group;
		return hello(fd);
	case NETLINK_DROP_MEMBERSHIP:
		sockets[fd].groups &= ~group;
		return hello(fd);
	case NETLINK_EXT_ACK:
		sockets[fd].options = number ? WANTS_TEXTS : 0;
		return hello(fd);
	default:
		// Strict checks, capped acknowledgements: as brickmoon does them.
		return 0;
	}
}

ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t to_length)
{
	NEXT(ssize_t, "sendto", int, const void *, size_t, int, const struct sockaddr *, socklen_t);
	if (!ours(fd))
		return next(fd, data, length, flags, to, to_length);
	return next(fd, data, length, flags | MSG_NOSIGNAL, NULL, 0);
}

ssize_t send(int fd, const void *data, size_t length, int flags)
{
	NEXT(ssize_t, "send", int, const void *, size_t, int);
	return next(fd, data, length, ours(fd) ? flags | MSG_NOSIGNAL : flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	NEXT(ssize_t, "sendmsg", int, const struct msghdr *, int);
	if (!ours(fd))
		return next(fd, message, flags);
	struct msghdr own = *message;
	own.msg_name = NULL;
	own.msg_namelen = 0;
	return next(fd, &own, flags | MSG_NOSIGNAL);
}

// The daemon has ended. Netlink never says so: for programs this is an error of the socket.
static ssize_t received(int fd, ssize_t length, size_t wanted)
{
	if (length == 0 && wanted > 0 && ours(fd)) {
		errno = ECONNRESET;
		return -1;
	}
	return length;
}

ssize_t recvfrom(int fd, void *restrict data, size_t length, int flags, struct sockaddr *restrict from,
		 socklen_t *restrict from_length)
{
	NEXT(ssize_t, "recvfrom", int, void *, size_t, int, struct sockaddr *, socklen_t *);
	if (!ours(fd))
		return next(fd, data, length, flags, from, from_length);
	ssize_t came = received(fd, next(fd, data, length, flags, NULL, NULL), length);
	if (came >= 0)
		put(from, from_length, 0, 0);
	return came;
}

ssize_t recv(int fd, void *data, size_t length, int flags)
{
	NEXT(ssize_t, "recv", int, void *, size_t, int);
	return received(fd, next(fd, data, length, flags), length);
}

ssize_t read(int fd, void *data, size_t length)
{
	NEXT(ssize_t, "read", int, void *, size_t);
	return received(fd, next(fd, data, length), length);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	NEXT(ssize_t, "recvmsg", int, struct msghdr *, int);
	if (!ours(fd))
		return next(fd, message, flags);
	void *name = message->msg_name;
	socklen_t name_length = message->msg_namelen;
	message->msg_name = NULL;
	message->msg_namelen = 0;
	// With an empty buffer programs ask for a length (MSG_PEEK | MSG_TRUNC), which is not 0: so 0 is the end.
	ssize_t came = received(fd, next(fd, message, flags), 1);
	message->msg_name = name;
	message->msg_namelen = name_length;
	if (came >= 0 && name)
		put(name, &message->msg_namelen, 0, 0);
	return came;
}

// What the C library has in place of these where a program is compiled with checks of buffers.
void __chk_fail(void) __attribute__((noreturn));

ssize_t __recv_chk(int fd, void *data, size_t length, size_t room, int flags)
{
	if (length > room)
		__chk_fail();
	return recv(fd, data, length, flags);
}

ssize_t __recvfrom_chk(int fd, void *restrict data, size_t length, size_t room, int flags,
		       struct sockaddr *restrict from, socklen_t *restrict from_length)
{
	if (length > room)
		__chk_fail();
	return recvfrom(fd, data, length, flags, from, from_length);
}

ssize_t __read_chk(int fd, void *data, size_t length, size_t room)
{
	if (length > room)
		__chk_fail();
	return read(fd, data, length);
}
