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
 * functions runs for Lua (`held`). In these it single-steps the processor until they return; so even a hook that
 * sleeps in the kernel again and again is caught on its way back. Where a program cannot single-step itself, the
 * signal is sent again a moment later.
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

static int may_be_left(uintptr_t at)
{
	if (!at)
		return 0;
	for (int i = 0; i < ranges_used; i++)
		if (at >= ranges[i].from && at < ranges[i].to)
			return 0;
	return 1;
}

/* Turns single-stepping on or off. */
static void step(ucontext_t *context, int on)
{
#if defined(__x86_64__)
	const greg_t trap_flag = 0x100;

	if (on)
		context->uc_mcontext.gregs[REG_EFL] |= trap_flag;
	else
		context->uc_mcontext.gregs[REG_EFL] &= ~trap_flag;
#else
	(void)context;
	(void)on;
#endif
}

static void handle(int number, siginfo_t *info, void *context)
{
	struct bm_guard *guard = current;
	int saved = errno, wanted = 0;

	(void)number;
	(void)info;
	if (guard && guard->armed)
		wanted = GET(guard->call_state->calls) == GET(guard->call_state->broken);
	if (wanted && GET(guard->call_state->gentle) && !guard->asked) {
		guard->asked = 1;
		guard->lua->sethook(guard->state, guard->lua->raise, EVERYTHING, 1);
		errno = saved;
		return;
	}
	if (wanted && !guard->held && may_be_left(program_counter(context))) {
		guard->armed = 0;
		guard->left_at = program_counter(context);
		siglongjmp(guard->back, 1);
	}
	step(context, wanted);
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
	/* No nested signals: the inner handler would see the outer handler as interrupted, not malloc below it. */
	sigemptyset(&action.sa_mask);
	sigaddset(&action.sa_mask, SIGTRAP);
	sigaddset(&action.sa_mask, signal_number());
	if (sigaction(SIGTRAP, &action, NULL))
		return errno;
	return sigaction(signal_number(), &action, NULL) ? errno : 0;
}

/* Asks the thread to leave its current call. */
void bm_guard_break(struct bm_call_state *call_state, uint64_t call)
{
	SET(call_state->broken, call);
	syscall(SYS_tgkill, getpid(), GET(call_state->thread), signal_number());
}

/* Marks that one of our own functions runs for Lua and must not be interrupted. Returns the previous value. */
int bm_guard_hold(int held)
{
	int before = 0;

	if (current) {
		before = current->held;
		current->held = held;
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
	if (__builtin_expect(!GET(call_state->thread), 0))
		SET(call_state->thread, (int32_t)syscall(SYS_gettid));
	if (sigsetjmp(guard->back, 0)) {
		sigset_t ours;

		/* The handler did not return, so the signal is still blocked. */
		sigemptyset(&ours);
		sigaddset(&ours, signal_number());
		sigaddset(&ours, SIGTRAP);
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
