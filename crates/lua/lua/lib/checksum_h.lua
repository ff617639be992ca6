-- Declarations of the binary's checksum functions.

require("ffi").cdef [[
uint16_t cksum(const void *data, size_t length, uint16_t initial);
uint16_t cksum_generic(unsigned char *data, size_t length, uint16_t initial);
uint16_t cksum_sse2(unsigned char *data, size_t length, uint16_t initial);
uint16_t cksum_avx2(unsigned char *data, size_t length, uint16_t initial);
void checksum_update_incremental_16(uint16_t *checksum, uint16_t *cell, uint16_t new_value);
void checksum_update_incremental_32(uint16_t *checksum, uint32_t *cell, uint32_t new_value);
uint32_t tcp_pseudo_checksum(uint16_t *source, uint16_t *destination, int halfwords, int length);
uint32_t pseudo_header_initial(const void *packet, size_t length);
]]
return {}
