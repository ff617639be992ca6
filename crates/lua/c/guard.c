// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * Calls a hook so that it can be interrupted from outside.
 *
 * Interpreted Lua code can raise an error at the next instruction. A call that is `gentle` is first asked to end that
 * way, which keeps its Lua state usable. (LuaJIT's lua_sethook may be called in a signal handler.)
 *
 * A compiled loop checks nothing, so an endless one can only be left by force: the supervisor sends the thread a
 * signal, whose handler jumps back to before the call. The hook's work is abandoned, and its Lua state is not used any
 * more. This is sound as long as nothing that other threads share is half done. So the handler does not jump out of
 * libraries that were loaded before any hook (with locks of malloc or of the loader), nor while one of our own
 * functions runs for Lua (`held`). It diverts them instead: the function of the library that was called from outside
 * finishes, and returns to `bm_guard_landing` instead of its caller; one of our own jumps back when it is done. So a
 * hook that copies much memory, or sleeps in the kernel again and again, is caught on its way back, at no cost for what
 * it is in. Where return addresses cannot be found, the signal is sent again a moment later.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "unwind.h"

/*
 * What the supervisor sees of a thread. The layout is the same in src/hook/guard.rs. Two threads read and write it at
 * any time, so each access is atomic, through GET and SET.
 */
struct bm_call_state {
	uint64_t calls;   /* incremented at the start and at the end of each call: odd while a hook runs */
	uint64_t broken;  /* the call that the supervisor wants to end */
	int32_t thread;   /* the kernel's thread id, 0 before the first call */
	int32_t gentle;   /* the call may be asked to end by an error before it is left by force */
};

#define GET(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define SET(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

/* Functions of LuaJIT, and our hook that raises an error. */
struct bm_lua {
	int (*pcall)(void *state, int arguments, int results, int handler);
	void (*push)(void *state, int at);
	int (*sethook)(void *state, void *hook, int mask, int count);
	void *raise;
};
/* LUA_MASKCALL, _RET, _LINE and _COUNT */
#define EVERYTHING 15

struct bm_guard {
	sigjmp_buf back;
	const struct bm_lua *lua;
	void *state;
	volatile sig_atomic_t asked;
	volatile uintptr_t left_at;   /* program counter where the last call was left by force */
	volatile sig_atomic_t armed;
	volatile sig_atomic_t held;
	uintptr_t stack_end;          /* all frames of the call are below */
	struct bm_call_state *call_state;
};

/* Code of shared libraries that must not be interrupted halfway. */
struct range {
	uintptr_t from, to;
};
#define RANGES 256
static struct range ranges[RANGES];
static int ranges_used;

static __thread struct bm_guard *current;

static uintptr_t program_counter(const ucontext_t *context)
{
#if defined(__x86_64__)
	return (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
	return (uintptr_t)context->uc_mcontext.pc;
#else
	(void)context;
	return 0;
#endif
}

static int is_in_library(uintptr_t at)
{
	for (int i = 0; i < ranges_used; i++)
		if (at >= ranges[i].from && at < ranges[i].to)
			return 1;
	return 0;
}

/* Whether the supervisor wants the current call to end. */
static int is_wanted(const struct bm_guard *guard)
{
	return guard && guard->armed && GET(guard->call_state->calls) == GET(guard->call_state->broken);
}

static void leave(struct bm_guard *guard, uintptr_t at)
{
	guard->armed = 0;
	guard->left_at = at;
	siglongjmp(guard->back, 1);
}

#if defined(__x86_64__)
/* What a function of a library returns to if it was diverted: its caller's frame is on top of the stack. */
void bm_guard_landing(void);
__asm__(".text\n"
	".type bm_guard_landing, @function\n"
	"bm_guard_landing:\n"
	"	and $-16, %rsp\n"
	"	call bm_guard_land\n"
	"	ud2\n"
	".size bm_guard_landing, . - bm_guard_landing\n");

__attribute__((used)) void bm_guard_land(void)
{
	leave(current, current->left_at);
}

/* Registers of the ucontext, in the order of their numbers in DWARF. */
static const int REGISTERS[BM_REGISTERS] = {
	REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
	REG_R9,	 REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP,
};
/* Calls of libraries among each other that are looked through. */
#define DEPTH 64

/* Diverts the function that was called from outside of all libraries. */
static void divert(struct bm_guard *guard, const ucontext_t *context)
{
	struct bm_frame frame = { .stack_end = guard->stack_end };

	for (int i = 0; i < BM_REGISTERS; i++)
		frame.registers[i] = (uintptr_t)context->uc_mcontext.gregs[REGISTERS[i]];
	for (int i = 0; i < DEPTH; i++) {
		uintptr_t *slot = bm_unwind(&frame);

		if (!slot || *slot == (uintptr_t)bm_guard_landing)
			return;
		if (!is_in_library(*slot)) {
			guard->left_at = *slot;
			*slot = (uintptr_t)bm_guard_landing;
			return;
		}
	}
}
#else
static void divert(struct bm_guard *guard, const ucontext_t *context)
{
	(void)guard;
	(void)context;
}
#endif

static void handle(int number, siginfo_t *info, void *context)
{
	struct bm_guard *guard = current;
	uintptr_t at = program_counter(context);
	int saved = errno;

	(void)number;
	(void)info;
	if (!is_wanted(guard))
		return;
	if (GET(guard->call_state->gentle) && !guard->asked) {
		guard->asked = 1;
		guard->lua->sethook(guard->state, guard->lua->raise, EVERYTHING, 1);
	} else if (!guard->held && at) {
		if (!is_in_library(at))
			leave(guard, at);
		divert(guard, context);
	}
	errno = saved;
}

static int note(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	(void)data;
	/* The first entry is the program itself, which contains LuaJIT. */
	if (!info->dlpi_name || !*info->dlpi_name)
		return 0;
	for (int i = 0; i < info->dlpi_phnum && ranges_used < RANGES; i++) {
		const ElfW(Phdr) *header = &info->dlpi_phdr[i];

		if (header->p_type != PT_LOAD || !(header->p_flags & PF_X))
			continue;
		ranges[ranges_used].from = info->dlpi_addr + header->p_vaddr;
		ranges[ranges_used].to = info->dlpi_addr + header->p_vaddr + header->p_memsz;
		ranges_used++;
	}
	return 0;
}

static int signal_number(void)
{
	return SIGRTMIN + 5;
}

/* Called once, before any hook is loaded. Returns 0 or errno. */
int bm_guard_install(void)
{
	struct sigaction action;

	dl_iterate_phdr(note, NULL);
	memset(&action, 0, sizeof(action));
	action.sa_sigaction = handle;
	/* Without SA_RESTART, so that a hook that sleeps in the kernel returns to its own code, where it can be left. */
	action.sa_flags = SA_SIGINFO;
	sigemptyset(&action.sa_mask);
	return sigaction(signal_number(), &action, NULL) ? errno : 0;
}

/* Asks the thread to leave its current call. */
void bm_guard_break(struct bm_call_state *call_state, uint64_t call)
{
	SET(call_state->broken, call);
	syscall(SYS_tgkill, getpid(), GET(call_state->thread), signal_number());
}

/*
 * Marks that one of our own functions runs for Lua and must not be interrupted. Returns the previous value; or not at
 * all, if it no longer runs and was in the way.
 */
int bm_guard_hold(int held)
{
	struct bm_guard *guard = current;
	int before = 0;

	if (guard) {
		before = guard->held;
		guard->held = held;
		if (before && !held && is_wanted(guard) && (guard->asked || !GET(guard->call_state->gentle)))
			leave(guard, (uintptr_t)__builtin_return_address(0));
	}
	return before;
}

/* The result of a guarded call that was interrupted. */
#define INTERRUPTED 1000

size_t bm_guard_size(void)
{
	return sizeof(struct bm_guard);
}

/* The program counter where the last call was left by force. */
uintptr_t bm_guard_left_at(const struct bm_guard *guard)
{
	return guard->left_at;
}

/* Calls the function at stack index `function` with the value at index `argument`. */
int bm_guard_call(struct bm_guard *guard, struct bm_call_state *call_state, void *state, const struct bm_lua *lua,
		  int function, int argument)
{
	int status;

	guard->call_state = call_state;
	guard->lua = lua;
	guard->state = state;
	guard->stack_end = (uintptr_t)__builtin_frame_address(0);
	if (__builtin_expect(!GET(call_state->thread), 0))
		SET(call_state->thread, (int32_t)syscall(SYS_gettid));
	if (sigsetjmp(guard->back, 0)) {
		sigset_t ours;

		/* If the handler did not return, the signal is still blocked. */
		sigemptyset(&ours);
		sigaddset(&ours, signal_number());
		pthread_sigmask(SIG_UNBLOCK, &ours, NULL);
		guard->held = 0;
		current = NULL;
		SET(call_state->calls, GET(call_state->calls) + 1);
		return INTERRUPTED;
	}
	SET(call_state->calls, GET(call_state->calls) + 1);
	current = guard;
	guard->armed = 1;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	lua->push(state, function);
	lua->push(state, argument);
	status = lua->pcall(state, 1, 0, 1);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	guard->armed = 0;
	current = NULL;
	SET(call_state->calls, GET(call_state->calls) + 1);
	if (__builtin_expect(guard->asked, 0)) {
		/* The call may have ended before the Lua hook ran. */
		lua->sethook(state, NULL, 0, 0);
		guard->asked = 0;
	}
	return status;
}
