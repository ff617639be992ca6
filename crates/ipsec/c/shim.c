/* intel-ipsec-mb behind functions without its types. Ciphers and hashes of a burst are two calls, each of which returns
 * when all packets are done: nothing stays in a manager between calls. */
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <intel-ipsec-mb.h>

#if IMB_VERSION_NUM < IMB_VERSION(1, 3, 0)
#error "bm-ipsec needs intel-ipsec-mb 1.3 or newer"
#endif

#define ESP_HEADER 8
#define IV_LEN 16
#define HMAC_BLOCK 64

size_t bm_mb_size(void)
{
    return imb_get_mb_mgr_size();
}

/* Jobs are arrays of a type that may grow from one version to the next. */
static int is_built_for(void)
{
    unsigned major = 0, minor = 0;

    return sscanf(imb_get_version_str(), "%u.%u", &major, &minor) == 2 &&
           major == IMB_VERSION_NUM >> 16 && minor == (IMB_VERSION_NUM >> 8 & 0xff);
}

/* Version 1.3 crashes instead of refusing to make a manager for instructions that the CPU lacks. */
static int has(const IMB_MGR *mgr, uint64_t features)
{
    return (mgr->features & features) == features;
}

int bm_mb_init(void *manager, int kind)
{
    const uint64_t flags = kind == BM_SSE_NO_SHANI ? IMB_FLAG_SHANI_OFF : 0;
    IMB_MGR *mgr = is_built_for() ? imb_set_pointers_mb_mgr(manager, flags, 1) : NULL;

    if (mgr == NULL)
        return -1;
    if (kind <= BM_SSE_NO_SHANI && has(mgr, IMB_CPUFLAGS_SSE))
        init_mb_mgr_sse(mgr);
    else if (kind == BM_AVX2 && has(mgr, IMB_CPUFLAGS_AVX2))
        init_mb_mgr_avx2(mgr);
    else if (kind == BM_AVX512 && has(mgr, IMB_CPUFLAGS_AVX512))
        init_mb_mgr_avx512(mgr);
    else
        return -1;
    return imb_get_errno(mgr);
}

static IMB_HASH_ALG hash_of(const struct bm_cbc *keys)
{
    return keys->icv_len == 12 ? IMB_AUTH_HMAC_SHA_1 : IMB_AUTH_HMAC_SHA_256;
}

void bm_mb_cbc_keys(void *manager, struct bm_cbc *keys, const uint8_t *encryption, const uint8_t *integrity,
                    size_t integrity_len)
{
    IMB_MGR *mgr = manager;
    uint8_t pad[2][HMAC_BLOCK];

    if (keys->key_len == 16)
        IMB_AES_KEYEXP_128(mgr, encryption, keys->encrypt, keys->decrypt);
    else
        IMB_AES_KEYEXP_256(mgr, encryption, keys->encrypt, keys->decrypt);
    /* RFC 2104: the key is shorter than a block. */
    memset(pad[0], 0x36, HMAC_BLOCK);
    memset(pad[1], 0x5c, HMAC_BLOCK);
    for (size_t at = 0; at < integrity_len && at < HMAC_BLOCK; at++) {
        pad[0][at] ^= integrity[at];
        pad[1][at] ^= integrity[at];
    }
    if (hash_of(keys) == IMB_AUTH_HMAC_SHA_1) {
        IMB_SHA1_ONE_BLOCK(mgr, pad[0], keys->inner);
        IMB_SHA1_ONE_BLOCK(mgr, pad[1], keys->outer);
    } else {
        IMB_SHA256_ONE_BLOCK(mgr, pad[0], keys->inner);
        IMB_SHA256_ONE_BLOCK(mgr, pad[1], keys->outer);
    }
    imb_clear_mem(pad, sizeof(pad));
}

/* Jobs for both calls: the fields of the hash are read by one, those of the cipher by the other. */
static void describe(IMB_JOB *jobs, const struct bm_cbc *keys, const struct bm_packet *packets, uint32_t count,
                     IMB_CIPHER_DIRECTION direction)
{
    /* CBC of the number with an IV of zeros gives the packet's IV, and goes on with it. */
    static const uint8_t zeros[IV_LEN];
    const size_t skip = direction == IMB_DIR_ENCRYPT ? ESP_HEADER : ESP_HEADER + IV_LEN;

    memset(jobs, 0, count * sizeof(*jobs));
    for (uint32_t at = 0; at < count; at++) {
        const struct bm_packet *packet = &packets[at];
        IMB_JOB *job = &jobs[at];

        job->enc_keys = keys->encrypt;
        job->dec_keys = keys->decrypt;
        job->key_len_in_bytes = keys->key_len;
        job->cipher_mode = IMB_CIPHER_CBC;
        job->cipher_direction = direction;
        job->chain_order = direction == IMB_DIR_ENCRYPT ? IMB_ORDER_CIPHER_HASH : IMB_ORDER_HASH_CIPHER;
        job->iv = direction == IMB_DIR_ENCRYPT ? zeros : packet->esp + ESP_HEADER;
        job->iv_len_in_bytes = IV_LEN;
        job->src = packet->esp;
        job->dst = packet->esp + skip;
        job->cipher_start_src_offset_in_bytes = skip;
        job->msg_len_to_cipher_in_bytes = packet->length - skip;
        job->hash_alg = hash_of(keys);
        job->hash_start_src_offset_in_bytes = 0;
        job->msg_len_to_hash_in_bytes = packet->hashed;
        job->u.HMAC._hashed_auth_key_xor_ipad = keys->inner;
        job->u.HMAC._hashed_auth_key_xor_opad = keys->outer;
        job->auth_tag_output = packet->icv;
        job->auth_tag_output_len_in_bytes = keys->icv_len;
    }
}

/* A packet that the library has not handled would leave in clear, or be accepted with any ICV: better no process. */
static void require(int right)
{
    if (!right)
        abort();
}

void bm_mb_cbc(void *manager, const struct bm_cbc *keys, const struct bm_packet *packets, uint32_t count, int step)
{
    const IMB_CIPHER_DIRECTION direction = step == BM_SEAL ? IMB_DIR_ENCRYPT : IMB_DIR_DECRYPT;
    IMB_MGR *mgr = manager;
    IMB_JOB jobs[BM_BURST];

    require(count <= BM_BURST);
    describe(jobs, keys, packets, count, direction);
    if (step != BM_HASH)
        require(IMB_SUBMIT_CIPHER_BURST_NOCHECK(mgr, jobs, count, IMB_CIPHER_CBC, direction, keys->key_len) == count);
    if (step != BM_OPEN)
        require(IMB_SUBMIT_HASH_BURST_NOCHECK(mgr, jobs, count, hash_of(keys)) == count);
}

struct gcm {
    struct gcm_key_data keys;
    aes_gcm_enc_dec_t seal;
    aes_gcm_enc_dec_t open;
};

_Static_assert(sizeof(struct gcm) <= BM_GCM_ROOM, "bm-ipsec has too little room for keys of AES-GCM");
_Static_assert(_Alignof(struct gcm) <= 64, "bm-ipsec aligns keys of AES-GCM to 64 bytes");

void bm_mb_gcm_key(void *manager, void *keys, const uint8_t *key, size_t key_len)
{
    IMB_MGR *mgr = manager;
    struct gcm *gcm = keys;

    if (key_len == 16) {
        IMB_AES128_GCM_PRE(mgr, key, &gcm->keys);
        gcm->seal = mgr->gcm128_enc;
        gcm->open = mgr->gcm128_dec;
    } else {
        IMB_AES256_GCM_PRE(mgr, key, &gcm->keys);
        gcm->seal = mgr->gcm256_enc;
        gcm->open = mgr->gcm256_dec;
    }
}

void bm_mb_gcm(const void *keys, int step, uint8_t *bytes, size_t length, const uint8_t nonce[12], const uint8_t *aad,
               size_t aad_len, uint8_t icv[16])
{
    const struct gcm *gcm = keys;
    const aes_gcm_enc_dec_t run = step == BM_SEAL ? gcm->seal : gcm->open;
    struct gcm_context_data context;

    run(&gcm->keys, &context, bytes, bytes, length, nonce, aad, aad_len, icv, 16);
}
