//! Every C function that Lua modules call by name is in the binary and works.

#![allow(clippy::unwrap_used)]

use bm_lua::{NoNatives, Outcome, PAYLOAD, Program, ProgramSource, Tree, World};

/// Declarations of the functions that modules of Snabb look up through `ffi.C`.
const DECLARATIONS: &str = "
    uint64_t get_time_ns(); uint64_t get_unix_time_ns(); double get_monotonic_time(); double get_unix_time();
    void sleep_ns(int); void full_memory_barrier(); void prefetch_for_read(const void *);
    void prefetch_for_write(const void *); unsigned stat_mtime(const char *); void nop();
    uint16_t cksum(const void *, size_t, uint16_t); uint16_t cksum_generic(const void *, size_t, uint16_t);
    uint16_t cksum_sse2(const void *, size_t, uint16_t); uint16_t cksum_avx2(const void *, size_t, uint16_t);
    void checksum_update_incremental_16(uint16_t *, uint16_t *, uint16_t);
    void checksum_update_incremental_32(uint16_t *, uint32_t *, uint32_t);
    uint32_t tcp_pseudo_checksum(uint16_t *, uint16_t *, int, int);
    uint32_t pseudo_header_initial(const void *, size_t);
    void mac_table_insert(uint64_t, uint16_t, uint16_t, void **, uint32_t);
    void *mac_table_lookup(uint64_t, void *);
    void mac_table_lookup_pft(uint64_t, void *, uint16_t, uint16_t, void *, void **, void *);
    uint16_t lpm4_248_search(uint32_t, uint16_t *, uint16_t *);
    uint32_t lpm4_248_search32(uint32_t, uint32_t *, uint32_t *);
    uint16_t lpm4_dxr_search(uint32_t, uint16_t *, uint16_t *, uint32_t *, uint32_t *);
    int64_t check_seq_no(uint32_t, uint64_t, uint8_t *, uint32_t);
    uint64_t track_seq_no(uint32_t, uint32_t, uint64_t, uint8_t *, uint32_t);
    char *shmem_grow(void *, void *, size_t, size_t); char *shmem_attach(void *, size_t);
    bool shmem_unmap(void *, size_t);
    int consttime_memequal(const void *, const void *, size_t);
    void dasm_init(void **, int); void dasm_free(void **); void dasm_setupglobal(void **, void **, unsigned);
    void dasm_growpc(void **, unsigned); void dasm_setup(void **, const void *); void dasm_put(void **, int, ...);
    int dasm_link(void **, size_t *); int dasm_encode(void **, void *); int dasm_getpclabel(void **, unsigned);
    int dasm_checkstep(void **, int);
";

fn run(name: &str, program: &str) {
    run_with(name, program, Vec::new());
}

fn run_with(name: &str, program: &str, trees: Vec<Tree>) {
    let path = std::env::temp_dir().join(format!("bm-lua-{name}-{}.lua", std::process::id()));
    std::fs::write(&path, program).unwrap();
    let world = World::new(std::sync::Arc::new(NoNatives), trees, PAYLOAD).unwrap();
    let program = Program {
        source: ProgramSource::File(path.clone()),
        arguments: Vec::new(),
        world,
        setup: None,
        workers: 1,
    };
    let outcome = program.run();
    std::fs::remove_file(path).unwrap();
    assert_eq!(outcome.map_err(|error| error.to_string()), Ok(Outcome::Done));
}

#[test]
fn every_name_is_found() {
    let program = format!(
        "local ffi, text = require('ffi'), [[{DECLARATIONS}]]
        ffi.cdef(text)
        for name in text:gmatch('([%w_]+)%(') do
            if name ~= 'const' then assert(ffi.C[name] ~= nil, name) end
        end"
    );
    run("symbols", &program);
}

#[test]
fn types_declared_by_snabbs_core_exist() {
    // pflua's `pf.types` refers to it, and ljsyscall declares it if it is loaded later.
    run(
        "tags",
        "local ffi = require('ffi')
         ffi.typeof('struct { uint32_t bf_len; struct bpf_insn *bf_insns; }')
         ffi.cdef('struct bpf_insn { uint8_t code, registers; int16_t off; int32_t imm; };')
         assert(ffi.sizeof('struct bpf_insn') == 8)",
    );
}

#[test]
fn clocks_advance() {
    run(
        "clocks",
        r#"require("core.lib_h")
        local C = require("ffi").C
        local start, seconds = C.get_time_ns(), C.get_monotonic_time()
        C.sleep_ns(2000000)
        assert(C.get_time_ns() - start >= 2000000ULL and C.get_monotonic_time() - seconds >= 0.002)
        assert(math.abs(C.get_unix_time() - os.time()) < 2)
        assert(math.abs(tonumber(C.get_unix_time_ns()) / 1e9 - os.time()) < 2)
        assert(C.stat_mtime("/etc/passwd") > 0 and C.stat_mtime("/no/such/file") == 0)"#,
    );
}

#[test]
fn replay_windows_follow_rfc_4303() {
    run(
        "window",
        r#"local ffi = require("ffi")
        ffi.cdef [[int64_t check_seq_no(uint32_t, uint64_t, uint8_t *, uint32_t);
            uint64_t track_seq_no(uint32_t, uint32_t, uint64_t, uint8_t *, uint32_t);]]
        local check, track, window, W = ffi.C.check_seq_no, ffi.C.track_seq_no, ffi.new("uint8_t[8]"), 64
        local top = track(0, 100, 0, window, W)
        assert(top == 100 and check(100, top, window, W) == -1 and check(99, top, window, W) == 0)
        top = track(0, 50, top, window, W)
        assert(top == 100 and check(50, top, window, W) == -1)
        -- Far in front: the high half stays; below the window: it must be the next one.
        assert(check(4000000000, top, window, W) == 0 and check(36, top, window, W) == 1)
        top = track(0, 0xffffffff, top, window, W)
        assert(check(5, top, window, W) == 1 and check(0xfffffff0, top, window, W) == 0)
        top = track(1, 5, top, window, W)
        assert(top == 0x100000005ULL and check(0xffffffff, top, window, W) == -1)
        assert(check(0xfffffffe, top, window, W) == 0 and check(5, top, window, W) == -1)"#,
    );
}

#[test]
fn tables_of_the_bridge_and_of_routes() {
    run(
        "tables",
        r#"local ffi = require("ffi")
        ffi.cdef [[
            typedef struct { uint64_t mac; uint16_t port, group; } entry;
            typedef struct { uint32_t used, entries; uint8_t overflow; entry rows[2][6]; } macs;
            typedef struct { uint16_t port, group; } result;
            void mac_table_insert(uint64_t, uint16_t, uint16_t, macs **, uint32_t);
            result *mac_table_lookup(uint64_t, entry *);
            uint16_t lpm4_248_search(uint32_t, uint16_t *, uint16_t *);
            uint16_t lpm4_dxr_search(uint32_t, uint16_t *, uint16_t *, uint32_t *, uint32_t *);
        ]]
        local C, main, shadow = ffi.C, ffi.new("macs"), ffi.new("macs")
        local tables = ffi.new("macs *[2]", { main, shadow })
        for i = 1, 6 do C.mac_table_insert(i, i * 10, 1, tables, 1) end
        assert(main.entries == 6 and main.used == 1 and main.overflow == 0 and shadow.entries == 6)
        C.mac_table_insert(3, 33, 2, tables, 1)
        assert(main.entries == 6 and C.mac_table_lookup(3, main.rows[1]).port == 33)
        C.mac_table_insert(7, 70, 1, tables, 1)
        assert(main.overflow == 1 and C.mac_table_lookup(7, main.rows[1]).port == 0)
        local first, blocks = ffi.new("uint16_t[?]", 2 ^ 24), ffi.new("uint16_t[512]")
        first[0x0a0000], first[0x0a0001], blocks[256 + 9] = 7, 0x8001, 5
        assert(C.lpm4_248_search(0x0a000009, first, blocks) == 7)
        assert(C.lpm4_248_search(0x0a000109, first, blocks) == 5)
        local ends, keys = ffi.new("uint16_t[4]", 99, 199, 65535), ffi.new("uint16_t[4]", 1, 2, 3)
        local bottoms, tops = ffi.new("uint32_t[65536]"), ffi.new("uint32_t[65536]")
        tops[0] = 2
        for address, key in pairs { [0] = 1, [99] = 1, [100] = 2, [199] = 2, [200] = 3, [65535] = 3 } do
            assert(C.lpm4_dxr_search(address, ends, keys, bottoms, tops) == key, address)
        end"#,
    );
}

#[test]
fn shared_files_grow_and_keep_their_content() {
    run(
        "shmem",
        r#"local ffi = require("ffi")
        ffi.cdef [[char *shmem_grow(void *, void *, size_t, size_t); char *shmem_attach(void *, size_t);
            bool shmem_unmap(void *, size_t);]]
        local C, name = ffi.C, os.tmpname()
        local file = io.open(name, "w+")
        local at = C.shmem_grow(file, nil, 0, 8)
        ffi.cast("uint64_t *", at)[0] = 42
        at = ffi.cast("uint64_t *", C.shmem_grow(file, at, 8, 8192))
        assert(at[0] == 42 and at[1023] == 0)
        local other = io.open(name, "r+")
        local view = ffi.cast("uint64_t *", C.shmem_attach(other, 8192))
        view[1023] = 7
        assert(at[1023] == 7 and file:seek("end") == 8192)
        assert(C.shmem_unmap(at, 8192) and C.shmem_unmap(view, 8192) and not C.shmem_unmap(ffi.cast("char *", 1), 1))
        local readonly = io.open(name, "r")
        assert(C.shmem_grow(readonly, nil, 0, 16) == nil and C.shmem_attach(readonly, 16) == nil)
        os.remove(name)"#,
    );
}

#[test]
fn code_encoded_by_dynasm_runs() {
    run(
        "dynasm",
        r#"local ffi = require("ffi")
        ffi.cdef [[
            void dasm_init(void **, int); void dasm_free(void **); void dasm_setupglobal(void **, void **, unsigned);
            void dasm_setup(void **, const void *); void dasm_put(void **, int, ...);
            int dasm_link(void **, size_t *); int dasm_encode(void **, void *);
            void *mmap(void *, size_t, int, int, int, long);
            int (*DASM_EXTERN_FUNC)(void *, unsigned char *, int, int);
        ]]
        local C, state, globals, size = ffi.C, ffi.new("void *[1]"), ffi.new("void *[8]"), ffi.new("size_t[1]")
        -- mov eax, IMM_D; ret; STOP
        local actions = ffi.new("uint8_t[4]", 0xb8, 237, 0xc3, 255)
        C.dasm_init(state, 1)
        C.dasm_setupglobal(state, globals, 8)
        C.dasm_setup(state, actions)
        C.dasm_put(state, 0, ffi.cast("int", 4711))
        assert(C.dasm_link(state, size) == 0 and size[0] == 6 and C.DASM_EXTERN_FUNC == nil)
        local code = C.mmap(nil, 4096, 7, 0x22, -1, 0)
        assert(C.dasm_encode(state, code) == 0)
        assert(ffi.cast("int (*)(void)", code)() == 4711)
        C.dasm_free(state)"#,
    );
}

#[test]
fn modules_are_generated_from_files_of_the_user() {
    let root = std::env::temp_dir().join(format!("bm-lua-made-{}", std::process::id()));
    let files = [
        ("lib/thing.h", "#define X 1\nstruct thing { uint16_t a, b; };"),
        ("lib/other.h", "struct other { uint8_t a; };"),
        ("lib/usage.inc", "Usage: thing"),
        ("lib/yang/ietf-x.yang", "module ietf-x {}"),
        ("lib/code.dasl", "| nop"),
        ("lib/with-minus.lua", "return 'with-minus'"),
        // Ours is a Lua file, but the user's file still has precedence.
        ("lib/checksum.dasl", "| nop"),
        (
            "dynasm.lua",
            "return { loadfile = function (file) return function (name) return name .. ' of ' .. file end end }",
        ),
    ];
    for (name, text) in files {
        std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        std::fs::write(root.join(name), text).unwrap();
    }
    run_with(
        "made",
        r#"require("lib.thing_h")
        assert(require("ffi").sizeof("struct thing") == 4)
        assert(require("lib.other.h") and require("ffi").sizeof("struct other") == 1)
        assert(require("lib.with_minus") == "with-minus")
        assert(require("lib.checksum"):match("^lib.checksum of .*/lib/checksum.dasl$"))
        assert(require("lib.usage_inc") == "Usage: thing" and require("lib.yang.ietf_x_yang") == "module ietf-x {}")
        assert(require("lib.code"):match("^lib.code of .*/lib/code.dasl$"))
        local fine, why = pcall(require, "lib.none_h")
        assert(not fine and why:match("module 'lib.none_h' not found"))"#,
        Tree::at(&root),
    );
    std::fs::remove_dir_all(root).unwrap();
}
