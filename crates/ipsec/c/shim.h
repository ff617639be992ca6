/* What Rust calls of intel-ipsec-mb (crates/ipsec/src/multi/native.rs has the same declarations). No type of the library
 * is in it, so Rust does not depend on their layouts. */
#ifndef BM_IPSEC_MB_H
#define BM_IPSEC_MB_H

#include <stddef.h>
#include <stdint.h>

/* Packets of one call, at most. */
#define BM_BURST 32
/* Room for the keys of AES-GCM of any manager. */
#define BM_GCM_ROOM 2048

enum bm_manager { BM_SSE, BM_SSE_NO_SHANI, BM_AVX2, BM_AVX512 };

/* The keys of an SA with CBC and HMAC; all managers take the same. */
struct bm_cbc {
    uint8_t encrypt[240];
    uint8_t decrypt[240];
    uint8_t inner[64];
    uint8_t outer[64];
    uint64_t key_len;
    uint64_t icv_len;
};

/* An ESP packet from its SPI on. */
struct bm_packet {
    uint8_t *esp;
    /* Bytes up to the ICV. */
    size_t length;
    /* Bytes that are hashed: also the high half of an extended sequence number behind them. */
    size_t hashed;
    /* Where the ICV is written to. */
    uint8_t *icv;
};

/* Bytes that a manager needs, aligned to 64. */
size_t bm_mb_size(void);
/* Makes a manager in this memory; 0, or why this CPU or this version of the library has none. */
int bm_mb_init(void *manager, int kind);

void bm_mb_cbc_keys(void *manager, struct bm_cbc *keys, const uint8_t *encryption, const uint8_t *integrity,
                    size_t integrity_len);
/* What is done with packets. */
enum bm_step {
    BM_SEAL, /* they are encrypted, and get an ICV */
    BM_HASH, /* the ICV that they should have is written */
    BM_OPEN  /* they are decrypted; with AES-GCM, the ICV that they should have is written, too */
};

/* One step for up to BM_BURST packets. To encrypt, the 16 bytes of the IV contain the number that it is made of. */
void bm_mb_cbc(void *manager, const struct bm_cbc *keys, const struct bm_packet *packets, uint32_t count, int step);

/* Prepares a key of 16 or 32 bytes in BM_GCM_ROOM bytes, aligned to 64, for the functions of this manager. */
void bm_mb_gcm_key(void *manager, void *keys, const uint8_t *key, size_t key_len);
/* Encrypts or decrypts in place, and writes the ICV of 16 bytes. */
void bm_mb_gcm(const void *keys, int step, uint8_t *bytes, size_t length, const uint8_t nonce[12], const uint8_t *aad,
               size_t aad_len, uint8_t icv[16]);

#endif
