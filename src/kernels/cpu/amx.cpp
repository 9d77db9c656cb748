// src/kernels/cpu/amx.cpp
#include "kernels/cpu/amx.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace keyhole::cpu::amx {
namespace {

// Linux gives a process the large register state only if it asks: arch_prctl(2).
bool is_granted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct Abilities {
  bool bf16 = false, f16 = false;
};
Abilities find_abilities() {
  unsigned eax, ebx, ecx, edx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return {};
  const unsigned subleaves = eax;
  const bool has_tiles = edx >> 24 & 1;
  Abilities found = {.bf16 = has_tiles && (edx >> 22 & 1)};
  if (subleaves >= 1) {
    __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx);
    found.f16 = has_tiles && (eax >> 21 & 1);
  }
  return (found.bf16 || found.f16) && is_granted() ? found : Abilities{};
}

// The instructions as assembly: no compiler flag is needed, and neither is an intrinsic that the
// oldest compilers lack. Registers: 0 ... 3 hold c, 4 and 5 rows of a, 6 and 7 columns of b.
constexpr int kA = 4, kB = 6;

template <int kTile>
[[gnu::always_inline]] inline void load(const void* from, int64_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(kTile)
               : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store(void* to, int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride_bytes), "i"(kTile)
               : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void clear() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <DType kType, int kSum, int kLeft, int kRight>
[[gnu::always_inline]] inline void add_product() {
  if constexpr (kType == DType::bf16) {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  } else {
    // tdpfp16ps, which assemblers before 2023 do not know.
    asm volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" ::"i"((~kRight & 15) << 3 | 3),
                 "i"(0xc0 | kSum << 3 | kLeft));
  }
}

// One rectangle of c: kDown x kAcross tiles.
template <DType kType, int kDown, int kAcross>
void multiply_tiles(const Product& g, int64_t row, int64_t col) {
  const int64_t a_bytes = g.a_stride * 2, b_bytes = g.b_stride * 4, c_bytes = g.c_stride * 4;
  float* c = g.c + row * g.c_stride + col;
  float* c_below = c + kRows * g.c_stride;
  if (g.accumulate) {
    load<0>(c, c_bytes);
    if constexpr (kAcross == 2) load<1>(c + kCols, c_bytes);
    if constexpr (kDown == 2) load<2>(c_below, c_bytes);
    if constexpr (kDown == 2 && kAcross == 2) load<3>(c_below + kCols, c_bytes);
  } else {
    clear<0>(), clear<1>(), clear<2>(), clear<3>();
  }
  const int64_t b_panel = g.b_panel != 0 ? g.b_panel : kPanel / 2 * g.b_stride;
  for (int64_t done = 0; done < g.depth; done += kDepth) {
    const uint16_t* a = g.a + row * g.a_stride + done;
    const uint32_t* b = g.b + done / kPanel * b_panel + done % kPanel / 2 * g.b_stride + col;
    load<kA>(a, a_bytes);
    load<kB>(b, b_bytes);
    add_product<kType, 0, kA, kB>();
    if constexpr (kAcross == 2) {
      load<kB + 1>(b + kCols, b_bytes);
      add_product<kType, 1, kA, kB + 1>();
    }
    if constexpr (kDown == 2) {
      load<kA + 1>(a + kRows * g.a_stride, a_bytes);
      add_product<kType, 2, kA + 1, kB>();
      if constexpr (kAcross == 2) add_product<kType, 3, kA + 1, kB + 1>();
    }
  }
  store<0>(c, c_bytes);
  if constexpr (kAcross == 2) store<1>(c + kCols, c_bytes);
  if constexpr (kDown == 2) store<2>(c_below, c_bytes);
  if constexpr (kDown == 2 && kAcross == 2) store<3>(c_below + kCols, c_bytes);
}

template <DType kType, int kAcross>
void multiply_columns(const Product& g, int64_t col) {
  int64_t row = 0;
  for (; row + 2 * kRows <= g.rows; row += 2 * kRows)
    multiply_tiles<kType, 2, kAcross>(g, row, col);
  if (row < g.rows) multiply_tiles<kType, 1, kAcross>(g, row, col);
}

template <DType kType>
void multiply_as(const Product& g) {
  int64_t col = 0;
  for (; col + 2 * kCols <= g.cols; col += 2 * kCols) multiply_columns<kType, 2>(g, col);
  if (col < g.cols) multiply_columns<kType, 1>(g, col);
}

}  // namespace

bool multiplies(DType dtype) {
  static const Abilities found = find_abilities();
  return dtype == DType::bf16 ? found.bf16 : dtype == DType::f16 && found.f16;
}

// All eight registers hold whole tiles: 16 rows of 64 bytes.
Tiles::Tiles() {
  struct alignas(64) Configuration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static constexpr Configuration kWhole;
  asm volatile("ldtilecfg %0" ::"m"(kWhole));
}
Tiles::~Tiles() { asm volatile("tilerelease"); }

void multiply(DType dtype, const Product& product) {
  dtype == DType::bf16 ? multiply_as<DType::bf16>(product) : multiply_as<DType::f16>(product);
}

}  // namespace keyhole::cpu::amx

#else

namespace keyhole::cpu::amx {

bool multiplies(DType) { return false; }
Tiles::Tiles() {}
Tiles::~Tiles() {}
void multiply(DType, const Product&) {}

}  // namespace keyhole::cpu::amx

#endif
