/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Unwinds one frame of an ELF object.
 *
 *     address -> object (_dl_find_object) -> .eh_frame_hdr, a sorted table -> FDE -> CIE -> rules -> caller's registers
 *
 * The unwinder of libgcc takes a lock, and may call malloc, for code that LuaJIT has registered; so it must not be called
 * when a thread was interrupted inside of malloc. This one only reads: glibc's _dl_find_object may be called in a signal
 * handler, tables of code are constant, and the stack is this thread's. What it does not know ends the search.
 */
#define _GNU_SOURCE
#include "unwind.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && __GLIBC_PREREQ(2, 35)

/* Encodings of pointers (LSB 10.5): what nearly all objects use. */
enum { ABSOLUTE = 0x00, UNSIGNED4 = 0x03, SIGNED4 = 0x0b, RELATIVE = 0x10, TO_TABLE = 0x30, FORMAT = 0x0f };
#define TABLE_ENTRY (TO_TABLE | SIGNED4)
#define STATES 8 /* that are remembered at once */
#define DEPTH 16 /* of the stack of an expression */

struct rule {
	enum { SAME, AT_OFFSET, AT_EXPRESSION, UNKNOWN } kind;
	intptr_t offset;
	const uint8_t *expression; /* with its length in front */
};

struct state {
	struct rule rules[BM_REGISTERS];
	unsigned cfa_register;
	intptr_t cfa_offset;
	const uint8_t *cfa_expression; /* instead, if not NULL */
};

/* The program of a function, and how to read it. */
struct description {
	uintptr_t start;
	uintptr_t code_units;
	intptr_t data_units;
	const uint8_t *initial, *initial_end;
	const uint8_t *program, *program_end;
};

static uint32_t word_at(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static uintptr_t unsigned_at(const uint8_t **at)
{
	uintptr_t value = 0;
	uint8_t byte;

	for (unsigned shift = 0; shift < 64; shift += 7) {
		byte = *(*at)++;
		value |= (uintptr_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			break;
	}
	return value;
}

static intptr_t signed_at(const uint8_t **at)
{
	uintptr_t value = 0;
	unsigned shift = 0;
	uint8_t byte;

	do {
		byte = *(*at)++;
		value |= (uintptr_t)(byte & 0x7f) << shift;
		shift += 7;
	} while (byte & 0x80 && shift < 64);
	if (shift < 64 && byte & 0x40)
		value |= ~(uintptr_t)0 << shift;
	return (intptr_t)value;
}

/* The FDE of the last function that begins at or before an address. */
static const uint8_t *find(const uint8_t *table, uintptr_t address)
{
	uint32_t count, low = 0;
	const uint8_t *entries = table + 12;

	if (table[0] != 1 || table[1] != (RELATIVE | SIGNED4) || table[2] != UNSIGNED4 || table[3] != TABLE_ENTRY)
		return NULL;
	count = word_at(table + 8);
	while (count > 1) {
		uint32_t half = count / 2;

		if ((uintptr_t)table + (intptr_t)(int32_t)word_at(entries + 8 * (low + half)) <= address) {
			low += half;
			count -= half;
		} else {
			count = half;
		}
	}
	return count ? table + (int32_t)word_at(entries + 8 * low + 4) : NULL;
}

/* Reads a CIE; the encoding of addresses, or -1. */
static int read_common(const uint8_t *cie, struct description *of)
{
	const uint8_t *at = cie + 8, *augmentation, *data;
	int encoding = ABSOLUTE;
	uint8_t version = *at++;

	of->initial_end = cie + 4 + word_at(cie);
	augmentation = at;
	at += strlen((const char *)at) + 1;
	of->code_units = unsigned_at(&at);
	of->data_units = signed_at(&at);
	if ((version == 1 ? *at++ : unsigned_at(&at)) != BM_RIP || *augmentation != 'z')
		return -1;
	data = at;
	of->initial = data + unsigned_at(&at);
	of->initial += at - data;
	while (*++augmentation) {
		if (*augmentation == 'R')
			encoding = *at++;
		else if (*augmentation == 'L')
			at++;
		else if (*augmentation == 'P')
			at += 1 + ((*at & FORMAT) == ABSOLUTE ? 8 : 4);
		else
			return -1; /* among them 'S', the frame of a signal */
	}
	return encoding;
}

static int describe(uintptr_t address, struct description *of)
{
	struct dl_find_object object;
	const uint8_t *fde, *at;
	uintptr_t length, augmentation;

	if (_dl_find_object((void *)address, &object) || !object.dlfo_eh_frame)
		return 0;
	fde = find(object.dlfo_eh_frame, address);
	if (!fde || word_at(fde) == 0xffffffff)
		return 0;
	of->program_end = fde + 4 + word_at(fde);
	at = fde + 4;
	if (read_common(at - word_at(at), of) != (RELATIVE | SIGNED4))
		return 0;
	at += 4;
	of->start = (uintptr_t)at + (intptr_t)(int32_t)word_at(at);
	length = word_at(at + 4);
	at += 8;
	augmentation = unsigned_at(&at);
	of->program = at + augmentation;
	return address - of->start < length;
}

/* Whether a word of the stack may be read. */
static int is_on_stack(const struct bm_frame *frame, uintptr_t at)
{
	return at >= frame->registers[BM_RSP] - 128 && at < frame->stack_end && !(at & 7);
}

/* Evaluates an expression (DWARF 4, 2.5); false if it has an operation that is not known. */
static int evaluate(const struct bm_frame *frame, const uint8_t *at, const uintptr_t *first, uintptr_t *result)
{
	uintptr_t stack[DEPTH], a, b;
	const uint8_t *end;
	int top = 0;

	a = unsigned_at(&at);
	end = at + a;
	if (first)
		stack[top++] = *first;
	while (at < end) {
		uint8_t operation = *at++;

		if (top >= DEPTH - 1)
			return 0;
		if (operation >= 0x30 && operation < 0x50) { /* DW_OP_lit0 to 31 */
			stack[top++] = operation - 0x30;
		} else if (operation >= 0x70 && operation < 0x70 + BM_REGISTERS) { /* DW_OP_breg0 to 16 */
			stack[top++] = frame->registers[operation - 0x70] + signed_at(&at);
		} else if (operation == 0x08) { /* DW_OP_const1u */
			stack[top++] = *at++;
		} else if (operation == 0x06) { /* DW_OP_deref */
			if (!top || !is_on_stack(frame, stack[top - 1]))
				return 0;
			stack[top - 1] = *(uintptr_t *)stack[top - 1];
		} else if (operation == 0x23) { /* DW_OP_plus_uconst */
			if (!top)
				return 0;
			stack[top - 1] += unsigned_at(&at);
		} else {
			if (top < 2)
				return 0;
			b = stack[--top];
			a = stack[--top];
			switch (operation) {
			case 0x1a: stack[top++] = a & b; break;
			case 0x1c: stack[top++] = a - b; break;
			case 0x22: stack[top++] = a + b; break;
			case 0x24: stack[top++] = b < 64 ? a << b : 0; break;
			case 0x2a: stack[top++] = (intptr_t)a >= (intptr_t)b; break;
			default: return 0;
			}
		}
	}
	*result = top ? stack[top - 1] : 0;
	return top;
}

static void set(struct state *state, uintptr_t which, struct rule rule)
{
	if (which < BM_REGISTERS)
		state->rules[which] = rule;
}

static struct rule block(const uint8_t **at)
{
	struct rule rule = { AT_EXPRESSION, 0, *at };
	uintptr_t length = unsigned_at(at);

	*at += length;
	return rule;
}

/* Runs a program up to an address (DWARF 4, 6.4.2); false if it has an instruction that is not known. */
static int run(const struct description *of, const uint8_t *at, const uint8_t *end, uintptr_t upto, struct state *state,
	       const struct state *initial)
{
	struct state remembered[STATES];
	const struct rule unknown = { UNKNOWN, 0, NULL }, same = { SAME, 0, NULL };
	uintptr_t location = of->start, which;
	int depth = 0;

	while (at < end && location <= upto) {
		uint8_t instruction = *at++, low = instruction & 0x3f;
		struct rule rule = { AT_OFFSET, 0, NULL };

		switch (instruction & 0xc0) {
		case 0x40: location += low * of->code_units; continue;
		case 0x80:
			rule.offset = (intptr_t)unsigned_at(&at) * of->data_units;
			set(state, low, rule);
			continue;
		case 0xc0:
			if (low < BM_REGISTERS)
				state->rules[low] = initial->rules[low];
			continue;
		}
		switch (instruction) {
		case 0x00: break;
		case 0x02: location += *at++ * of->code_units; break;
		case 0x03: location += (at[0] | at[1] << 8) * of->code_units; at += 2; break;
		case 0x04: location += word_at(at) * of->code_units; at += 4; break;
		case 0x05: which = unsigned_at(&at); rule.offset = (intptr_t)unsigned_at(&at) * of->data_units;
			set(state, which, rule); break;
		case 0x06: which = unsigned_at(&at);
			if (which < BM_REGISTERS)
				state->rules[which] = initial->rules[which];
			break;
		case 0x07: set(state, unsigned_at(&at), unknown); break;
		case 0x08: set(state, unsigned_at(&at), same); break;
		case 0x0a:
			if (depth == STATES)
				return 0;
			remembered[depth++] = *state;
			break;
		case 0x0b:
			if (!depth)
				return 0;
			*state = remembered[--depth];
			break;
		case 0x0c: state->cfa_register = (unsigned)unsigned_at(&at);
			state->cfa_offset = (intptr_t)unsigned_at(&at); state->cfa_expression = NULL; break;
		case 0x0d: state->cfa_register = (unsigned)unsigned_at(&at); state->cfa_expression = NULL; break;
		case 0x0e: state->cfa_offset = (intptr_t)unsigned_at(&at); break;
		case 0x0f: state->cfa_expression = block(&at).expression; break;
		case 0x10: which = unsigned_at(&at); set(state, which, block(&at)); break;
		case 0x11: which = unsigned_at(&at); rule.offset = signed_at(&at) * of->data_units;
			set(state, which, rule); break;
		case 0x12: state->cfa_register = (unsigned)unsigned_at(&at);
			state->cfa_offset = signed_at(&at) * of->data_units; state->cfa_expression = NULL; break;
		case 0x13: state->cfa_offset = signed_at(&at) * of->data_units; break;
		case 0x2e: unsigned_at(&at); break;
		default: return 0;
		}
	}
	return 1;
}

uintptr_t *bm_unwind(struct bm_frame *frame)
{
	uintptr_t address = frame->registers[BM_RIP] - !!frame->is_caller, cfa, at;
	struct state state, initial;
	struct bm_frame caller = *frame;
	struct description of;

	memset(&initial, 0, sizeof(initial));
	if (!describe(address, &of) || !run(&of, of.initial, of.initial_end, address, &initial, &initial))
		return NULL;
	state = initial;
	if (!run(&of, of.program, of.program_end, address, &state, &initial))
		return NULL;
	if (state.cfa_expression) {
		if (!evaluate(frame, state.cfa_expression, NULL, &cfa))
			return NULL;
	} else {
		if (state.cfa_register >= BM_REGISTERS)
			return NULL;
		cfa = frame->registers[state.cfa_register] + state.cfa_offset;
	}
	if (state.rules[BM_RIP].kind != AT_OFFSET || cfa <= frame->registers[BM_RSP])
		return NULL;
	for (int i = 0; i < BM_REGISTERS; i++) {
		if (state.rules[i].kind == SAME || state.rules[i].kind == UNKNOWN)
			continue;
		at = cfa + state.rules[i].offset;
		if (state.rules[i].kind == AT_EXPRESSION && !evaluate(frame, state.rules[i].expression, &cfa, &at))
			return NULL;
		if (!is_on_stack(frame, at))
			return NULL;
		caller.registers[i] = *(uintptr_t *)at;
	}
	caller.registers[BM_RSP] = cfa;
	caller.is_caller = 1;
	*frame = caller;
	return (uintptr_t *)(cfa + state.rules[BM_RIP].offset);
}
#else
uintptr_t *bm_unwind(struct bm_frame *frame)
{
	(void)frame;
	return NULL;
}
#endif
