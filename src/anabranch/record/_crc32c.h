/* CRC-32C (Castagnoli) of a run of bytes, for `_fast.pyx`; include it in one C file only.

   crc32c_prepare() once, then crc32c_of() from any thread. Two ways give the same sum, and the machine it runs on,
   not the one it was built on, decides between them:

   - x86-64 with SSE4.2 and PCLMULQDQ: the crc32 instruction takes 8 bytes and answers 3 cycles later, but a new one
     can start in each. Three neighbouring lanes are therefore summed side by side and joined afterwards.
   - anything else: eight tables, 8 bytes a turn ("slicing by 8").

   Both work on the reflected polynomial, in which bit 31 stands for x^0; P below is that of Castagnoli. */

#ifndef ANABRANCH_CRC32C_H
#define ANABRANCH_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_P 0x82F63B78u

static uint32_t crc32c_tables[8][256];

/* tables[0] has the sum of each byte, tables[n] that of the byte with n zeros behind it. */
static void crc32c_fill_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? CRC32C_P : 0);
        crc32c_tables[0][byte] = crc;
    }
    for (int zeros = 1; zeros < 8; zeros++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc32c_tables[zeros - 1][byte];
            crc32c_tables[zeros][byte] = crc >> 8 ^ crc32c_tables[0][crc & 255];
        }
}

static uint32_t crc32c_by_tables(const unsigned char *at, size_t size) {
    uint32_t crc = ~0u;
    for (; size >= 8; at += 8, size -= 8) {
        crc ^= at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = crc32c_tables[7][crc & 255] ^ crc32c_tables[6][crc >> 8 & 255] ^
              crc32c_tables[5][crc >> 16 & 255] ^ crc32c_tables[4][crc >> 24] ^
              crc32c_tables[3][at[4]] ^ crc32c_tables[2][at[5]] ^ crc32c_tables[1][at[6]] ^ crc32c_tables[0][at[7]];
    }
    for (; size; at++, size--)
        crc = crc >> 8 ^ crc32c_tables[0][(crc ^ *at) & 255];
    return ~crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#define CRC32C_HAS_LANES 1
#include <immintrin.h>
#define CRC32C_TARGET __attribute__((target("sse4.2,pclmul")))

/* A sum moves over n bytes by a multiplication with x^(8n) mod P. The carry-less product of two reflected numbers is
   x too high, and the crc32 instruction that reduces it multiplies by x^32: what is kept here is x^(8n - 33) mod P. */
typedef struct {
    size_t lane;         /* bytes of one lane, a multiple of 8 */
    uint32_t over_one;   /* moves a sum over one lane */
    uint32_t over_two;   /* moves a sum over two */
} crc32c_lanes;

static const crc32c_lanes crc32c_widths[] = {
    {16384, 0x1dc403cc, 0x5ae703ab},
    {4096, 0x82f89c77, 0x54a86326},
    {1024, 0x170076fa, 0xa51b6135},
    {256, 0xb9e02b86, 0xdd7e3b0c},
    {64, 0x9e4addf8, 0x0d3b6092},
};

CRC32C_TARGET static inline uint64_t crc32c_word(uint64_t crc, const unsigned char *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return _mm_crc32_u64(crc, word);
}

CRC32C_TARGET static inline __m128i crc32c_product(uint64_t crc, uint32_t factor) {
    return _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), _mm_cvtsi32_si128((int)factor), 0);
}

CRC32C_TARGET static uint32_t crc32c_by_lanes(const unsigned char *at, size_t size) {
    uint64_t crc = ~0u;
    for (size_t width = 0; width < sizeof crc32c_widths / sizeof *crc32c_widths; width++) {
        const crc32c_lanes lanes = crc32c_widths[width];
        while (size >= 3 * lanes.lane) {
            uint64_t second = 0, third = 0;
            const unsigned char *end = at + lanes.lane;
            for (; at < end; at += 8) {
                crc = crc32c_word(crc, at);
                second = crc32c_word(second, at + lanes.lane);
                third = crc32c_word(third, at + 2 * lanes.lane);
            }
            __m128i moved = _mm_xor_si128(crc32c_product(crc, lanes.over_two), crc32c_product(second, lanes.over_one));
            crc = third ^ _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(moved));
            at += 2 * lanes.lane;
            size -= 3 * lanes.lane;
        }
    }
    for (; size >= 8; at += 8, size -= 8)
        crc = crc32c_word(crc, at);
    for (; size; at++, size--)
        crc = _mm_crc32_u8((uint32_t)crc, *at);
    return ~(uint32_t)crc;
}
#endif

static uint32_t (*crc32c_of)(const unsigned char *at, size_t size) = crc32c_by_tables;

static void crc32c_prepare(void) {
    crc32c_fill_tables();
#ifdef CRC32C_HAS_LANES
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
        crc32c_of = crc32c_by_lanes;
#endif
}

#endif
